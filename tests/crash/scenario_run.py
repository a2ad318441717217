"""Runs a scenario on a store with faults at given crash points, and checks the result."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from penstock.app.app import App
from penstock.config import Config, load
from penstock.core.clock import SystemClock
from penstock.core.job import QUEUED, Job, State
from penstock.errors import EnqueueUnknown, StoreUnavailable
from penstock.stores.contract import Store
from penstock.stores.memory.store import _runners
from penstock.verify.crash_points import Boundary, CrashPoints, Point
from penstock.verify.ledger import Ledger
from penstock.verify.ledger.check import snapshot, verdict_on
from penstock.verify.ledger.history import History, read
from penstock.worker import Worker
from tests.crash.scenarios import QUEUE, Producer, Scenario, left_behind
from tests.crash.shared_stores import open_store

__all__ = ["LEASE", "Impact", "RunningWorker", "ShiftedClock", "Trial", "config", "settled", "until"]

#: Less than a lease: what only its end brings back has been left behind (s).
PATIENCE = 60.0
LEASE = 120_000


class ShiftedClock(SystemClock):
    """The machine's clock, which a test can move on."""

    def __init__(self, ahead: int = 0) -> None:
        self.ahead = ahead

    def now(self) -> int:
        return super().now() + self.ahead

    def lease_now(self) -> int:
        return super().lease_now() + self.ahead


@functools.cache
def config() -> Config:
    """A configuration with leases that outlast every wait, and shorter intervals than in production."""
    knobs = {
        "lease": f"{LEASE}ms",
        "heartbeat": "5s",  # also the pause of a reclaimer that was stopped itself
        "drain_timeout": "2s",
        "reclaim_every": "150ms",
        "safety_poll": "1s",
        "prune_every": "10m",
    }
    return load(knobs, env={}, file=Path("/dev/null")).config


class RunningWorker(NamedTuple):
    """A worker, and its run."""

    worker: Worker
    run: asyncio.Task[None]


class Impact(enum.Enum):
    """What may differ from the scenario without faults."""

    NOTHING = enum.auto()
    RUNS = enum.auto()  # attempts were interrupted, and are made again without a charge
    ATTEMPTS = enum.auto()  # attempts were lost, and count


