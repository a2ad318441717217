"""A wrapper around a store that records its calls and answers in a ledger."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, cast

from msgspec import UNSET
from msgspec.structs import replace

from penstock.core.errors import StoreFull, StoreReadOnly
from penstock.core.job import NewJob, Ref, State
from penstock.core.limits import LimitChange
from penstock.stores.contract import (
    Enqueued,
    EnqueueStatus,
    Fetched,
    OnDue,
    QueueInfo,
    Replacement,
    Settled,
    Settlement,
    Share,
    Store,
    SyncStore,
    Tick,
    TickResult,
    Wake,
    WorkerOffer,
)
from penstock.verify.ledger import facts
from penstock.verify.ledger.recording import store_calls
from penstock.verify.ledger.recording.change_calls import ChangeVerbs
from penstock.verify.ledger.recording.fact_writer import FactWriter
from penstock.verify.ledger.recording.flow_calls import FlowCallRecorder, FlowVerbs, SyncFlowVerbs
from penstock.verify.ledger.recording.store_calls import timestamp

__all__ = ["recorded_store"]

T = TypeVar("T")


#: How many offered tokens are remembered; a worker has one at a time.
_OFFERS = 64


def recorded_store(store: Store, writer: FactWriter) -> Store:
    """A wrapper that records every enqueue, lease, settlement and operation of this store."""
    return cast(Store, _RecordedStore(store, writer))


class _RecordedStore(FlowVerbs, ChangeVerbs):
    """A store whose recorded verbs are below; all others are passed to the wrapped store."""

    def __init__(self, store: Store, writer: FactWriter) -> None:
        self._store = store
        self._writer = writer
        self._recorder = self._operations = _CallRecorder(writer)
        self._flow_recorder = FlowCallRecorder(writer)
        self.sync = cast(SyncStore, _RecordedSyncStore(store.sync, self._recorder, self._flow_recorder))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def in_namespace(self, namespace: str) -> Store:
        return recorded_store(self._store.in_namespace(namespace), self._writer)

    # producing

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        with self._recorder.enqueue(jobs) as answer:
            return answer(await self._store.enqueue(jobs))

    async def cancel(self, refs: Sequence[Ref], **options: Any) -> list[State | None]:
        with self._recorder.operate("cancel", refs) as answer:
            return answer(await self._store.cancel(refs, **options))

    # consuming

    async def fetch(self, queues: Sequence[Share], **options: Any) -> Fetched:
        sent = time.monotonic_ns()
        fetched = await self._store.fetch(queues, **options)
        offered = self._recorder.offered.get(options["token"], 0)
        return self._recorder.leased("fetch", fetched, sent, options["lease"], offered)

    async def reclaim(self, queues: Sequence[str], **options: Any) -> Fetched:
        sent = time.monotonic_ns()
        fetched = await self._store.reclaim(queues, **options)
        return self._recorder.leased("reclaim", fetched, sent, options["lease"])

    async def wait(
        self,
        queues: Sequence[str],
        *,
        timeout: int,
        offer: WorkerOffer | None = None,
        parked: Sequence[str] = (),
        on_due: OnDue | None = None,
    ) -> Wake:
        seen = None if offer is None else self._recorder.recorded_offer(offer)
        return await self._store.wait(queues, timeout=timeout, offer=seen, parked=parked, on_due=on_due)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        with self._recorder.settle(settlements) as answer:
            return answer(await self._store.settle(settlements))

    # operating

    async def retry(self, refs: Sequence[Ref], **options: Any) -> list[State | None]:
        with self._recorder.operate("retry", refs) as answer:
            return answer(await self._store.retry(refs, **options))

    async def reschedule(
        self, refs: Sequence[Ref], *, delay: int = 0, run_at: int | None = None
    ) -> list[State | None]:
        with self._recorder.operate("reschedule", refs, _due(delay, run_at)) as answer:
            return answer(await self._store.reschedule(refs, delay=delay, run_at=run_at))

    async def delete(self, refs: Sequence[Ref], **options: Any) -> list[State | None]:
        with self._recorder.operate("delete", refs) as answer:
            return answer(await self._store.delete(refs, **options))

    async def replace_jobs(self, replacements: Sequence[Replacement]) -> list[Enqueued]:
        old = [one.old for one in replacements]
        with (
            self._recorder.enqueue([one.new for one in replacements]) as answer,
            self._recorder.operate("delete", old) as removed,
        ):
            answers = answer(await self._store.replace_jobs(replacements))
            removed(["unknown" if one.status is EnqueueStatus.NEW else None for one in answers])
            return answers

    async def purge(self, queue: str, states: Sequence[State], **options: Any) -> int:
        with self._recorder.operate("purge", [Ref(queue, "*")]) as answer:
            gone = await self._store.purge(queue, states, **options)
            answer([str(gone)])
            return gone

    async def settings(self, queue: str, **options: Any) -> QueueInfo:
        with self._recorder.limit(queue, options.get("limits")):
            return await self._store.settings(queue, **options)

    async def tick(self, ticks: Sequence[Tick]) -> list[TickResult]:
        with self._recorder.tick(ticks) as answer:
            return answer(await self._store.tick(ticks))


class _RecordedSyncStore(SyncFlowVerbs):
    """The synchronous verbs of a recorded store."""

    def __init__(self, sync: SyncStore, recorder: _CallRecorder, flow_recorder: FlowCallRecorder) -> None:
        self._sync = sync
        self._recorder = recorder
        self._flow_recorder = flow_recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sync, name)

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        with self._recorder.enqueue(jobs) as answer:
            return answer(self._sync.enqueue(jobs))

    def cancel(self, refs: Sequence[Ref], **options: Any) -> list[State | None]:
        with self._recorder.operate("cancel", refs) as answer:
            return answer(self._sync.cancel(refs, **options))

    def retry(self, refs: Sequence[Ref], **options: Any) -> list[State | None]:
        with self._recorder.operate("retry", refs) as answer:
            return answer(self._sync.retry(refs, **options))

    def reschedule(
        self, refs: Sequence[Ref], *, delay: int = 0, run_at: int | None = None
    ) -> list[State | None]:
        with self._recorder.operate("reschedule", refs, _due(delay, run_at)) as answer:
            return answer(self._sync.reschedule(refs, delay=delay, run_at=run_at))

    def delete(self, refs: Sequence[Ref], **options: Any) -> list[State | None]:
        with self._recorder.operate("delete", refs) as answer:
            return answer(self._sync.delete(refs, **options))

    def settings(self, queue: str, **options: Any) -> QueueInfo:
        with self._recorder.limit(queue, options.get("limits")):
            return self._sync.settings(queue, **options)


class _CapturedAnswer(Generic[T]):
    """Keeps the store's answers, and returns them unchanged; `given` is None if there was no answer."""

    def __init__(self) -> None:
        self.given: list[T] | None = None

    def __call__(self, answers: list[T]) -> list[T]:
        self.given = answers
        return answers


