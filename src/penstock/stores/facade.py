"""The async and sync methods of a store, written once for all stores, over a table of the store's verbs.

A store fills in a `VerbTable`: every verb as an operation, which runs in an event loop (`run`) and, if the
contract has a sync form of the verb, in the caller's thread (`run_sync`). `StoreFacade` and `SyncFacade` give
these operations the signatures of the contract. Each store implements the verbs that wait (`wait`,
`wait_for_end`, `stream_ends`), `checkup`, opening and closing itself.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ParamSpec, Protocol, TypeVar

from msgspec import UNSET, UnsetType

from penstock.core.flow import FlowInfo, FlowNode, NewFlow, NewNode
from penstock.core.job import Job, NewJob, Ref, State
from penstock.core.lifecycle import ASK_CANCELLED, DISCARDED
from penstock.core.limits import LimitChange
from penstock.core.schedule import Entry, NewEntry
from penstock.stores.contract import (
    FLOW_STEP,
    LONGEST_LOG,
    BatchInfo,
    DepthPage,
    DocumentChange,
    DocumentPage,
    Due,
    Enqueued,
    ErrorGroup,
    Fetched,
    FlowChange,
    FlowPage,
    HeartbeatRequest,
    JobEdit,
    JobFilter,
    JobMove,
    JobOrder,
    LeaseStatus,
    LogPage,
    Page,
    Parked,
    PartitionInfo,
    Pruned,
    QueueInfo,
    QueueSize,
    QueueStats,
    QuotaRequest,
    QuotaTaken,
    RecordedStep,
    Replacement,
    Resolution,
    SearchPage,
    Settled,
    Settlement,
    Share,
    Signal,
    SignalStatus,
    SignalWait,
    StatsPage,
    StatsReport,
    StepRecord,
    Store,
    StoredStep,
    Tick,
    TickResult,
    Timetable,
    WorkerInfo,
    WrittenDocument,
    check_change,
    check_edits,
    check_kind,
    check_moves,
    check_replacements,
    check_search,
)

__all__ = ["VERBS", "AsyncOperation", "OnCall", "Operation", "StoreFacade", "SyncFacade", "VerbTable"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

#: The names of all verbs, read from the contract's protocols, so that a new verb is included automatically.
VERBS = tuple(name for page in Store.mro()[1:] for name in vars(page) if not name.startswith("_"))


class AsyncOperation(Protocol[P, R_co]):
    """One verb of one store, for event loops."""

    def run(self, *args: P.args, **options: P.kwargs) -> Awaitable[R_co]:
        """Run the verb and return its answer."""
        ...


class Operation(AsyncOperation[P, R_co], Protocol[P, R_co]):
    """One verb of one store, for event loops and for threads."""

    def run_sync(self, *args: P.args, **options: P.kwargs) -> R_co:
        """Run the verb in the calling thread and return its answer."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class VerbTable:
    """Every verb of a store. An operation takes all arguments of the contract, in the contract's order."""

    # producing
    enqueue: Operation[[Sequence[NewJob]], list[Enqueued]]
    get: Operation[[Sequence[Ref]], list[Job | None]]
    cancel: Operation[[Sequence[Ref], str], list[State | None]]
    # consuming
    fetch: AsyncOperation[[Sequence[Share], int, int, str, str, bool], Fetched]
    extend: AsyncOperation[[Sequence[HeartbeatRequest]], list[LeaseStatus]]
    settle: AsyncOperation[[Sequence[Settlement]], list[Settled]]
    promote: AsyncOperation[[Sequence[str], int], Due]
    reclaim: AsyncOperation[[Sequence[str], int, int, str, str, Sequence[str] | None], Fetched]
    # operating
    list_jobs: AsyncOperation[[str | None, State | None, str | None, str | None, str | None, int], Page]
    list_next: AsyncOperation[[str, State, str | None, int], Page]
    search_jobs: AsyncOperation[[JobFilter, JobOrder, bool, str | None, int], SearchPage]
    find: Operation[[str], list[Job]]
    queues: Operation[[Sequence[str] | None], list[QueueInfo]]
    parked: AsyncOperation[[], list[Parked]]
    stats: AsyncOperation[[int], list[QueueStats]]
    settings: Operation[[str, bool | None, bool | None, LimitChange | None], QueueInfo]
    retry: Operation[[Sequence[Ref], int | None, int | UnsetType | None], list[State | None]]
    reschedule: Operation[[Sequence[Ref], int, int | None], list[State | None]]
    delete: Operation[[Sequence[Ref], bool, bool], list[State | None]]
    edit_jobs: AsyncOperation[[Sequence[JobEdit]], list[bool]]
    move_jobs: AsyncOperation[[Sequence[JobMove]], list[Enqueued | None]]
    discard: AsyncOperation[[Sequence[Ref], str], list[State | None]]
    replace_jobs: AsyncOperation[[Sequence[Replacement]], list[Enqueued]]
    purge: AsyncOperation[[str, Sequence[State], int], int]
    drop: AsyncOperation[[str], bool]
    partition: AsyncOperation[[Ref], PartitionInfo | None]
    prune: AsyncOperation[[int, int, int], Pruned]
    announce: AsyncOperation[[WorkerInfo], None]
    retire: AsyncOperation[[str], None]
    workers: AsyncOperation[[], list[WorkerInfo]]
    entries: AsyncOperation[[Sequence[str] | None], Timetable]
    put_entries: AsyncOperation[[Sequence[NewEntry]], list[Entry]]
    pause_entries: AsyncOperation[[Sequence[Ref], bool], list[Entry | None]]
    delete_entries: AsyncOperation[[Sequence[Ref]], list[bool]]
    batches: AsyncOperation[[str | None, int], list[BatchInfo]]
    flush_batch: AsyncOperation[[str, str, str], str | None]
    tick: AsyncOperation[[Sequence[Tick]], list[TickResult]]
    # documenting
    documents: AsyncOperation[[str, str | None, int], DocumentPage]
    document_versions: AsyncOperation[[Sequence[str]], list[int]]
    change_documents: AsyncOperation[[str, Sequence[DocumentChange], bool], list[WrittenDocument]]
    take_quota: AsyncOperation[[Sequence[QuotaRequest]], list[QuotaTaken]]
    append_log: AsyncOperation[[str, Sequence[bytes], int], int]
    read_log: AsyncOperation[[str, int | None, int], LogPage]
    # measuring
    add_stats: AsyncOperation[[Sequence[StatsReport]], list[bool]]
    read_stats: AsyncOperation[[Resolution, int, str | None, str | None], StatsPage]
    read_errors: AsyncOperation[[str | None, str | None], list[ErrorGroup]]
    sample_depths: AsyncOperation[[], int]
    read_depths: AsyncOperation[[Resolution, int, str | None], DepthPage]
    queue_sizes: AsyncOperation[[Sequence[str] | None], list[QueueSize]]
    # flowing
    put_flow: Operation[[NewFlow, Sequence[NewNode], bool], FlowInfo | None]
    add_to_flow: Operation[[Ref, int, Sequence[NewJob], str], FlowInfo | None]
    get_flows: Operation[[Sequence[Ref]], list[FlowInfo | None]]
    flow_nodes: Operation[[Ref, Sequence[int], bool], list[FlowNode | None]]
    list_flows: AsyncOperation[[str | None, int], FlowPage]
    change_flow: Operation[[Ref, FlowChange, int | None], FlowInfo | None]
    advance_flows: Operation[[int], int]
    # stepping
    record_steps: Operation[[Sequence[StepRecord]], list[RecordedStep]]
    steps: Operation[[Ref, Sequence[str] | None, int | None], list[StoredStep]]
    await_signals: Operation[[Sequence[SignalWait]], list[RecordedStep]]
    send_signals: Operation[[Sequence[Signal]], list[SignalStatus]]


