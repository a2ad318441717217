"""A store that writes down what it is asked and what it answers; all else passes through."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar, cast

from penstock.errors import StoreFull, StoreReadOnly
from penstock.job import Job, Lease, NewJob, Ref, State
from penstock.lifecycle import Transition, first_state
from penstock.store import Enqueued, Fetched, Settled, Settlement, Share, Store, SyncProducing, Verdict
from penstock.testing.ledger import facts
from penstock.testing.ledger.facts import Fact
from penstock.unique import WHILE_QUEUED, WHILE_RUNNING

__all__ = ["watched"]

T = TypeVar("T")

#: The phases in which a key is held from the enqueue to the end.
_WHILE_OPEN = WHILE_QUEUED | WHILE_RUNNING


class Pen(Protocol):
    """What a watched store writes with."""

    def write_all(self, facts: Iterable[Fact]) -> None: ...


def watched(store: Store, pen: Pen) -> Store:
    """The same store; every job that is offered, leased, settled or called off is written down."""
    return cast(Store, _Watched(store, pen))


class _Watched:
    """The doors of a store with a clerk at each that matters; the others are the store's own."""

    def __init__(self, store: Store, pen: Pen) -> None:
        self._store = store
        self._clerk = _Clerk(pen)
        self.sync = cast(SyncProducing, _WatchedSync(store.sync, self._clerk))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    # producing

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        with self._clerk.enqueue(jobs) as answer:
            return answer(await self._store.enqueue(jobs))

    async def cancel(self, refs: Sequence[Ref], **options: Any) -> list[State | None]:
        with self._clerk.operate("cancel", refs) as answer:
            return answer(await self._store.cancel(refs, **options))

    # consuming

    async def fetch(self, queues: Sequence[Share], **options: Any) -> Fetched:
        return self._clerk.leased("fetch", await self._store.fetch(queues, **options))

    async def reclaim(self, queues: Sequence[str], **options: Any) -> Fetched:
        return self._clerk.leased("reclaim", await self._store.reclaim(queues, **options))

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        with self._clerk.settle(settlements) as answer:
            return answer(await self._store.settle(settlements))

    # operating

    async def retry(self, refs: Sequence[Ref]) -> list[State | None]:
        with self._clerk.operate("retry", refs) as answer:
            return answer(await self._store.retry(refs))

    async def reschedule(
        self, refs: Sequence[Ref], *, delay: int = 0, run_at: int | None = None
    ) -> list[State | None]:
        with self._clerk.operate("reschedule", refs, _due(delay, run_at)) as answer:
            return answer(await self._store.reschedule(refs, delay=delay, run_at=run_at))

    async def delete(self, refs: Sequence[Ref]) -> list[State | None]:
        with self._clerk.operate("delete", refs) as answer:
            return answer(await self._store.delete(refs))

    async def purge(self, queue: str, states: Sequence[State], **options: Any) -> int:
        with self._clerk.operate("purge", [Ref(queue, "*")]) as answer:
            gone = await self._store.purge(queue, states, **options)
            answer([str(gone)])
            return gone


class _WatchedSync:
    """The same clerk at the doors for callers without an event loop."""

    def __init__(self, sync: SyncProducing, clerk: _Clerk) -> None:
        self._sync = sync
        self._clerk = clerk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sync, name)

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        with self._clerk.enqueue(jobs) as answer:
            return answer(self._sync.enqueue(jobs))

    def cancel(self, refs: Sequence[Ref], **options: Any) -> list[State | None]:
        with self._clerk.operate("cancel", refs) as answer:
            return answer(self._sync.cancel(refs, **options))

    def retry(self, refs: Sequence[Ref]) -> list[State | None]:
        with self._clerk.operate("retry", refs) as answer:
            return answer(self._sync.retry(refs))

    def reschedule(
        self, refs: Sequence[Ref], *, delay: int = 0, run_at: int | None = None
    ) -> list[State | None]:
        with self._clerk.operate("reschedule", refs, _due(delay, run_at)) as answer:
            return answer(self._sync.reschedule(refs, delay=delay, run_at=run_at))


class _Answer(Generic[T]):
    """Takes the store's answers and hands them on; says afterwards whether there were any."""

    def __init__(self) -> None:
        self.given: list[T] | None = None

    def __call__(self, answers: list[T]) -> list[T]:
        self.given = answers
        return answers


