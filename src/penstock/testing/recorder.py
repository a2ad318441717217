"""A store in memory that remembers what was enqueued and how attempts ended, also after they are gone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

from penstock.clock import Clock
from penstock.holding import replaced_spec
from penstock.job import AttemptError, NewJob, State
from penstock.store import Enqueued, Settled, Settlement, Store, SyncProducing, Verdict
from penstock.stores.memory import MemoryStore

__all__ = ["Recorder", "recording"]


class Recorder:
    """What was enqueued since the last `clear`, and how attempts ended since the last `begin`."""

    def __init__(self) -> None:
        self.enqueued: list[NewJob] = []
        self.ends: Counter[State] = Counter()
        #: (job id, task, error) of every failed attempt.
        self.errors: list[tuple[str, str, AttemptError]] = []
        self._tasks: dict[str, str] = {}
        #: Set at every settlement, on the event loop that settles.
        self.settled = asyncio.Event()

    def begin(self) -> None:
        """A new run, on the running event loop: how attempts ended counts from here."""
        self.ends, self.errors, self.settled = Counter(), [], asyncio.Event()

    def took(self, jobs: Sequence[NewJob], answers: Sequence[Enqueued]) -> None:
        for job, answer in zip(jobs, answers, strict=True):
            if answer.verdict is Verdict.NEW:
                self.remember(job)
            elif answer.verdict is Verdict.REPLACED:
                self.enqueued = [
                    replaced_spec(one, job) if (one.queue, one.id) == (job.queue, answer.id) else one
                    for one in self.enqueued
                ]

    def remember(self, job: NewJob) -> None:
        self.enqueued.append(job)
        self._tasks[job.id] = job.task

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
    """A new store in memory that goes by this clock and tells this recorder."""
    return cast(Store, _Recorded(MemoryStore(clock=clock), recorder))


class _Recorded:
    """The memory store; two of its doors are watched."""

    def __init__(self, store: MemoryStore, recorder: Recorder) -> None:
        self._store = store
        self._recorder = recorder
        self.sync = cast(SyncProducing, _RecordedSync(store.sync, recorder))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        answers = await self._store.enqueue(jobs)
        self._recorder.took(jobs, answers)
        return answers

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        answers = await self._store.settle(settlements)
        self._recorder.ended(settlements, answers)
        return answers


class _RecordedSync:
    def __init__(self, sync: SyncProducing, recorder: Recorder) -> None:
        self._sync = sync
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sync, name)

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        answers = self._sync.enqueue(jobs)
        self._recorder.took(jobs, answers)
        return answers
