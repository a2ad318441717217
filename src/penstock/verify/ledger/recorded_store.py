"""A wrapper around a store that records its calls and answers in a ledger."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from penstock.core.errors import StoreFull, StoreReadOnly
from penstock.core.flow import FlowInfo
from penstock.core.job import NewJob, Ref, State
from penstock.stores.around import StoreAround, StorePlan, asked
from penstock.stores.contract import (
    AddToFlow,
    AwaitSignals,
    CancelJobs,
    Changed,
    ChangeFlow,
    ChangeJobs,
    Delete,
    EditStatus,
    EditSteps,
    Enqueue,
    Enqueued,
    EnqueueStatus,
    Fetch,
    Fetched,
    ForgetSteps,
    Purge,
    PutFlow,
    QueueInfo,
    Reclaim,
    RecordedStep,
    RecordSteps,
    ReplaceJobs,
    Request,
    SendSignals,
    Settings,
    Settle,
    Settled,
    SignalStatus,
    SignalWait,
    StepRecord,
    Store,
    TickEntries,
    TickResult,
    Wait,
    Wake,
    WorkerOffer,
)
from penstock.stores.contract.request import OfRefs
from penstock.verify.ledger import facts, store_calls
from penstock.verify.ledger.facts import Fact, Now, timestamp

A = TypeVar("A")

#: How many offered tokens are remembered; a worker has one at a time.
_OFFERS = 64


class FactWriter(Protocol):
    """What a recorded store needs of its ledger."""

    @property
    def self_recorded(self) -> Container[str]: ...

    def write_all(self, facts: Iterable[Fact]) -> None: ...


def recorded_store(store: Store, writer: FactWriter) -> Store:
    """A wrapper that records every enqueue, lease, settlement and operation of this store."""
    return _RecordedStore(store, writer)


class _RecordedStore(StoreAround):
    """A store whose calls are recorded as the table says; all others are passed on."""

    def __init__(self, store: Store, writer: FactWriter) -> None:
        super().__init__(store)
        self._recorder = _Recorder(writer)

    def around(self, store: Store) -> Store:
        return recorded_store(store, self._recorder.writer)

    def plan(self, request: Request[A]) -> StorePlan[A]:
        recorded = _PLANS.get(type(request))
        plan: StorePlan[A] = asked(request) if recorded is None else recorded(self._recorder, request)
        return plan


def _noted(request: Request[A], note: Callable[[Sequence[A], str], None]) -> StorePlan[A]:
    """Ask the store, and `note` its answer, in a list; or that none came, with an empty list and a word.

    The word is `refused` after errors which guarantee that nothing was written, else `unknown`.
    """
    given: list[A] = []
    otherwise = "unknown"
    try:
        given.append((yield from asked(request)))
    except (StoreFull, StoreReadOnly):
        otherwise = "refused"
        raise
    finally:
        note(given, otherwise)
    return given[0]


class _Recorder:
    """Writes facts that several requests have in common, and remembers the offers of workers."""

    def __init__(self, writer: FactWriter) -> None:
        self.writer = writer
        #: When each recent token was first offered (mono); the next fetch uses the same token.
        self.offered: dict[str, int] = {}

    def write(self, facts: Iterable[Fact]) -> None:
        self.writer.write_all(facts)

    def offer(self, jobs: Iterable[NewJob | None], *, follows: bool = False) -> None:
        known = self.writer.self_recorded
        self.write([store_calls.offered(job, known, follows=follows) for job in jobs if job is not None])

    def enqueued(
        self, before: Now, jobs: Sequence[NewJob], given: Sequence[list[Enqueued]], otherwise: str
    ) -> None:
        """Write the answer to an enqueue that was sent at `before`."""
        now = timestamp()
        if not given:
            self.write([facts.Answered(*now, job.queue, job.id, otherwise) for job in jobs])
            return
        pairs = list(zip(jobs, given[0], strict=True))
        for job, one in pairs:
            self.write(store_calls.replaced(before, now, job, one))
        self.write([store_calls.answered(now, job, one) for job, one in pairs])

    def operate(self, verb: str, refs: Iterable[Ref]) -> None:
        now = timestamp()
        self.write([facts.OperationAsked(*now, ref.queue, ref.id, verb) for ref in refs])

    def operated(self, verb: str, refs: Sequence[Ref], given: Sequence[Sequence[str | None]]) -> None:
        """Write the answers to operations; empty: nothing was changed."""
        now = timestamp()
        states = given[0] if given else ["unknown"] * len(refs)
        self.write(
            [
                facts.OperationAnswered(*now, ref.queue, ref.id, verb, str(state or ""))
                for ref, state in zip(refs, states, strict=True)
            ]
        )

    def leased(self, by: str, fetched: Fetched, sent: int, lease: int, offered: int = 0) -> Fetched:
        now = timestamp()
        self.writer.write_all(
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


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────


def _enqueue(recorder: _Recorder, request: Enqueue) -> StorePlan[list[Enqueued]]:
    before, jobs = timestamp(), request.jobs
    recorder.offer(jobs)
    return (yield from _noted(request, lambda *answer: recorder.enqueued(before, jobs, *answer)))


def _replace_jobs(recorder: _Recorder, request: ReplaceJobs) -> StorePlan[list[Enqueued]]:
    before = timestamp()
    jobs, refs = [one.new for one in request.replacements], [one.old for one in request.replacements]
    recorder.offer(jobs)
    recorder.operate("delete", refs)

    def note(given: Sequence[list[Enqueued]], otherwise: str) -> None:
        replaced = [
            ["unknown" if one.status is EnqueueStatus.NEW else None for one in answers] for answers in given
        ]
        recorder.operated("delete", refs, replaced)
        recorder.enqueued(before, jobs, given, otherwise)

    return (yield from _noted(request, note))


def _operate(recorder: _Recorder, request: OfRefs[list[State | None]]) -> StorePlan[list[State | None]]:
    verb, refs = request.verb, request.refs
    recorder.operate(verb, refs)
    return (yield from _noted(request, lambda given, _: recorder.operated(verb, refs, given)))


def _purge(recorder: _Recorder, request: Purge) -> StorePlan[int]:
    refs = [Ref(request.queue, "*")]
    recorder.operate("purge", refs)
    return (
        yield from _noted(
            request, lambda given, _: recorder.operated("purge", refs, [[str(n)] for n in given])
        )
    )


def _change_jobs(recorder: _Recorder, request: ChangeJobs) -> StorePlan[list[Changed]]:
    """Record each act as an operation of its own, all of them before the call and after its answer."""
    asked_at, known = timestamp(), recorder.writer.self_recorded
    recorder.write([fact for act in request.acts for fact in store_calls.changing(asked_at, act, known)])

    def note(given: Sequence[list[Changed]], _: str) -> None:
        now = timestamp()
        answers: Sequence[Changed | None] = given[0] if given else [None] * len(request.acts)
        pairs = zip(request.acts, answers, strict=True)
        recorder.write([fact for act, one in pairs for fact in store_calls.changed(now, act, one)])

    return (yield from _noted(request, note))


def _fetch(recorder: _Recorder, request: Fetch) -> StorePlan[Fetched]:
    sent = time.monotonic_ns()
    fetched = yield from asked(request)
    offered = recorder.offered.get(request.token, 0)
    return recorder.leased("fetch", fetched, sent, request.lease, offered)


def _reclaim(recorder: _Recorder, request: Reclaim) -> StorePlan[Fetched]:
    sent = time.monotonic_ns()
    return recorder.leased("reclaim", (yield from asked(request)), sent, request.lease)


def _wait(recorder: _Recorder, request: Wait) -> StorePlan[Wake]:
    if request.offer is not None:
        request = replace(request, offer=recorder.recorded_offer(request.offer))
    return (yield from asked(request))


def _settle(recorder: _Recorder, request: Settle) -> StorePlan[list[Settled]]:
    now, settlements = timestamp(), request.settlements
    recorder.write([store_calls.settling(now, one.lease, one.transition) for one in settlements])
    recorder.offer([job for one in settlements for job in one.then], follows=True)
    return (
        yield from _noted(
            request,
            lambda given, _: recorder.write(store_calls.settled(settlements, given[0] if given else None)),
        )
    )


def _settings(recorder: _Recorder, request: Settings) -> StorePlan[QueueInfo]:
    """Record a change of `max_running`. A call that raises may have been applied or not."""
    most = UNSET if request.limits is None else request.limits.max_running
    if most is UNSET:
        return (yield from asked(request))
    recorder.write([facts.Limited(*timestamp(), request.queue, most)])
    info = yield from asked(request)
    recorder.write([facts.Limited(*timestamp(), request.queue, most, told=True)])
    return info


def _tick(recorder: _Recorder, request: TickEntries) -> StorePlan[list[TickResult]]:
    asked_at, ticks, known = timestamp(), request.ticks, recorder.writer.self_recorded
    recorder.write([fact for tick in ticks for fact in store_calls.ticking(asked_at, tick, known)])

    def note(given: Sequence[list[TickResult]], _: str) -> None:
        now = timestamp()
        answers: Sequence[TickResult | None] = given[0] if given else [None] * len(ticks)
        pairs = zip(ticks, answers, strict=True)
        recorder.write([fact for tick, one in pairs for fact in store_calls.ticked(now, tick, one)])

    return (yield from _noted(request, note))


# ── flows, durable steps and signals ─────────────────────────────────────────────────────────────


def _put_flow(recorder: _Recorder, request: PutFlow) -> StorePlan[FlowInfo | None]:
    """Record the call that stores nodes of a flow.

    The flow of a gather is not recorded: it is removed at its end, and its job is judged by its result.
    """
    flow = request.flow
    recorder.offer(node.job for node in request.nodes)
    if flow.wakes:
        return (yield from asked(request))
    recorder.write([facts.FlowPut(*timestamp(), flow.queue, flow.id, len(request.nodes), request.start)])

    def note(given: Sequence[FlowInfo | None], _: str) -> None:
        said = store_calls.flow_state(given, "refused")
        recorder.write([facts.FlowAnswered(*timestamp(), flow.queue, flow.id, said)])

    return (yield from _noted(request, note))


def _add_to_flow(recorder: _Recorder, request: AddToFlow) -> StorePlan[FlowInfo | None]:
    recorder.offer(request.jobs)
    return (yield from asked(request))


def _change_flow(recorder: _Recorder, request: ChangeFlow) -> StorePlan[FlowInfo | None]:
    what = (request.ref.queue, request.ref.id, request.change.value)
    recorder.write([facts.FlowChanged(*timestamp(), *what)])

    def note(given: Sequence[FlowInfo | None], _: str) -> None:
        recorder.write([facts.FlowChanged(*timestamp(), *what, store_calls.flow_state(given, ""))])

    return (yield from _noted(request, note))


def _record_steps(recorder: _Recorder, request: RecordSteps) -> StorePlan[list[RecordedStep]]:
    return _steps(recorder, request, request.records)


def _await_signals(recorder: _Recorder, request: AwaitSignals) -> StorePlan[list[RecordedStep]]:
    return _steps(recorder, request, request.waits)


def _steps(
    recorder: _Recorder, request: Request[list[RecordedStep]], records: Sequence[StepRecord | SignalWait]
) -> StorePlan[list[RecordedStep]]:
    sent = time.monotonic_ns()

    def note(given: Sequence[list[RecordedStep]], _: str) -> None:
        now = timestamp()
        answers: Sequence[RecordedStep | None] = given[0] if given else [None] * len(records)
        pairs = zip(records, answers, strict=True)
        recorder.write([store_calls.step_recorded(now, sent, record, one) for record, one in pairs])

    return (yield from _noted(request, note))


def _forget_steps(recorder: _Recorder, request: ForgetSteps) -> StorePlan[list[RecordedStep]]:
    sent, removals = time.monotonic_ns(), request.removals

    def note(given: Sequence[list[RecordedStep]], otherwise: str) -> None:
        now = timestamp()
        told = [one.status.value for one in given[0]] if given else ["unknown"] * len(removals)
        places = [(one.lease.queue, one.lease.id, one.lease.token, one.name) for one in removals]
        pairs = zip(places, told, strict=True)
        recorder.write([facts.StepChanged(*now, *place, said, sent) for place, said in pairs])

    return (yield from _noted(request, note))


def _edit_steps(recorder: _Recorder, request: EditSteps) -> StorePlan[EditStatus]:
    sent = time.monotonic_ns()

    def note(given: Sequence[EditStatus], _: str) -> None:
        now, said = timestamp(), given[0].value if given else "unknown"
        recorder.write([store_calls.step_edited(now, sent, request.ref, one, said) for one in request.edits])

    return (yield from _noted(request, note))


def _send_signals(recorder: _Recorder, request: SendSignals) -> StorePlan[list[SignalStatus]]:
    recorder.write([store_calls.signal_sent(one, "") for one in request.signals])

    def note(given: Sequence[list[SignalStatus]], _: str) -> None:
        told = [one.value for one in given[0]] if given else ["unknown"] * len(request.signals)
        pairs = zip(request.signals, told, strict=True)
        recorder.write([store_calls.signal_sent(signal, said) for signal, said in pairs])

    return (yield from _noted(request, note))


#: What is recorded; of all other requests nothing is.
_PLANS: Mapping[type[Request[Any]], Callable[[_Recorder, Any], StorePlan[Any]]] = {
    Enqueue: _enqueue,
    ReplaceJobs: _replace_jobs,
    CancelJobs: _operate,
    Delete: _operate,
    Purge: _purge,
    ChangeJobs: _change_jobs,
    Fetch: _fetch,
    Reclaim: _reclaim,
    Wait: _wait,
    Settle: _settle,
    Settings: _settings,
    TickEntries: _tick,
    PutFlow: _put_flow,
    AddToFlow: _add_to_flow,
    ChangeFlow: _change_flow,
    RecordSteps: _record_steps,
    ForgetSteps: _forget_steps,
    EditSteps: _edit_steps,
    AwaitSignals: _await_signals,
    SendSignals: _send_signals,
}
