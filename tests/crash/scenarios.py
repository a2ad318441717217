"""Scenarios of jobs: who enqueues a job, what it does, and which end it must have."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.app.app import App
from penstock.app.attempt import current_job
from penstock.core.job import Job, State
from penstock.core.lifecycle import Transition
from penstock.core.relations import Batch
from penstock.errors import EnqueueUnknown, JobExists, StoreUnavailable
from penstock.stores.contract import EnqueueStatus, Settled, Settlement, Share, Store
from penstock.verify.ledger.story import Run

__all__ = ["SCENARIOS", "Producer", "Scenario", "left_behind"]

#: The queue of them all.
QUEUE = "scenario"
_WEEK = 7 * 86_400_000


class Producer:
    """Enqueues as the documentation says: with ids of its own, and again until the store has answered."""

    def __init__(self, app: App) -> None:
        self.app = app
        #: What it was told that was not the answer.
        self.errors: list[Exception] = []

    async def enqueue_until_stored(self, task: str, id: str, *args: Any, **options: Any) -> None:
        """This job is stored, once, when this returns."""
        using = self.app.tasks[task].using(id=id, **options)

        async def enqueue() -> None:
            with contextlib.suppress(JobExists):
                await using.aenqueue(*args)

        await self.again(enqueue)

    async def again(self, call: Callable[[], Awaitable[object]]) -> None:
        """Call it until the store has answered."""
        while True:
            try:
                await call()
                return
            except (EnqueueUnknown, StoreUnavailable) as error:
                self.errors.append(error)
                await asyncio.sleep(0.001)


@dataclass(frozen=True)
class Scenario:
    """One story. `runs`: how often each job's function begins if all goes well."""

    name: str
    tasks: Callable[[App], None]
    produce: Callable[[Producer], Awaitable[None]]
    runs: Mapping[str, int]
    #: How many ms the store's clock is ahead when the worker begins.
    leap: int = 0
    #: Workers are there before the first job is.
    worker_first: bool = False
    #: All jobs of the queue are ones that a producer has offered.
    counted: bool = True
    ends: State = State.COMPLETED
    #: What else must be so, of the runs in their order and of the jobs that are there.
    also: Callable[[list[tuple[str, Run]], Mapping[str, Job]], None] = field(default=lambda runs, jobs: None)


# ── a job that fails once, with a unique key, after a delay ──────────────────────────────────────


def _wavering(app: App) -> None:
    @app.task(name="waver", queue=QUEUE, max_attempts=2, retry="1ms", retention="1h")
    async def waver() -> str:
        if current_job().attempt == 1:
            raise OSError("not yet")
        return "done"


async def _waver(producer: Producer) -> None:
    await producer.enqueue_until_stored("waver", "first", delay="2ms", unique_key="key")
    await producer.enqueue_until_stored("waver", "same", unique_key="key")


def _only_first(runs: list[tuple[str, Run]], jobs: Mapping[str, Job]) -> None:
    assert "same" not in jobs, "the key was held"


# ── at most once ─────────────────────────────────────────────────────────────────────────────────


def _once(app: App) -> None:
    @app.task(name="pay", queue=QUEUE, delivery="at-most-once", retention="1h")
    async def pay() -> str:
        await asyncio.sleep(0)
        return "paid"


async def _pay(producer: Producer) -> None:
    await producer.enqueue_until_stored("pay", "payment")


# ── a batch of two, and one that waits in vain for company ───────────────────────────────────────


def _collecting(app: App) -> None:
    batch = Batch(max_size=2, max_wait="3ms")

    @app.task(name="index", queue=QUEUE, batch=batch, max_attempts=5, retry="1ms", retention="1h")
    async def index(docs: list[int]) -> int:
        return len(docs)


async def _collect(producer: Producer) -> None:
    for n in range(3):
        await producer.enqueue_until_stored("index", f"doc-{n}", n)


def _one_batch_each(runs: list[tuple[str, Run]], jobs: Mapping[str, Job]) -> None:
    batches = [job for job in jobs.values() if job.members]
    members = sorted(id for job in batches for id in job.members)
    assert members == ["doc-0", "doc-1", "doc-2"], "each is in one batch"
    assert len(batches) == 2


# ── one after the other, also through a retry ────────────────────────────────────────────────────