class _Clerk:
    """Writes the question, then the answer, or that there was none."""

    def __init__(self, pen: Pen) -> None:
        self._pen = pen

    @contextmanager
    def enqueue(self, jobs: Sequence[NewJob]) -> Iterator[_Answer[Enqueued]]:
        before = _now()
        self._pen.write_all([offered(job) for job in jobs])
        answer, otherwise = _Answer[Enqueued](), "unknown"
        try:
            yield answer
        except (StoreFull, StoreReadOnly):  # these say that nothing was written
            otherwise = "refused"
            raise
        finally:
            now = _now()
            if answer.given is None:
                told = [facts.Answered(*now, job.queue, job.id, otherwise) for job in jobs]
            else:
                told = [
                    facts.Answered(*now, job.queue, job.id, one.verdict.value, _holder(job, one))
                    for job, one in zip(jobs, answer.given, strict=True)
                ]
                for job, one in zip(jobs, answer.given, strict=True):
                    if one.verdict is Verdict.REPLACED and job.unique and job.unique.replaces_run_at:
                        _, due = first_state(job, before[0])
                        moved = (job.queue, one.id, "reschedule")
                        self._pen.write_all(
                            [facts.Asked(*before, *moved, due), facts.Told(*now, *moved, "queued")]
                        )
            self._pen.write_all(told)

    @contextmanager
    def settle(self, settlements: Sequence[Settlement]) -> Iterator[_Answer[Settled]]:
        now = _now()
        self._pen.write_all([_settling(now, one.lease, one.transition) for one in settlements])
        self._pen.write_all([offered(job, follows=True) for one in settlements for job in one.then])
        answer = _Answer[Settled]()
        try:
            yield answer
        finally:
            self._pen.write_all(_settled(settlements, answer.given))

    @contextmanager
    def operate(self, verb: str, refs: Sequence[Ref], due: int = 0) -> Iterator[_Answer[Any]]:
        now = _now()
        self._pen.write_all([facts.Asked(*now, ref.queue, ref.id, verb, due) for ref in refs])
        answer = _Answer[Any]()
        try:
            yield answer
        finally:
            now = _now()
            states = ["unknown"] * len(refs) if answer.given is None else [s or "" for s in answer.given]
            self._pen.write_all(
                [
                    facts.Told(*now, ref.queue, ref.id, verb, str(state))
                    for ref, state in zip(refs, states, strict=True)
                ]
            )

    def leased(self, by: str, fetched: Fetched) -> Fetched:
        now = _now()
        self._pen.write_all([_leased(now, job, by) for job in fetched.jobs])
        return fetched


def offered(job: NewJob, *, follows: bool = False) -> facts.Offered:
    """The fact of offering this job now. Its due instant is a lower bound: the store looks later."""
    at, mono, pid = _now()
    _, due = first_state(job, at)
    ends = [e for e in (job.expires_at, None if job.expires_in is None else at + job.expires_in) if e]
    until = None
    unique = job.unique
    if unique is not None and unique.states & _WHILE_OPEN != _WHILE_OPEN:
        unique = None  # not held from the enqueue to the end
    if unique is not None and unique.period is not None:
        until = at + unique.period
    return facts.Offered(
        at,
        mono,
        pid,
        job.queue,
        job.id,
        task=job.task,
        due=due,
        delayed=due > at,
        max_attempts=job.max_attempts,
        at_most_once=job.at_most_once,
        expires=min(ends, default=None),
        retention=job.retention,
        unique=None if unique is None else unique.key,
        unique_until=until,
        follows=follows,
    )


def _holder(job: NewJob, answer: Enqueued) -> str:
    return "" if answer.id == job.id else answer.id


def _leased(now: tuple[int, int, int], job: Job, by: str) -> facts.Leased:
    return facts.Leased(*now, job.queue, job.id, job.token or "", job.worker or "", job.attempt, by)


def _settling(now: tuple[int, int, int], lease: Lease | Ref, to: Transition) -> facts.Settling:
    return facts.Settling(
        *now,
        lease.queue,
        lease.id,
        token=_token(lease),
        state=to.state.value,
        delay=to.delay,
        charge=to.charge,
        lost=to.lost,
        keep=to.keep,
        error="" if to.error is None else to.error.kind,
    )


def _settled(settlements: Sequence[Settlement], answers: Sequence[Settled] | None) -> list[Fact]:
    now = _now()
    told: list[Fact] = []
    for i, one in enumerate(settlements):
        lease = one.lease
        answer = "unknown" if answers is None else answers[i].value
        told.append(facts.Settled(*now, lease.queue, lease.id, _token(lease), answer))
        if answer == "applied":
            told += [facts.Answered(*now, job.queue, job.id, "follows") for job in one.then]
    return told


def _token(lease: Lease | Ref) -> str:
    return lease.token if isinstance(lease, Lease) else ""


def _due(delay: int, run_at: int | None) -> int:
    return run_at if run_at is not None else _now()[0] + delay


def _now() -> tuple[int, int, int]:
    return time.time_ns() // 1_000_000, time.monotonic_ns(), os.getpid()
