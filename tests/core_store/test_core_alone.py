"""What works on a store that has the core alone, and how the rest is refused."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import App, Worker, current_job
from penstock.core.job import State
from penstock.errors import Retry, Unsupported
from penstock.stores.contract import OPTIONS, REQUESTS, Capability, Store, requests
from penstock.stores.sqlite import SqliteStore
from tests.core_store.core_alone import CoreAlone
from tests.core_store.dict_store import DictStore

PATIENCE = 60.0
ROOT = Path(__file__).parents[2]


@pytest.fixture
def inside(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "jobs.db")


@pytest.fixture(params=["filtered", "dict"])
def app(inside: SqliteStore, request: pytest.FixtureRequest) -> App:
    return App(store=CoreAlone(inside) if request.param == "filtered" else DictStore())


def test_each_request_belongs_to_one_capability() -> None:
    listed = [request for group in REQUESTS.values() for request in group]
    assert len(listed) == len(set(listed))
    assert set(listed) == set(requests().values())
    assert set(REQUESTS) | {option.needs for option in OPTIONS} == set(Capability)


def test_our_own_stores_can_do_everything(inside: SqliteStore) -> None:
    assert all(inside.can(capability) for capability in Capability)


async def test_a_worker_serves_it(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """Jobs that are due now and later, that fail and are tried again, that are parked: nothing is logged."""
    ran: list[str] = []

    @app.task(max_attempts=3)
    async def work(n: int) -> int:
        ran.append(f"{n}")
        current_job().log("this store keeps no lines")
        if n == 2 and current_job().attempt == 1:
            raise Retry(delay=0.01)
        return n

    @app.task
    def in_a_thread(n: int) -> None:
        ran.append(f"thread {n}")

    with caplog.at_level(logging.WARNING):
        await app.aenqueue_many([work.job(1), work.job(2), in_a_thread.job(3)])
        await work.using(delay=0.05).aenqueue(4)
        worker = Worker(app)
        running = asyncio.create_task(worker.run())
        async with asyncio.timeout(PATIENCE):
            while sorted(ran) != ["1", "2", "2", "4", "thread 3"] or await _unfinished(app.store):
                await asyncio.sleep(0.01)
        worker.stop()
        await asyncio.wait_for(running, PATIENCE)
    assert {
        record.levelname for record in caplog.records if "attempt 1 of 3) failed: Retry" not in record.message
    } == set()


async def _unfinished(store: Store) -> int:
    (info,) = await store.queues()
    ended = (State.COMPLETED, State.DEAD, State.CANCELLED)
    return sum(n for state, n in info.counts.items() if state not in ended)


async def test_a_burst_ends(app: App) -> None:
    @app.task
    async def work() -> None: ...

    await app.aenqueue_many([work.job() for _ in range(50)])
    await asyncio.wait_for(Worker(app, burst=True).run(), PATIENCE)
    (info,) = await app.store.queues()
    assert info.counts.get(State.AVAILABLE, 0) == 0


async def test_a_job_is_taken(app: App) -> None:
    @app.task
    async def work(n: int) -> None: ...

    await work.aenqueue(7)
    async with app.take("default") as job:
        assert job is not None
    (info,) = await app.store.queues()
    assert State.RUNNING not in {state for state, n in info.counts.items() if n}


async def test_what_it_cannot_do_is_refused_in_one_sentence(app: App) -> None:
    @app.task
    async def work() -> int:
        return 1

    handle = await work.aenqueue()
    for refused in (handle.astatus(), handle.aresult(timeout=1), handle.acancel()):
        with pytest.raises(Unsupported, match=r"(sqlite|dict)://.* cannot tell what became of a job"):
            await refused
    with pytest.raises(Unsupported, match="cannot keep a list of workers, which 'workers' needs"):
        await app.store.workers()
    with pytest.raises(Unsupported, match="cannot keep flows"):
        await app.store.advance_flows()


def test_so_it_is_for_threads(app: App) -> None:
    @app.task
    async def work() -> int:
        return 1

    handle = work.enqueue()
    with pytest.raises(Unsupported, match="cannot tell what became of a job"):
        handle.status()
    with pytest.raises(Unsupported, match="cannot tell what became of a job"):
        handle.result(timeout=1)


async def test_one_capability_more_is_one_group_of_requests_more(inside: SqliteStore) -> None:
    store = CoreAlone(inside, Capability.FOLLOW)
    app = App(store=store)

    @app.task
    async def work() -> int:
        return 5

    handle = await work.aenqueue()
    await asyncio.wait_for(Worker(app, burst=True).run(), PATIENCE)
    assert await handle.aresult(timeout=PATIENCE) == 5


# ── the command line ─────────────────────────────────────────────────────────────────────────────

_APP = """
from penstock import App
from penstock.stores.sqlite import SqliteStore
from tests.core_store.core_alone import CoreAlone

app = App(store=CoreAlone(SqliteStore("jobs.db")))

@app.task
def work(n: int) -> int:
    return n
"""


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command of Penstock on an app whose store has the core alone."""
    (tmp_path / "core_app.py").write_text(_APP)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "penstock", "--app", "core_app:app", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT), str(ROOT / "src")])},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    return run


@pytest.mark.slow
def test_the_command_line_does_what_the_core_can(command: Callable[..., Any]) -> None:
    assert command("enqueue", "core_app.work", "[5]").returncode == 0
    assert "default" in command("queues", "list").stdout
    assert "paused" in command("queues", "pause", "default").stdout
    (shown,) = json.loads(command("queues", "list", "--json").stdout)["queues"]
    assert shown["paused"] is True
    assert command("queues", "resume", "default").returncode == 0
    doctor = command("doctor")
    assert "not checked: this store cannot keep a list of workers" in doctor.stdout
    assert command("worker", "core_app:app", "--burst").returncode == 0
    (shown,) = json.loads(command("queues", "list", "--json").stdout)["queues"]
    assert not shown["counts"].get("available")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "cannot"),
    [
        ("jobs list", "list or search jobs"),
        ("jobs show default/x", "tell what became of a job"),
        ("workers", "keep a list of workers"),
        ("periodic list", "keep periodic entries"),
        ("stats", "keep statistics"),
        ("flows list", "keep flows"),
        ("audit", "keep documents and logs"),
    ],
)
def test_and_says_in_one_sentence_what_it_cannot(
    command: Callable[..., Any], arguments: str, cannot: str
) -> None:
    command("enqueue", "core_app.work", "[5]")
    ran = command(*arguments.split())
    assert ran.returncode == 1
    (line,) = ran.stderr.splitlines()
    assert f"cannot {cannot}" in line
