"""`penstock demo --serve`: a shop with jobs in all states, its workers and its dashboard, until a signal."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.core.job import State
from penstock.demo.showcase.shop import QUEUES
from penstock.stores.connect import connect
from penstock.stores.contract import WorkerInfo
from tests.cli.conftest import Cli


@pytest.mark.system
def test_it_serves_jobs_in_all_states_and_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "demo", "--serve", "--port", "0", "--json"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert demo.stdout is not None
        facts = json.loads(demo.stdout.readline())
        client = http.client.HTTPConnection("127.0.0.1", facts["port"], timeout=30)
        client.request("GET", "/")
        page = client.getresponse().read().decode()
        client.close()
        store = connect(facts["url"])
        counts: set[str] = set()
        workers: list[WorkerInfo] = []
        while len(workers) < 2 or not {"running", "suspended", "retryable", "parked"} <= counts:
            counts = {state for queue in store.sync.queues() for state, n in queue.counts.items() if n}
            workers = asyncio.run(store.workers())
        store.close()
    finally:
        demo.send_signal(signal.SIGTERM)
        demo.communicate()
    assert demo.returncode == 0
    assert counts == {state.value for state in State}
    assert "shop.charge_card" in page
    assert re.search(r"exports</b> <span>(paused, 34|34 jobs ready)", page)
    assert len(workers) == 2
    assert {queue for worker in workers for queue in worker.queues} == set(QUEUES)
    assert not [worker for worker in workers if Path(f"/proc/{worker.pid}").exists()]
    assert not list(tmp_path.glob("penstock-shop-*"))


def test_it_takes_no_store_of_others() -> None:
    assert "leave --url out" in Cli("memory://demo")("demo", "--serve").output
