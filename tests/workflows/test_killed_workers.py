"""Workers that are killed with SIGKILL lose no flow, and no body runs twice to its end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from penstock import App, Worker
from penstock.workflows import FlowState, chain, chord

pytestmark = pytest.mark.system

APP = """
import asyncio, os
from penstock import App, Worker
from penstock.workflows import chain, chord

app = App(os.environ["STORE"])

@app.task(max_attempts=50)
async def step(x: int) -> int:
    await asyncio.sleep(0.01)
    return x + 1

@app.task(max_attempts=50)
async def total(numbers: list[int]) -> int:
    with open(os.environ["BODIES"], "a") as log:
        log.write(f"{sum(numbers)}\\n")
    return sum(numbers)

if __name__ == "__main__":
    asyncio.run(Worker(app, concurrency=5).run())
"""


def canvas(module: Any, n: int) -> Any:
    """Five members of two steps each, and a body that all of them move."""
    members = [chain(module.step.job(100 * n + k), module.step) for k in range(5)]
    return chain(chord(members, then=module.total), module.step)


def test_flows_survive_killed_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, bodies = tmp_path / "flows_app.py", tmp_path / "bodies.txt"
    script.write_text(APP)
    monkeypatch.setenv("STORE", f"sqlite:///{tmp_path}/jobs.db")
    monkeypatch.setenv("BODIES", str(bodies))
    monkeypatch.syspath_prepend(str(tmp_path))
    import flows_app  # type: ignore[import-not-found]

    app: App = flows_app.app
    handles = [canvas(flows_app, n).enqueue() for n in range(20)]
    for _ in range(3):
        _run_and_kill(script, app, handles)
    asyncio.run(_finish(app, handles))
    expected = [sum(100 * n + k + 2 for k in range(5)) + 1 for n in range(20)]
    assert [handle.result(60) for handle in handles] == expected
    assert all(handle.status() is FlowState.COMPLETED for handle in handles)
    ran = [int(line) for line in bodies.read_text().split()]
    assert set(ran) == {one - 1 for one in expected}
    assert len(ran) <= len(expected) + 4  # a kill may repeat the body that it has interrupted
    app.close()


async def _finish(app: App, handles: list[Any]) -> None:
    """Run a worker until all flows have ended: the leases of the killed workers are reclaimed meanwhile."""
    worker = Worker(app)
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(60):
        while not all([(await handle.ainfo()).ended for handle in handles]):
            await asyncio.sleep(0.05)
    worker.stop()
    await running


def _run_and_kill(script: Path, app: App, handles: list[Any]) -> None:
    """Run a worker until it has ended some more nodes, and kill it."""
    before = sum(handle.progress().done for handle in handles)
    worker = subprocess.Popen([sys.executable, str(script)], env=dict(os.environ))
    try:
        until = time.monotonic() + 60
        while sum(handle.progress().done for handle in handles) < before + 30:
            assert time.monotonic() < until, "the worker does nothing"
            time.sleep(0.005)
    finally:
        worker.kill()
        worker.wait()
