"""A memory store that records enqueued jobs and the ends of attempts, even after the jobs are removed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any, cast

from penstock.core.clock import Clock
from penstock.core.job import AttemptError, Job, NewJob, Ref, State
from penstock.core.unique_rules import replaced_spec
from penstock.stores.contract import Enqueued, EnqueueStatus, QueueInfo, Settled, Settlement, Store, SyncStore
from penstock.stores.memory import MemoryStore

__all__ = ["NothingRuns", "Recorder", "recording"]


#: How long to wait (real ms) for a job that no worker runs: another thread may be about to run it.
_ALONE = 500

EndedJobs = dict[Ref, Job | None]


class NothingRuns(AssertionError):
    """A test waits for the end of a job that no worker runs."""


class Recorder:
    """Jobs enqueued since the last `clear`, and ends of attempts since the last `begin`."""

    def __init__(self) -> None:
        self.enqueued: list[NewJob] = []
        self.ends: Counter[State] = Counter()
        #: (job id, task, error) of every failed attempt.
        self.errors: list[tuple[str, str, AttemptError]] = []
        self._tasks: dict[str, str] = {}
        #: Number of runs in progress: `box.run()`, `box.advance()`, `box.run_all()`.
        self.running = 0
        #: Set at every settlement, on the event loop of the worker.
        self.settled = asyncio.Event()

    def begin(self) -> None:
        """Begin a run on the running event loop, and reset the ends of attempts."""
        self.ends, self.errors, self.settled = Counter(), [], asyncio.Event()

    def took(self, jobs: Sequence[NewJob], answers: Sequence[Enqueued]) -> None:
        for job, answer in zip(jobs, answers, strict=True):
            if answer.status is EnqueueStatus.NEW:
                self.remember(job)
            elif answer.status is EnqueueStatus.REPLACED:
                self.enqueued = [
                    replaced_spec(one, job) if (one.queue, one.id) == (job.queue, answer.id) else one
                    for one in self.enqueued
                ]

    def remember(self, job: NewJob) -> None:
        self.enqueued.append(job)
        self._tasks[job.id] = job.task

    def refuse_alone(self, queues: Sequence[QueueInfo]) -> None:
        """Raise NothingRuns if no worker runs jobs at the moment."""
        if not self.running and not any(info.counts.get(State.RUNNING, 0) for info in queues):
            raise NothingRuns(
                "this job has not ended, and inside inline(app) no job runs by itself: call box.run() first, "
                "or box.advance(...) for a delayed job or a retry; in an event loop await box.arun()"
            )

    def ended(self, settlements: Sequence[Settlement], answers: Sequence[Settled]) -> None:
        for one, answer in zip(settlements, answers, strict=True):
            if answer is not Settled.APPLIED:
                continue
            self.ends[one.transition.state] += 1
            if one.transition.error is not None:
                task = self._tasks.get(one.lease.id, "")
                self.errors.append((one.lease.id, task, one.transition.error))
            for job in one.then:
                self.remember(job)
        self.settled.set()


def recording(recorder: Recorder, clock: Clock) -> Store:
    """A new memory store with this clock, recorded by this recorder."""
    return cast(Store, _Recorded(MemoryStore(clock=clock, exact=True), recorder))


class _Recorded:
    """A memory store whose enqueues and settlements are recorded."""

    def __init__(self, store: MemoryStore, recorder: Recorder) -> None:
        self._store = store
        self._recorder = recorder
        self.sync = cast(SyncStore, _RecordedSync(store.sync, recorder))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        answers = await self._store.enqueue(jobs)
        self._recorder.took(jobs, answers)
        return answers

    async def wait_for_end(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]:
        jobs = await self._store.wait_for_end(refs, timeout=min(timeout, _ALONE))
        if timeout <= _ALONE or all(job is None or job.ended for job in jobs):
            return jobs
        self._recorder.refuse_alone(await self._store.queues())
        return await self._store.wait_for_end(refs, timeout=timeout - _ALONE)

    async def stream_ends(self, refs: Sequence[Ref], *, timeout: int) -> AsyncGenerator[EndedJobs, None]:
        open = set(refs)
        async for some in self._store.stream_ends(refs, timeout=min(timeout, _ALONE)):
            open -= some.keys()
            yield some
        if open and timeout > _ALONE:
            self._recorder.refuse_alone(await self._store.queues())
            async for some in self._store.stream_ends(list(open), timeout=timeout - _ALONE):
                yield some

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        answers = await self._store.settle(settlements)
        self._recorder.ended(settlements, answers)
        return answers


class _RecordedSync:
    def __init__(self, sync: SyncStore, recorder: Recorder) -> None:
        self._sync = sync
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sync, name)

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        answers = self._sync.enqueue(jobs)
        self._recorder.took(jobs, answers)
        return answers

    def wait_for_end(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]:
        jobs = self._sync.wait_for_end(refs, timeout=min(timeout, _ALONE))
        if timeout <= _ALONE or all(job is None or job.ended for job in jobs):
            return jobs
        self._recorder.refuse_alone(self._sync.queues())
        return self._sync.wait_for_end(refs, timeout=timeout - _ALONE)

    def stream_ends(self, refs: Sequence[Ref], *, timeout: int) -> Generator[EndedJobs, None, None]:
        open = set(refs)
        for some in self._sync.stream_ends(refs, timeout=min(timeout, _ALONE)):
            open -= some.keys()
            yield some
        if open and timeout > _ALONE:
            self._recorder.refuse_alone(self._sync.queues())
            yield from self._sync.stream_ends(list(open), timeout=timeout - _ALONE)
