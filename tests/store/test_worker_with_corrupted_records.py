"""A real worker among corrupted records: it keeps running, runs all other jobs, and reports each record."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from penstock import App, RecordSetAside, Worker
from penstock.core.clock import SystemClock
from penstock.core.job import UNREADABLE_TASK, Job, NewJob, Ref, State
from penstock.core.lifecycle import UNREADABLE
from penstock.core.schedule import NewEntry, Schedule
from penstock.stores.contract import Share, Store, WorkerInfo
from tests.cli.conftest import Cli
from tests.store.corruptors import VANDALS, Corruptor
from tests.store.facts import OpenStore, token
from tests.worker.conftest import quick, until

pytestmark = pytest.mark.parametrize("kind", sorted(VANDALS), indirect=True)


@pytest.fixture
def clock() -> SystemClock:
    """A worker lives in real time."""
    return SystemClock()


@pytest.fixture
def corruptor(kind: str, home: Path) -> Corruptor:
    return VANDALS[kind](home)


class Counting:
    """A store that counts the calls of its verbs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self._store, name)


async def _spoil_in_every_state(store: Store, corruptor: Corruptor) -> tuple[list[Ref], list[Ref]]:
    """Jobs that run, wait, or are due later: those that are spoiled, and the others."""
    good, bad = [], []
    for way in ("running", "scheduled", "available"):
        names = [
            ("good", f"good-{way}"),
            *((field, f"{way}-{n}") for n, field in enumerate(corruptor.record_fields)),
        ]
        delay = 100 if way == "scheduled" else 0
        jobs = [NewJob(id, "t", retention=60_000, delay=delay, headers={"h": "v"}) for _, id in names]
        await store.enqueue(jobs)
        if way == "running":
            share = [Share("default", 99, 99)]
            found = await store.fetch(share, limit=99, lease=1, worker="gone", token=token())
            assert len(found.jobs) == len(jobs)
        for field, id in names:
            ref = Ref("default", id)
            if field == "good":
                good.append(ref)
            else:
                await corruptor.record(ref, field)
                bad.append(ref)
    return good, bad


async def test_a_worker_survives_runs_all_other_jobs_reports_each_record_and_idles(
    open_store: OpenStore, corruptor: Corruptor
) -> None:
    store = open_store()
    good, bad = await _spoil_in_every_state(store, corruptor)
    counting = Counting(open_store())
    app = App("memory://")
    app.use_store(cast(Store, counting))
    told: list[str] = []
    app.on(RecordSetAside)(lambda event: told.append(event.id))

    @app.task(name="t")
    async def work() -> str:
        return "done"

    async def jobs(refs: list[Ref]) -> list[Job]:
        return [job for job in await store.get(refs) if job is not None]

    async def over() -> None:
        while {job.state for job in await jobs([*good, *bad])} != {State.COMPLETED, State.DEAD}:
            await asyncio.sleep(0.02)

    worker = Worker(app, ["default"], config=quick(reclaim_every="200ms"))
    running = asyncio.create_task(worker.run())
    try:
        await asyncio.wait_for(over(), 60)
        await until(lambda: len(told) >= len(bad), "each record is told of")
        before = counting.calls.total()
        await asyncio.sleep(1.0)  # what an idle worker asks in a second
        assert counting.calls.total() - before < 100, counting.calls
        assert not running.done()
    finally:
        worker.stop()
        await asyncio.wait_for(running, 60)
        app.close()
    assert {job.state for job in await jobs(good)} == {State.COMPLETED}
    assert all((job.reason or "").startswith(UNREADABLE) for job in await jobs(bad))
    assert sorted(told) == sorted(ref.id for ref in bad)


async def test_app_take_reports_an_unreadable_job_and_takes_the_next(
    open_store: OpenStore, corruptor: Corruptor
) -> None:
    store = open_store()
    await store.enqueue([NewJob("bad", "t"), NewJob("good", "t")])
    await corruptor.record(Ref("default", "bad"), "all of it")
    app = App("memory://")
    app.use_store(open_store())
    told: list[str] = []
    app.on(RecordSetAside)(lambda event: told.append(event.id))
    async with app.take(wait="5s") as job:
        assert job is not None
        assert job.id == "good"
    async with asyncio.timeout(60):  # listeners are called from another thread
        while not told:
            await asyncio.sleep(0.005)
    assert told == ["bad"]


async def test_an_operator_sees_and_removes_what_was_set_aside(
    kind: str, open_store: OpenStore, corruptor: Corruptor
) -> None:
    if kind != "sqlite":
        pytest.skip("the command line is the same for all; here its store is a file")
    store = open_store()
    _, bad = await _spoil_in_every_state(store, corruptor)
    cli = Cli(store.url)

    def look(ref: Ref) -> None:
        shown = cli.ok("jobs", "show", ref.id)
        assert UNREADABLE in shown
        assert UNREADABLE_TASK in cli.ok("jobs", "list", "--limit", "200")

    await asyncio.to_thread(look, bad[0])  # it runs, as far as anybody knows, and nobody has met it yet
    await store.reclaim(["default"], limit=99, lease=1, worker="w", token=token(), of=["gone"])
    await asyncio.to_thread(look, bad[0])
    await asyncio.to_thread(cli.ok, "jobs", "delete", bad[0].id, "--yes")
    assert "it is dead" in (await asyncio.to_thread(cli, "jobs", "cancel", bad[-1].id)).output
    await asyncio.to_thread(cli.ok, "jobs", "delete", bad[-1].id, "--yes")
    assert await store.get([bad[0], bad[-1]]) == [None, None]


async def test_an_operator_sees_why_an_entry_or_a_worker_cannot_be_read(
    kind: str, open_store: OpenStore, corruptor: Corruptor
) -> None:
    if kind != "sqlite":
        pytest.skip("the command line is the same for all; here its store is a file")
    store = open_store()
    await store.put_entries([NewEntry("nightly", NewJob("", "t"), Schedule.of("@daily"))])
    await store.announce(WorkerInfo("w-1", "h", 1, 0, ("default",), ("t",), 1))
    await corruptor.entry(Ref("default", "nightly"))
    await corruptor.worker("w-1")
    cli = Cli(store.url)
    assert UNREADABLE in await asyncio.to_thread(cli.ok, "periodic", "list")
    assert UNREADABLE in await asyncio.to_thread(cli.ok, "periodic", "show", "nightly")
    assert (await asyncio.to_thread(cli, "periodic", "next", "nightly")).exit_code < 2
    assert "unreadable" in await asyncio.to_thread(cli.ok, "workers")
    await asyncio.to_thread(cli.ok, "periodic", "remove", "nightly")
    assert (await store.entries()).entries == []
