"""Records the calls of flows, durable steps and signals, and the store's answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from penstock.core.flow import FlowInfo, NewFlow, NewNode
from penstock.core.job import NewJob, Ref
from penstock.stores.contract import (
    FlowChange,
    RecordedStep,
    Signal,
    SignalStatus,
    SignalWait,
    StepRecord,
    Store,
    SyncStore,
)
from penstock.verify.ledger import flow_facts as facts
from penstock.verify.ledger.recording.fact_writer import FactWriter
from penstock.verify.ledger.recording.store_calls import offered, timestamp

__all__ = ["FlowCallRecorder", "FlowVerbs", "SyncFlowVerbs"]

T = TypeVar("T")

#: Values of steps and signals are recorded up to this length.
_MOST = 80


class _Note(Generic[T]):
    """Notes the store's answer, and returns it unchanged; `given` is empty if there was none."""

    def __init__(self) -> None:
        self.given: list[T] = []

    def __call__(self, answer: T) -> T:
        self.given.append(answer)
        return answer


class FlowCallRecorder:
    """Records each call, then its answer, or that no answer came."""

    def __init__(self, writer: FactWriter) -> None:
        self._writer = writer

    @contextmanager
    def put(self, flow: NewFlow, nodes: Sequence[NewNode], start: bool) -> Iterator[_Note[FlowInfo | None]]:
        """The call that stores nodes of a flow.

        The flow of a gather is not recorded: it is removed at its end, and its job is judged by its result.
        """
        self._offer(node.job for node in nodes)
        if flow.wakes:
            yield _Note[FlowInfo | None]()
            return
        self._writer.write_all([facts.FlowPut(*timestamp(), flow.queue, flow.id, len(nodes), start)])
        note = _Note[FlowInfo | None]()
        try:
            yield note
        finally:
            said = _state(note.given, "refused")
            self._writer.write_all([facts.FlowAnswered(*timestamp(), flow.queue, flow.id, said)])

    def added(self, jobs: Sequence[NewJob]) -> None:
        """The call that adds members to a running flow."""
        self._offer(jobs)

    @contextmanager
    def change(self, ref: Ref, change: FlowChange) -> Iterator[_Note[FlowInfo | None]]:
        """The call that cancels or retries a flow."""
        what = (ref.queue, ref.id, change.value)
        self._writer.write_all([facts.FlowChanged(*timestamp(), *what)])
        note = _Note[FlowInfo | None]()
        try:
            yield note
        finally:
            said = _state(note.given, "")
            self._writer.write_all([facts.FlowChanged(*timestamp(), *what, said)])

    @contextmanager
    def steps(self, records: Sequence[StepRecord | SignalWait]) -> Iterator[_Note[list[RecordedStep]]]:
        """The call that stores steps, or waits for signals."""
        _, sent, _ = timestamp()
        note = _Note[list[RecordedStep]]()
        try:
            yield note
        finally:
            now = timestamp()
            given: Sequence[RecordedStep | None] = note.given[0] if note.given else [None] * len(records)
            pairs = zip(records, given, strict=True)
            self._writer.write_all([_step(now, sent, record, one) for record, one in pairs])

    @contextmanager
    def signals(self, signals: Sequence[Signal]) -> Iterator[_Note[list[SignalStatus]]]:
        """The call that sends signals."""
        self._writer.write_all([_signal(one, "") for one in signals])
        note = _Note[list[SignalStatus]]()
        try:
            yield note
        finally:
            told = [one.value for one in note.given[0]] if note.given else ["unknown"] * len(signals)
            pairs = zip(signals, told, strict=True)
            self._writer.write_all([_signal(signal, said) for signal, said in pairs])

    def _offer(self, jobs: Iterable[NewJob | None]) -> None:
        known = self._writer.self_recorded
        self._writer.write_all([offered(job, known) for job in jobs if job is not None])


def _state(given: Sequence[FlowInfo | None], none: str) -> str:
    """The state of the flow in an answer; `none` if there is no such flow."""
    return "unknown" if not given else none if given[0] is None else given[0].state.value