class _CallRecorder:
    """Records each call, then its answer, or that no answer came."""

    def __init__(self, writer: FactWriter) -> None:
        self._writer = writer
        #: When each recent token was first offered (mono); the next fetch uses the same token.
        self.offered: dict[str, int] = {}

    @contextmanager
    def enqueue(self, jobs: Sequence[NewJob]) -> Iterator[_CapturedAnswer[Enqueued]]:
        before = timestamp()
        self_recorded = self._writer.self_recorded
        self._writer.write_all([store_calls.offered(job, self_recorded) for job in jobs])
        answer, otherwise = _CapturedAnswer[Enqueued](), "unknown"
        try:
            yield answer
        except (StoreFull, StoreReadOnly):  # these errors guarantee that nothing was written
            otherwise = "refused"
            raise
        finally:
            now = timestamp()
            if answer.given is None:
                told = [facts.Answered(*now, job.queue, job.id, otherwise) for job in jobs]
            else:
                pairs = list(zip(jobs, answer.given, strict=True))
                for job, one in pairs:
                    if one.status is EnqueueStatus.REPLACED and job.unique and job.unique.replaces_run_at:
                        moved = (job.queue, one.id, "reschedule")
                        due = store_calls.start_of(job, before[0])
                        self._writer.write_all(
                            [
                                facts.OperationAsked(*before, *moved, due),
                                facts.OperationAnswered(*now, *moved, "queued"),
                            ]
                        )
                told = [store_calls.answered(now, job, one) for job, one in pairs]
            self._writer.write_all(told)

    @contextmanager
    def settle(self, settlements: Sequence[Settlement]) -> Iterator[_CapturedAnswer[Settled]]:
        now = timestamp()
        self._writer.write_all([store_calls.settling(now, one.lease, one.transition) for one in settlements])
        self._writer.write_all(
            [
                store_calls.offered(job, self._writer.self_recorded, follows=True)
                for one in settlements
                for job in one.then
            ]
        )
        answer = _CapturedAnswer[Settled]()
        try:
            yield answer
        finally:
            self._writer.write_all(store_calls.settled(settlements, answer.given))

    @contextmanager
    def operate(
        self, verb: str, refs: Sequence[Ref], due: int = 0, values: Sequence[str] = ()
    ) -> Iterator[_CapturedAnswer[Any]]:
        now = timestamp()
        pairs = zip(refs, values or [""] * len(refs), strict=True)
        self._writer.write_all(
            [facts.OperationAsked(*now, ref.queue, ref.id, verb, due, value) for ref, value in pairs]
        )
        answer = _CapturedAnswer[Any]()
        try:
            yield answer
        finally:
            now = timestamp()
            states = ["unknown"] * len(refs) if answer.given is None else [s or "" for s in answer.given]
            self._writer.write_all(
                [
                    facts.OperationAnswered(*now, ref.queue, ref.id, verb, str(state))
                    for ref, state in zip(refs, states, strict=True)
                ]
            )

    @contextmanager
    def limit(self, queue: str, change: LimitChange | None) -> Iterator[None]:
        """Record a change of `max_running`. A call that raises may have been applied or not."""
        if change is None or change.max_running is UNSET:
            yield
            return
        self._writer.write_all([facts.Limited(*timestamp(), queue, change.max_running)])
        yield
        self._writer.write_all([facts.Limited(*timestamp(), queue, change.max_running, told=True)])

    @contextmanager
    def tick(self, ticks: Sequence[Tick]) -> Iterator[_CapturedAnswer[TickResult]]:
        now = timestamp()
        self_recorded = self._writer.self_recorded
        self._writer.write_all(
            [fact for tick in ticks for fact in store_calls.ticking(now, tick, self_recorded)]
        )
        answer = _CapturedAnswer[TickResult]()
        try:
            yield answer
        finally:
            now = timestamp()
            given = [None] * len(ticks) if answer.given is None else answer.given
            pairs = zip(ticks, given, strict=True)
            self._writer.write_all(
                [fact for tick, one in pairs for fact in store_calls.ticked(now, tick, one)]
            )

    def leased(self, by: str, fetched: Fetched, sent: int, lease: int, offered: int = 0) -> Fetched:
        now = timestamp()
        self._writer.write_all(
            [store_calls.leased(now, job, by, sent, lease, offered) for job in fetched.jobs]
        )
        return fetched

    def recorded_offer(self, offer: WorkerOffer) -> WorkerOffer:
        """The same offer; a job that is dispatched to it is recorded first."""
        self.offered.setdefault(offer.token, time.monotonic_ns())
        while len(self.offered) > _OFFERS:
            self.offered.pop(next(iter(self.offered)))
        take, lease = offer.take, offer.lease
        if take is None:
            return offer

        def noted(dispatched: Fetched) -> WorkerOffer | None:
            offered = self.offered.get(offer.token, 0)
            following = take(self.leased("wait", dispatched, 0, lease, offered))
            return None if following is None else self.recorded_offer(following)

        return replace(offer, take=noted)


def _due(delay: int, run_at: int | None) -> int:
    return run_at if run_at is not None else timestamp()[0] + delay