#: Called after each call of a verb: its name, the time that it took (s), and whether it failed.
OnCall = Callable[[str, float, bool], None]


class _Observed(Operation[P, R]):
    """An operation whose async calls are reported."""

    def __init__(self, verb: str, operation: Operation[P, R], on_call: OnCall) -> None:
        self._verb = verb
        self._operation = operation
        self._on_call = on_call

    def run_sync(self, *args: P.args, **options: P.kwargs) -> R:
        return self._operation.run_sync(*args, **options)

    async def run(self, *args: P.args, **options: P.kwargs) -> R:
        began = time.perf_counter()
        failed = True
        try:
            answer = await self._operation.run(*args, **options)
            failed = False
            return answer
        finally:
            self._on_call(self._verb, time.perf_counter() - began, failed)


class StoreFacade:
    """The async verbs of the contract."""

    def __init__(self, verbs: VerbTable) -> None:
        self._verbs = verbs

    def observe(self, on_call: OnCall) -> None:
        """Report each async call from now on. `on_call` may be called from any thread with an event loop."""
        table = self._verbs
        names = [field.name for field in fields(table)]
        changes: dict[str, Any] = {name: _Observed(name, getattr(table, name), on_call) for name in names}
        self._verbs = replace(table, **changes)

    # ── producing ──

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return await self._verbs.enqueue.run(jobs)

    async def get(self, refs: Sequence[Ref]) -> list[Job | None]:
        return await self._verbs.get.run(refs)

    async def cancel(self, refs: Sequence[Ref], *, reason: str = ASK_CANCELLED) -> list[State | None]:
        return await self._verbs.cancel.run(refs, reason)

    # ── consuming ──

    async def fetch(
        self,
        queues: Sequence[Share],
        *,
        limit: int,
        lease: int,
        worker: str,
        token: str,
        charge: bool = True,
    ) -> Fetched:
        return await self._verbs.fetch.run(queues, limit, lease, worker, token, charge)

    async def extend(self, requests: Sequence[HeartbeatRequest]) -> list[LeaseStatus]:
        return await self._verbs.extend.run(requests)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        return await self._verbs.settle.run(settlements)

    async def promote(self, queues: Sequence[str], *, limit: int) -> Due:
        return await self._verbs.promote.run(queues, limit)

    async def reclaim(
        self,
        queues: Sequence[str],
        *,
        limit: int,
        lease: int,
        worker: str,
        token: str,
        of: Sequence[str] | None = None,
    ) -> Fetched:
        return await self._verbs.reclaim.run(queues, limit, lease, worker, token, of)

    # ── operating ──

    async def list_jobs(
        self,
        *,
        queue: str | None = None,
        state: State | None = None,
        task: str | None = None,
        worker: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> Page:
        return await self._verbs.list_jobs.run(queue, state, task, worker, after, limit)

    async def list_next(
        self, queue: str, *, state: State = State.AVAILABLE, after: str | None = None, limit: int = 50
    ) -> Page:
        return await self._verbs.list_next.run(queue, state, after, limit)

    async def search_jobs(
        self,
        filter: JobFilter,
        *,
        order: JobOrder = JobOrder.ENQUEUED,
        descending: bool = True,
        after: str | None = None,
        limit: int = 50,
    ) -> SearchPage:
        checked = check_search(filter, order)
        return await self._verbs.search_jobs.run(checked, order, descending, after, limit)

    async def find(self, id: str) -> list[Job]:
        return await self._verbs.find.run(id)

    async def queues(self, names: Sequence[str] | None = None) -> list[QueueInfo]:
        return await self._verbs.queues.run(names)

    async def parked(self) -> list[Parked]:
        return await self._verbs.parked.run()

    async def stats(self, *, days: int = 7) -> list[QueueStats]:
        return await self._verbs.stats.run(days)

    async def settings(
        self,
        queue: str,
        *,
        paused: bool | None = None,
        closed: bool | None = None,
        limits: LimitChange | None = None,
    ) -> QueueInfo:
        return await self._verbs.settings.run(queue, paused, closed, limits)

    async def retry(
        self, refs: Sequence[Ref], *, attempts: int | None = None, expires_in: int | UnsetType | None = UNSET
    ) -> list[State | None]:
        return await self._verbs.retry.run(refs, attempts, expires_in)

    async def reschedule(
        self, refs: Sequence[Ref], *, delay: int = 0, run_at: int | None = None
    ) -> list[State | None]:
        return await self._verbs.reschedule.run(refs, delay, run_at)

    async def delete(
        self, refs: Sequence[Ref], *, running: bool = False, keep_keys: bool = False
    ) -> list[State | None]:
        return await self._verbs.delete.run(refs, running, keep_keys)

    async def discard(self, refs: Sequence[Ref], *, reason: str = DISCARDED) -> list[State | None]:
        return await self._verbs.discard.run(refs, reason)

    async def edit_jobs(self, edits: Sequence[JobEdit]) -> list[bool]:
        return await self._verbs.edit_jobs.run(check_edits(edits))

    async def move_jobs(self, moves: Sequence[JobMove]) -> list[Enqueued | None]:
        return await self._verbs.move_jobs.run(check_moves(moves))

    async def replace_jobs(self, replacements: Sequence[Replacement]) -> list[Enqueued]:
        return await self._verbs.replace_jobs.run(check_replacements(replacements))

    async def purge(self, queue: str, states: Sequence[State], *, limit: int = 10_000) -> int:
        return await self._verbs.purge.run(queue, states, limit)

    async def drop(self, queue: str) -> bool:
        return await self._verbs.drop.run(queue)

    async def partition(self, ref: Ref) -> PartitionInfo | None:
        return await self._verbs.partition.run(ref)

    async def prune(
        self, *, limit: int = 1_000, keep_finished: int = 100_000, keep_dead: int = 100_000
    ) -> Pruned:
        return await self._verbs.prune.run(limit, keep_finished, keep_dead)

    async def announce(self, worker: WorkerInfo) -> None:
        await self._verbs.announce.run(worker)

    async def retire(self, worker: str) -> None:
        await self._verbs.retire.run(worker)

    async def workers(self) -> list[WorkerInfo]:
        return await self._verbs.workers.run()

    async def entries(self, queues: Sequence[str] | None = None) -> Timetable:
        return await self._verbs.entries.run(queues)

    async def put_entries(self, entries: Sequence[NewEntry]) -> list[Entry]:
        return await self._verbs.put_entries.run(entries)

    async def pause_entries(self, refs: Sequence[Ref], paused: bool) -> list[Entry | None]:
        return await self._verbs.pause_entries.run(refs, paused)

    async def delete_entries(self, refs: Sequence[Ref]) -> list[bool]:
        return await self._verbs.delete_entries.run(refs)

    async def batches(self, queue: str | None = None, *, limit: int = 1_000) -> list[BatchInfo]:
        return await self._verbs.batches.run(queue, limit)

    async def flush_batch(self, queue: str, *, task: str, key: str = "") -> str | None:
        return await self._verbs.flush_batch.run(queue, task, key)

    async def tick(self, ticks: Sequence[Tick]) -> list[TickResult]:
        return await self._verbs.tick.run(ticks)

    # ── documenting ──

    async def documents(self, kind: str, *, after: str | None = None, limit: int = 1_000) -> DocumentPage:
        return await self._verbs.documents.run(check_kind(kind), after, min(max(1, limit), 1_000))

    async def document_versions(self, kinds: Sequence[str]) -> list[int]:
        return await self._verbs.document_versions.run([check_kind(kind) for kind in kinds])

    async def change_documents(
        self, kind: str, changes: Sequence[DocumentChange], *, notify: bool = False
    ) -> list[WrittenDocument]:
        for change in changes:
            check_change(change.name, change.body)
        return await self._verbs.change_documents.run(check_kind(kind), changes, notify)

    async def take_quota(self, requests: Sequence[QuotaRequest]) -> list[QuotaTaken]:
        for request in requests:
            check_change(request.name, None)
        return await self._verbs.take_quota.run(requests)

    async def append_log(self, log: str, entries: Sequence[bytes], *, keep: int = 10_000) -> int:
        for entry in entries:
            check_change(log, entry)
        return await self._verbs.append_log.run(check_kind(log), entries, min(max(1, keep), LONGEST_LOG))

    async def read_log(self, log: str, *, before: int | None = None, limit: int = 100) -> LogPage:
        return await self._verbs.read_log.run(check_kind(log), before, min(max(1, limit), 1_000))

    # ── measuring ──

    async def add_stats(self, reports: Sequence[StatsReport]) -> list[bool]:
        return await self._verbs.add_stats.run(reports)

    async def read_stats(
        self, resolution: Resolution, *, span: int, queue: str | None = None, task: str | None = None
    ) -> StatsPage:
        return await self._verbs.read_stats.run(resolution, span, queue, task)

    async def read_errors(self, *, queue: str | None = None, task: str | None = None) -> list[ErrorGroup]:
        return await self._verbs.read_errors.run(queue, task)

    async def sample_depths(self) -> int:
        return await self._verbs.sample_depths.run()

    async def read_depths(self, resolution: Resolution, *, span: int, queue: str | None = None) -> DepthPage:
        return await self._verbs.read_depths.run(resolution, span, queue)

    async def queue_sizes(self, names: Sequence[str] | None = None) -> list[QueueSize]:
        return await self._verbs.queue_sizes.run(names)

    # ── flowing ──

    async def put_flow(
        self, flow: NewFlow, nodes: Sequence[NewNode], *, start: bool = True
    ) -> FlowInfo | None:
        return await self._verbs.put_flow.run(flow, nodes, start)

    async def add_to_flow(
        self, ref: Ref, join: int, jobs: Sequence[NewJob], *, key: str = ""
    ) -> FlowInfo | None:
        return await self._verbs.add_to_flow.run(ref, join, jobs, key)

    async def get_flows(self, refs: Sequence[Ref]) -> list[FlowInfo | None]:
        return await self._verbs.get_flows.run(refs)

    async def flow_nodes(
        self, ref: Ref, indexes: Sequence[int], *, results: bool = True
    ) -> list[FlowNode | None]:
        return await self._verbs.flow_nodes.run(ref, indexes, results)

    async def list_flows(self, *, after: str | None = None, limit: int = 50) -> FlowPage:
        return await self._verbs.list_flows.run(after, min(max(1, limit), FLOW_STEP))

    async def change_flow(self, ref: Ref, change: FlowChange, *, node: int | None = None) -> FlowInfo | None:
        return await self._verbs.change_flow.run(ref, change, node)

    async def advance_flows(self, *, limit: int = FLOW_STEP) -> int:
        return await self._verbs.advance_flows.run(limit)

    # ── stepping ──

    async def record_steps(self, records: Sequence[StepRecord]) -> list[RecordedStep]:
        return await self._verbs.record_steps.run(records)

    async def steps(
        self, ref: Ref, *, names: Sequence[str] | None = None, largest: int | None = None
    ) -> list[StoredStep]:
        return await self._verbs.steps.run(ref, names, largest)

    async def await_signals(self, waits: Sequence[SignalWait]) -> list[RecordedStep]:
        return await self._verbs.await_signals.run(waits)

    async def send_signals(self, signals: Sequence[Signal]) -> list[SignalStatus]:
        return await self._verbs.send_signals.run(signals)


class SyncFacade:
    """The sync verbs of the contract, for callers without an event loop; each runs in the caller's thread."""

    def __init__(self, verbs: VerbTable) -> None:
        self._verbs = verbs

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return self._verbs.enqueue.run_sync(jobs)

    def get(self, refs: Sequence[Ref]) -> list[Job | None]:
        return self._verbs.get.run_sync(refs)

    def cancel(self, refs: Sequence[Ref], *, reason: str = ASK_CANCELLED) -> list[State | None]:
        return self._verbs.cancel.run_sync(refs, reason)

    def retry(
        self, refs: Sequence[Ref], *, attempts: int | None = None, expires_in: int | UnsetType | None = UNSET
    ) -> list[State | None]:
        return self._verbs.retry.run_sync(refs, attempts, expires_in)

    def reschedule(
        self, refs: Sequence[Ref], *, delay: int = 0, run_at: int | None = None
    ) -> list[State | None]:
        return self._verbs.reschedule.run_sync(refs, delay, run_at)

    def delete(
        self, refs: Sequence[Ref], *, running: bool = False, keep_keys: bool = False
    ) -> list[State | None]:
        return self._verbs.delete.run_sync(refs, running, keep_keys)

    def find(self, id: str) -> list[Job]:
        return self._verbs.find.run_sync(id)

    def queues(self, names: Sequence[str] | None = None) -> list[QueueInfo]:
        return self._verbs.queues.run_sync(names)

    def settings(
        self,
        queue: str,
        *,
        paused: bool | None = None,
        closed: bool | None = None,
        limits: LimitChange | None = None,
    ) -> QueueInfo:
        return self._verbs.settings.run_sync(queue, paused, closed, limits)

    def put_flow(self, flow: NewFlow, nodes: Sequence[NewNode], *, start: bool = True) -> FlowInfo | None:
        return self._verbs.put_flow.run_sync(flow, nodes, start)

    def add_to_flow(self, ref: Ref, join: int, jobs: Sequence[NewJob], *, key: str = "") -> FlowInfo | None:
        return self._verbs.add_to_flow.run_sync(ref, join, jobs, key)

    def get_flows(self, refs: Sequence[Ref]) -> list[FlowInfo | None]:
        return self._verbs.get_flows.run_sync(refs)

    def flow_nodes(self, ref: Ref, indexes: Sequence[int], *, results: bool = True) -> list[FlowNode | None]:
        return self._verbs.flow_nodes.run_sync(ref, indexes, results)

    def change_flow(self, ref: Ref, change: FlowChange, *, node: int | None = None) -> FlowInfo | None:
        return self._verbs.change_flow.run_sync(ref, change, node)

    def advance_flows(self, *, limit: int = FLOW_STEP) -> int:
        return self._verbs.advance_flows.run_sync(limit)

    def record_steps(self, records: Sequence[StepRecord]) -> list[RecordedStep]:
        return self._verbs.record_steps.run_sync(records)

    def steps(
        self, ref: Ref, *, names: Sequence[str] | None = None, largest: int | None = None
    ) -> list[StoredStep]:
        return self._verbs.steps.run_sync(ref, names, largest)

    def await_signals(self, waits: Sequence[SignalWait]) -> list[RecordedStep]:
        return self._verbs.await_signals.run_sync(waits)

    def send_signals(self, signals: Sequence[Signal]) -> list[SignalStatus]:
        return self._verbs.send_signals.run_sync(signals)