@dataclass
class Trial:
    """One run of a scenario on one store, with its processes and their crash points. `close` it."""

    scenario: Scenario
    kind: str
    place: str
    folder: Path
    clock: ShiftedClock = field(default_factory=ShiftedClock)
    #: The points of each who took part.
    points: dict[str, CrashPoints] = field(default_factory=dict)
    impact: Impact = Impact.NOTHING
    #: Where the producer's calls fail.
    faults: list[Point] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._opened: list[Store] = []
        self._apps: dict[str, App] = {}
        self.ledger = Ledger(self.folder / "ledger")
        self.observer = self._open()
        self.producer = Producer(self.app("producer"))

    def app(self, who: str) -> App:
        """The app of one process, with points of its own on the way to the store."""
        if who in self._apps:
            return self._apps[who]
        app = App("memory://")
        self.scenario.tasks(app)
        app.swap_store(self._open())  # the app opens no store of its own, which nobody would use
        self.ledger.watch(app)
        points = CrashPoints(app.store)
        app.use_store(points.store)
        self.points[who] = points
        self._apps[who] = app
        return app

    def close(self) -> None:
        for app in self._apps.values():
            app.events.close()
        for store in self._opened:
            store.close()
        self.ledger.close()
        _runners.pop(self.place, None)  # of a store in memory: hundreds of them would stay

    def _open(self) -> Store:
        self._opened.append(open_store(self.kind, self.place, self.clock))
        return self._opened[-1]

    # ── what happens ─────────────────────────────────────────────────────────────────────────────

    async def produce(self) -> None:
        """All of it; whoever is cancelled meanwhile comes back, as a web request that is sent again."""
        while True:
            self.producing = asyncio.create_task(self.scenario.produce(self.producer))
            await asyncio.wait({self.producing})
            if not self.producing.cancelled():
                break
        self.producing.result()
        self.clock.ahead += self.scenario.leap

    @contextlib.asynccontextmanager
    async def worker(self, who: str) -> AsyncIterator[None]:
        """A worker, until the block ends; then it drains."""
        worker = Worker(self.app(who), [QUEUE], concurrency=5, config=config())
        run = asyncio.create_task(worker.run())
        self.hand = RunningWorker(worker, run)
        try:
            yield
        finally:
            worker.stop()
            async with asyncio.timeout(PATIENCE):
                await asyncio.wait({run})
            if not run.cancelled():
                run.result()

    async def over(self) -> None:
        """Until all has ended that was enqueued. A server that is slow to answer is asked again."""
        async with asyncio.timeout(PATIENCE):
            while True:
                with contextlib.suppress(StoreUnavailable):
                    if await settled(self.observer):
                        return
                await asyncio.sleep(0.005)

    async def live(self) -> None:
        """Run the whole scenario, with one producer and one worker."""
        if not self.scenario.worker_first:
            await self.produce()
        async with self.worker("worker"):
            await self.and_produce()
            await self.over()

    async def live_on(self, impact: asyncio.Event, *, leap: int) -> None:
        """As above, but the first worker ends at its fault, and `leap` ms later a second worker continues."""
        if not self.scenario.worker_first:
            await self.produce()
        async with self.worker("worker"):
            await self.and_produce(impact)
            ended = asyncio.create_task(self.over())
            struck = asyncio.create_task(impact.wait())
            await asyncio.wait({ended, struck}, return_when=asyncio.FIRST_COMPLETED)
            for one in (ended, struck):
                one.cancel()
        self.clock.ahead += leap
        async with self.worker("heir"):
            await self.over()

    async def and_produce(self, impact: asyncio.Event | None = None) -> None:
        """Where the jobs come to a worker that waits for them."""
        if self.scenario.worker_first:
            idle = self.points["worker"]
            await until(lambda: idle.calls("wait") > 0 or (impact is not None and impact.is_set()))
            await self.produce()

    # ── what came of it ──────────────────────────────────────────────────────────────────────────

    async def check(self) -> None:
        """Every promise, by the ledger and by the store; and that nothing is left behind."""
        history = read(self.ledger.directory)
        jobs = {job.id: job for job in await all_jobs(self.observer)}
        seen = await snapshot(self.observer, history)
        verdict_on(history, seen, exclusive=self.scenario.counted, slack=self.clock.ahead).require()
        self._ended(history, jobs)
        self._told()
        await left_behind(self.observer, jobs)

    def _ended(self, history: History, jobs: dict[str, Job]) -> None:
        runs = sorted(
            ((story.ref.id, run) for story in history.stories for run in story.runs),
            key=lambda pair: pair[1].start.mono,
        )
        for id, times in self.scenario.runs.items():
            (job,) = [job for job in jobs.values() if job.id.startswith(id)]
            ends = {self.scenario.ends}
            if self.impact is Impact.ATTEMPTS or (self.impact is Impact.RUNS and job.spec.at_most_once):
                ends.add(State.DEAD)
            assert job.state in ends, f"{id} is {job.state.value}: {job.errors} {job.reason}"
            ran = sum(1 for one, _ in runs if one == job.id)
            assert self.impact is not Impact.NOTHING or ran == times, f"{id} ran {ran} times, not {times}"
        self.scenario.also(runs, jobs)

    def _told(self) -> None:
        """Each producer was told of each fault: that nothing is stored, or that nobody knows.

        A server that is slow to answer may have cost it further calls.
        """
        failed = [point for point in self.points["producer"].struck if point in self.faults]
        expected = [
            EnqueueUnknown
            if point.boundary is Boundary.LOST and point.verb == "enqueue"
            else StoreUnavailable
            for point in failed
        ]
        slow = self.kind.startswith("redis")
        told = [error for error in self.producer.errors if not slow or "a test " in str(error)]
        assert [type(error) for error in told] == expected, self.producer.errors


async def settled(store: Store) -> bool:
    """Something has been enqueued, and all of it has ended."""
    stats = await store.queues()
    counts = [info.counts for info in stats if info.name == QUEUE]
    busy = QUEUED | {State.RUNNING}
    return bool(counts and any(counts[0].values())) and not any(counts[0].get(state) for state in busy)


async def all_jobs(store: Store) -> list[Job]:
    return (await store.list_jobs(queue=QUEUE, limit=100)).jobs


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what a worker does, of which no event tells."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)
