"""One port speaks for all processes of a worker, also for those that were killed."""

from __future__ import annotations

import os
import signal
import socket
import urllib.error
import urllib.request

from penstock.verify.servers.nodes import free_port
from tests.prometheus_text import samples


def get(port: int, path: str, host: str = "localhost") -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_one_port_counts_for_all_processes_and_for_killed_ones(place):
    port = free_port()
    worker = place.worker("--processes", "2", "--metrics-port", str(port), ready=2)
    place.until_ended([place.tasks.quick.enqueue(n) for n in range(30)])
    done = 'penstock_worker_attempts_total{task="quick",outcome="completed"}'
    found = place.until(
        lambda: (now := samples(get(port, "/metrics")[1])).get(done) == 30 and now, "30 jobs are counted"
    )
    assert found["penstock_worker_processes"] == 2
    assert found['penstock_jobs_processed_total{pool="default",queue="default"}'] == 30
    assert found['penstock_job_duration_seconds_count{task="quick"}'] == 30
    place.tasks.held.enqueue("gate")
    (started,) = place.until_started(1, task="held")
    os.kill(started["pid"], signal.SIGKILL)
    place.open("gate")
    place.until(lambda: worker.log.count(" serves ") == 3, "another process serves")
    found = samples(get(port, "/metrics")[1])
    assert found["penstock_worker_process_deaths_total"] == 1
    assert found["penstock_jobs_reclaimed_total"] == 1
    assert found[done] == 30
    assert get(port, "/metrics", host="attacker.example")[0] == 403


def test_health_is_served_on_a_port_of_its_own(place):
    port = free_port()
    worker = place.worker("--health-port", str(port), "--concurrency", "1", PENSTOCK_ANNOUNCE="1s")
    place.until(lambda: get(port, "/readyz") == (200, "ok\n"), "it is ready")
    assert get(port, "/livez") == (200, "ok\n")
    assert get(port, "/metrics")[0] == 404
    place.file.rename(place.folder / "elsewhere.db")
    place.file.mkdir()
    place.until(lambda: get(port, "/readyz")[0] == 503, "the store is away")
    assert get(port, "/livez")[0] == 200
    worker.signal(signal.SIGKILL)


def test_a_port_that_is_taken_ends_the_worker(place):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        worker = place.worker("--metrics-port", str(taken.getsockname()[1]), ready=0)
        assert worker.wait() == 2
    assert "cannot listen on 127.0.0.1" in worker.log


def test_without_a_port_nothing_is_loaded_for_it(place):
    place.start("-c", "import sys, penstock.worker.supervisor; print(sorted(sys.modules))").wait()
    loaded = place.programs[-1].log
    assert "penstock.worker.supervisor" in loaded
    assert "httptools" not in loaded
    assert "penstock.web.server" not in loaded
