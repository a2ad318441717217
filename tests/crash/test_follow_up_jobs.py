"""A follow-up job is enqueued exactly once, together with the end of its predecessor, despite failures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from penstock.core.job import Job, NewJob, State
from penstock.core.lifecycle import Transition
from penstock.errors import EnqueueUnknown, StoreUnavailable
from penstock.stores.contract import EnqueueStatus, Settled, Settlement, Share, Store
from penstock.verify.crash_points import Boundary, CrashPoints, Point
from tests.crash.conftest import Injection, TrialRunner, pairs
from tests.crash.scenario_run import ShiftedClock
from tests.crash.scenarios import QUEUE
from tests.crash.shared_stores import open_store

pytestmark = pytest.mark.slow

R = TypeVar("R")
_HOUR = 3_600_000


async def again(call: Callable[[], Awaitable[R]]) -> R:
    """The same question until the store has answered."""
    while True:
        try:
            return await call()
        except (StoreUnavailable, EnqueueUnknown):
            pass


async def followed(store: Store) -> None:
    """Somebody who works by hand: one job, and then the one that follows it."""
    (answer,) = await again(lambda: store.enqueue([NewJob("first", "t", queue=QUEUE)]))
    assert answer.status in (EnqueueStatus.NEW, EnqueueStatus.EXISTS)
    for id in ("first", "next"):
        job = await taken(store, id)
        then = (NewJob("next", "t", queue=QUEUE),) if id == "first" else ()
        end = Settlement(job.lease, Transition(State.COMPLETED, keep=_HOUR), then=then)
        (settled,) = await again(lambda end=end: store.settle([end]))  # type: ignore[misc]
        assert settled in (Settled.APPLIED, Settled.STALE)


async def taken(store: Store, token: str) -> Job:
    share = [Share(QUEUE, 1, 1)]
    got = await again(lambda: store.fetch(share, limit=1, lease=_HOUR, worker="hand", token=token))
    (job,) = got.jobs
    assert job.id == token
    return job


async def test_what_follows_is_there_once(runner: TrialRunner) -> None:
    faults = [
        Injection("hand", Point(verb, call, boundary))
        for verb, calls in (("enqueue", 1), ("fetch", 2), ("settle", 2))
        for call in range(1, calls + 1)
        for boundary in (Boundary.BEFORE, Boundary.LOST)
    ]
    for number, injection in enumerate([(), *((one,) for one in faults), *pairs(faults)]):
        (runner.home / str(number)).mkdir()
        observer = open_store(runner.kind, runner.place(number), ShiftedClock())
        points = CrashPoints(observer)
        for one in injection:
            points.at(one.point)
        await followed(points.store)
        assert len(points.struck) == len(injection)
        jobs = (await observer.list_jobs(queue=QUEUE)).jobs
        assert {job.id: job.state for job in jobs} == dict.fromkeys(("first", "next"), State.COMPLETED), (
            injection
        )
        (stats,) = await observer.stats()
        assert (stats.enqueued, stats.processed, stats.failed) == (2, 2, 0), injection
        observer.close()