def _step(
    now: tuple[int, int, int], sent: int, record: StepRecord | SignalWait, answer: RecordedStep | None
) -> facts.StepRecorded:
    lease, name = record.lease, record.name if isinstance(record, StepRecord) else record.step
    status = "unknown" if answer is None else answer.status.value
    value = answer.value if answer is not None else None
    if status == "stored" and isinstance(record, StepRecord):
        value = record.value
    signal = None if answer is None else answer.signal
    text = None if value is None else _text(value)
    return facts.StepRecorded(*now, lease.queue, lease.id, lease.token, name, status, sent, text, signal)


def _signal(signal: Signal, answer: str) -> facts.SignalSent:
    data = _text(signal.data)
    return facts.SignalSent(*timestamp(), signal.name, signal.key, data, signal.flow or "", answer)


def _text(value: bytes) -> str:
    return value[:_MOST].decode(errors="replace")


class FlowVerbs:
    """The verbs of flows, steps and signals of a recorded store."""

    _store: Store
    _flow_recorder: FlowCallRecorder

    async def put_flow(
        self, flow: NewFlow, nodes: Sequence[NewNode], *, start: bool = True
    ) -> FlowInfo | None:
        with self._flow_recorder.put(flow, nodes, start) as note:
            return note(await self._store.put_flow(flow, nodes, start=start))

    async def add_to_flow(
        self, ref: Ref, join: int, jobs: Sequence[NewJob], *, key: str = ""
    ) -> FlowInfo | None:
        self._flow_recorder.added(jobs)
        return await self._store.add_to_flow(ref, join, jobs, key=key)

    async def change_flow(self, ref: Ref, change: FlowChange, *, node: int | None = None) -> FlowInfo | None:
        with self._flow_recorder.change(ref, change) as note:
            return note(await self._store.change_flow(ref, change, node=node))

    async def record_steps(self, records: Sequence[StepRecord]) -> list[RecordedStep]:
        with self._flow_recorder.steps(records) as note:
            return note(await self._store.record_steps(records))

    async def await_signals(self, waits: Sequence[SignalWait]) -> list[RecordedStep]:
        with self._flow_recorder.steps(waits) as note:
            return note(await self._store.await_signals(waits))

    async def send_signals(self, signals: Sequence[Signal]) -> list[SignalStatus]:
        with self._flow_recorder.signals(signals) as note:
            return note(await self._store.send_signals(signals))


class SyncFlowVerbs:
    """The same for callers without an event loop."""

    _sync: SyncStore
    _flow_recorder: FlowCallRecorder

    def put_flow(self, flow: NewFlow, nodes: Sequence[NewNode], *, start: bool = True) -> FlowInfo | None:
        with self._flow_recorder.put(flow, nodes, start) as note:
            return note(self._sync.put_flow(flow, nodes, start=start))

    def add_to_flow(self, ref: Ref, join: int, jobs: Sequence[NewJob], *, key: str = "") -> FlowInfo | None:
        self._flow_recorder.added(jobs)
        return self._sync.add_to_flow(ref, join, jobs, key=key)

    def change_flow(self, ref: Ref, change: FlowChange, *, node: int | None = None) -> FlowInfo | None:
        with self._flow_recorder.change(ref, change) as note:
            return note(self._sync.change_flow(ref, change, node=node))

    def record_steps(self, records: Sequence[StepRecord]) -> list[RecordedStep]:
        with self._flow_recorder.steps(records) as note:
            return note(self._sync.record_steps(records))

    def await_signals(self, waits: Sequence[SignalWait]) -> list[RecordedStep]:
        with self._flow_recorder.steps(waits) as note:
            return note(self._sync.await_signals(waits))

    def send_signals(self, signals: Sequence[Signal]) -> list[SignalStatus]:
        with self._flow_recorder.signals(signals) as note:
            return note(self._sync.send_signals(signals))