def _in_order(app: App) -> None:
    @app.task(
        name="command",
        queue=QUEUE,
        concurrency_key="device",
        ordered=True,
        max_attempts=9,
        retry="1ms",
        retention="1h",
    )
    async def command(device: str, fails: bool) -> None:
        await asyncio.sleep(0)
        if fails and current_job().attempt == 1:
            raise OSError("not yet")


async def _command(producer: Producer) -> None:
    for n in range(3):
        await producer.enqueue_until_stored("command", f"step-{n}", "a", n == 1)


def _order_kept(runs: list[tuple[str, Run]], jobs: Mapping[str, Job]) -> None:
    ids = [id for id, _ in runs]
    assert ids == sorted(ids), f"in the order of their enqueue: {ids}"
    _never_beside(runs, jobs)


def _never_beside(runs: list[tuple[str, Run]], jobs: Mapping[str, Job]) -> None:
    for (id, one), (other, after) in itertools.pairwise(runs):
        ended = one.end is None or one.end.mono <= after.start.mono  # None: it was killed
        assert ended, f"{other} began beside {id}"


# ── one slot in all, and tenants who take turns ──────────────────────────────────────────────────


def _in_fair_order(app: App) -> None:
    @app.task(name="report", queue=QUEUE, fair_by="tenant", max_attempts=9, retry="1ms", retention="1h")
    async def report(tenant: str) -> None:
        await asyncio.sleep(0)


async def _report(producer: Producer) -> None:
    await producer.again(lambda: producer.app.queue(QUEUE).asettings(max_running=1))
    for n, tenant in enumerate("aab"):
        await producer.enqueue_until_stored("report", f"{tenant}-{n}", tenant)


# ── a periodic entry ─────────────────────────────────────────────────────────────────────────────


def _ticking(app: App) -> None:
    @app.periodic(every="7d", name="weekly", overlap="skip")
    @app.task(name="poll", queue=QUEUE, max_attempts=9, retry="1ms", retention="1h")
    async def poll() -> None: ...


async def _tick(producer: Producer) -> None:
    entries = list(producer.app.periodic_entries.values())
    await producer.again(lambda: producer.app.store.put_entries(entries))


def _one_tick(runs: list[tuple[str, Run]], jobs: Mapping[str, Job]) -> None:
    assert len(jobs) == 1, "one instant, one job"


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("retried", _wavering, _waver, {"first": 2}, also=_only_first),
        Scenario("at most once", _once, _pay, {"payment": 1}, worker_first=True),
        Scenario(
            "batched",
            _collecting,
            _collect,
            {"doc-0.batch": 1, "doc-2.batch": 1},
            counted=False,
            also=_one_batch_each,
        ),
        Scenario(
            "in order",
            _in_order,
            _command,
            {"step-0": 1, "step-1": 2, "step-2": 1},
            worker_first=True,
            also=_order_kept,
        ),
        Scenario(
            "in fair order", _in_fair_order, _report, {"a-0": 1, "a-1": 1, "b-2": 1}, also=_never_beside
        ),
        Scenario("periodic", _ticking, _tick, {"weekly@": 1}, leap=_WEEK, counted=False, also=_one_tick),
    )
}


async def left_behind(store: Store, jobs: Mapping[str, Job]) -> None:
    """Keys, partitions, tenants, slots and batches of these jobs are free: another such job starts."""
    assert await store.batches() == [], "a batch is still collecting"
    for spec in {job.spec.task: job.spec for job in jobs.values() if not job.members}.values():
        id = f"{spec.id}-again"
        again = msgspec.structs.replace(spec, id=id, delay=0, run_at=None, batch_terms=None)
        (answer,) = await store.enqueue([again])
        assert answer.status is EnqueueStatus.NEW, f"its key is still held, by {answer.id}"
        (job,) = await _fetched(store, id)
        done = Settlement(job.lease, Transition(State.COMPLETED))
        assert await store.settle([done]) == [Settled.APPLIED]


async def _fetched(store: Store, id: str) -> list[Job]:
    """A worker that has just ended may have been handed it: then it comes back at once."""
    share = Share(QUEUE, 1, 1, free=1)
    for _ in range(500):
        got = await store.fetch([share], limit=1, lease=60_000, worker="after", token=id)
        if got.jobs:
            assert [job.id for job in got.jobs] == [id]
            return got.jobs
        await asyncio.sleep(0.004)
    raise AssertionError(f"{id}: its partition, its tenant, or the slot is still taken")
