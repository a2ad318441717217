"""Prometheus itself scrapes a worker and a server; what it reads agrees with the ledger after kills."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.job import State
from penstock.verify.servers.nodes import free_port, start
from tests.servers import server_or_skip
from tests.system.conftest import PATIENCE, Place

pytestmark = pytest.mark.server

_CONFIG = """
global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}
scrape_configs:
  - job_name: penstock
    static_configs: [{{targets: ["127.0.0.1:{worker}", "127.0.0.1:{server}"]}}]
"""


class Prometheus:
    """A running Prometheus with two targets."""

    def __init__(self, folder: Path, worker: int, server: int) -> None:
        self._port = free_port()
        config = folder / "prometheus.yml"
        config.write_text(_CONFIG.format(worker=worker, server=server))
        command = [server_or_skip("prometheus"), f"--config.file={config}"]
        command += [f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address=127.0.0.1:{self._port}"]
        self.process = start([*command, "--log.level=error"])

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each sample; empty if Prometheus has none, or does not answer yet."""
        query = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/v1/query?{query}") as answer:
                found = json.load(answer)["data"]["result"]
        except OSError:
            return []
        return [(one["metric"], float(one["value"][1])) for one in found]


@pytest.fixture
def ports(place: Place) -> tuple[int, int]:
    """The ports of a worker's and of a server's metrics; both programs run."""
    ports = free_port(), free_port()
    place.worker("--processes", "2", "--metrics-port", str(ports[0]), ready=2)
    place.start("-m", "penstock", "--url", place.url, "serve", "--lmstfy", "--no-tokens", "--port", "0",
                "--admin-port", str(ports[1]))  # fmt: skip
    return ports


@pytest.fixture
def prometheus(place: Place, ports: tuple[int, int]) -> Iterator[Prometheus]:
    made = Prometheus(place.folder, *ports)
    yield made
    made.process.kill()
    made.process.wait(PATIENCE)


def test_totals_agree_with_the_ledger_after_kills(place: Place, prometheus: Prometheus) -> None:
    handles = [place.tasks.nap_thread.using(max_attempts=50).enqueue(0.01) for _ in range(300)]
    supervisor = place.programs[0]
    for kills in range(1, 5):
        place.until_started(60 * kills)
        victim = random.choice(place.until(supervisor.children, "a worker process runs"))
        os.kill(victim, signal.SIGKILL)
        place.until(lambda pid=victim: f"(pid {pid}) died: " in supervisor.log, "its death is seen")
    jobs = place.until_ended(handles)
    assert Counter(job.state for job in jobs) == {State.COMPLETED: 300}
    lost = sum(len(job.errors) for job in jobs)
    assert len(place.starts()) <= 300 + lost

    def agrees() -> bool:
        for name, total in (("enqueued", 300), ("processed", 300 + lost), ("failed", lost)):
            found = prometheus.query(f'penstock_jobs_{name}_total{{queue="default"}}')
            if [value for _, value in found] != [total, total]:  # of the worker, and of the server
                return False
        deaths = prometheus.query("sum(penstock_worker_process_deaths_total)")
        # a scrape that takes too long on a busy machine is repeated
        return [value for _, value in prometheus.query("up") + deaths] == [1, 1, 4]

    place.until(agrees, "Prometheus has the totals of both targets")
    states = prometheus.query('penstock_queue_jobs{state="completed"}')
    assert {value for _, value in states} == {300}


def test_prometheus_finds_nothing_to_object_to(place: Place, ports: tuple[int, int]) -> None:
    promtool = server_or_skip("promtool")
    place.until_ended([place.tasks.quick.enqueue()])
    for port in ports:
        url = f"http://127.0.0.1:{port}/metrics"
        text = place.until(lambda url=url: _read(url), "it answers")
        ours = b"".join(line for line in text.splitlines(keepends=True) if b"lmstfy_" not in line)
        checked = subprocess.run([promtool, "check", "metrics"], input=ours, capture_output=True)
        assert checked.returncode == 0, checked.stderr.decode() + checked.stdout.decode()


def _read(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return bytes(answer.read())
    except OSError:
        return b""
