"""A store whose verbs run in SQL transactions: the function of each request, and the ways in which it waits.

A store on this engine has a runner, which owns the connection and the transactions, and notifiers, which say
that something was committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

from msgspec.structs import astuple

from penstock.core.clock import Clock
from penstock.core.job import Job, Ref
from penstock.core.loops import PerLoop
from penstock.stores import contract
from penstock.stores.contract import (
    MOST_FETCHED,
    Checkup,
    Fetch,
    Fetched,
    Finding,
    Request,
    StreamEnds,
    SyncRequest,
    SyncStore,
    Wait,
    WaitForEnd,
    Wake,
)
from penstock.stores.own_store import NamespaceViews, OwnStore, OwnSyncStore, WakeCounts
from penstock.stores.result_waiter import EndedJobs, ResultWaiter
from penstock.stores.sql.notifying import ENDED, WORK, LoopListener, Notifier, ThreadListener
from penstock.stores.sql.transaction_context import TransactionContext
from penstock.stores.sql.transactions import Verb
from penstock.stores.sql.verbs import (
    batches,
    changing,
    documents,
    fetching,
    flows,
    leases,
    measuring,
    operating,
    periodic,
    producing,
    promoting,
    pruning,
    removing,
    searching,
    settling,
    stepping,
)

HANDLERS: Mapping[type[Request[Any]], Verb[..., Any]] = {
    contract.Enqueue: Verb(producing.enqueue),
    contract.Get: Verb(producing.get, reads=True),
    contract.CancelJobs: Verb(producing.cancel),
    contract.Fetch: Verb(fetching.fetch, probe=fetching.probe_fetch, syncs=False),
    contract.Extend: Verb(leases.extend, syncs=leases.must_last),
    contract.Settle: Verb(settling.settle),
    contract.Promote: Verb(promoting.promote, probe=promoting.probe_promote, syncs=False),
    contract.Reclaim: Verb(leases.reclaim, probe=leases.probe_reclaim, syncs=False),
    contract.Search: Verb(searching.search, reads=True),
    contract.Queues: Verb(operating.queues, reads=True),
    contract.CountParked: Verb(operating.parked, reads=True),
    contract.Stats: Verb(operating.stats, reads=True),
    contract.Settings: Verb(operating.settings),
    contract.Delete: Verb(removing.delete),
    contract.ChangeJobs: Verb(changing.change_jobs),
    contract.ReplaceJobs: Verb(removing.replace_jobs),
    contract.Purge: Verb(removing.purge),
    contract.Drop: Verb(operating.drop),
    contract.ReadPartition: Verb(operating.partition, reads=True),
    contract.Prune: Verb(pruning.prune, probe=pruning.probe_prune),
    contract.Announce: Verb(operating.announce, syncs=False),
    contract.Retire: Verb(operating.retire, syncs=False),
    contract.Workers: Verb(operating.workers, reads=True),
    contract.Entries: Verb(periodic.entries, reads=True),
    contract.PutEntries: Verb(periodic.put_entries, probe=periodic.probe_put_entries),
    contract.PauseEntries: Verb(periodic.pause_entries),
    contract.DeleteEntries: Verb(periodic.delete_entries),
    contract.Batches: Verb(batches.batches, reads=True),
    contract.FlushBatch: Verb(batches.flush_batch),
    contract.TickEntries: Verb(periodic.tick),
    contract.Documents: Verb(documents.documents, reads=True),
    contract.DocumentVersions: Verb(documents.document_versions, reads=True),
    contract.ChangeDocuments: Verb(documents.change_documents),
    contract.TakeQuota: Verb(documents.take_quota, syncs=False),
    contract.AppendLog: Verb(documents.append_log),
    contract.AddStats: Verb(measuring.add_stats, syncs=False),
    contract.ReadStats: Verb(measuring.read_stats, reads=True),
    contract.ReadErrors: Verb(measuring.read_errors, reads=True),
    contract.SampleDepths: Verb(measuring.sample_depths, probe=measuring.probe_sample_depths, syncs=False),
    contract.ReadDepths: Verb(measuring.read_depths, reads=True),
    contract.QueueSizes: Verb(measuring.queue_sizes, reads=True),
    contract.PutFlow: Verb(flows.put_flow),
    contract.AddToFlow: Verb(flows.add_to_flow),
    contract.GetFlows: Verb(flows.get_flows, reads=True),
    contract.FlowNodes: Verb(flows.flow_nodes, reads=True),
    contract.ListFlows: Verb(flows.list_flows, reads=True),
    contract.ChangeFlow: Verb(flows.change_flow),
    contract.AdvanceFlows: Verb(flows.advance_flows, probe=flows.probe_advance),
    contract.ReadLog: Verb(documents.read_log, reads=True),
    contract.RecordSteps: Verb(stepping.record_steps),
    contract.ForgetSteps: Verb(stepping.forget_steps),
    contract.ReadSteps: Verb(stepping.steps, reads=True),
    contract.AwaitSignals: Verb(stepping.await_signals),
    contract.SendSignals: Verb(stepping.send_signals),
    contract.EditSteps: Verb(stepping.edit_steps),
    contract.Signals: Verb(stepping.signals, reads=True),
    contract.ForgetSignals: Verb(stepping.forget_signals),
    contract.SignalWaiters: Verb(stepping.signal_waiters, reads=True),
}


# ── the store ────────────────────────────────────────────────────────────────────────────────────


A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")

_FIND_ENDED = Verb(producing.find_ended, reads=True)
_LOOK = Verb(fetching.look, reads=True)

#: Waiters re-check at this interval (seconds) even if no notification arrived.
_SAFETY = 1.0
#: A thread that waits for jobs sleeps after a query longer than `_SHORT` for as long as the query took, at
#: most `_REST` (seconds).
_SHORT, _REST = 0.001, 0.1


class SqlRunner(Protocol):
    """Runs verbs in transactions."""

    @property
    def notifiers(self) -> Mapping[str, Notifier]:
        """By name: WORK, after a commit that may give waiters something to do; ENDED, after ends of jobs."""
        ...

    def run(self, namespace: str, verb: Verb[P, R], *args: P.args, **options: P.kwargs) -> Awaitable[R]:
        """Run a verb in this namespace for a coroutine of the running event loop."""
        ...

    def run_sync(self, namespace: str, verb: Verb[P, R], *args: P.args, **options: P.kwargs) -> R:
        """Run a verb in this namespace for the calling thread."""
        ...


class SqlStore(NamespaceViews, OwnStore):
    """A store on a runner of transactions."""

    _clock: Clock
    _runner: SqlRunner
    _seen_counts: SeenCounts
    _sync: SyncStore

    def _set_up(self, namespace: str, runner: SqlRunner, seen_counts: SeenCounts) -> None:
        self._runner, self._seen_counts = runner, seen_counts
        self._listeners: PerLoop[dict[str, LoopListener]] = PerLoop()
        self._result_waiters: PerLoop[ResultWaiter] = PerLoop()
        NamespaceViews.__init__(self, namespace)
        self._sync = _SyncSqlStore(runner, namespace)

    @property
    def sync(self) -> SyncStore:
        return self._sync

    async def _answer(self, request: Request[A]) -> A:
        answer: Any
        if (own := _OWN.get(type(request))) is not None:
            answer = await own(self, request)
        else:
            answer = await self._runner.run(self.namespace, HANDLERS[type(request)], *astuple(request))
        return answer  # type: ignore[no-any-return]

    async def _fetch(self, request: Fetch) -> Fetched:
        """In parts, between which other calls run."""
        run, verb, (queues, *rest) = self._runner.run, HANDLERS[Fetch], astuple(request)
        found: Fetched = await run(self.namespace, verb, queues[:MOST_FETCHED], *rest)
        at = MOST_FETCHED
        while not found.jobs and at < len(queues):
            part: Fetched = await run(self.namespace, verb, queues[at : at + MOST_FETCHED], *rest)
            found, at = part.behind(found), at + MOST_FETCHED
        return found

    async def _wait_for_end(self, request: WaitForEnd) -> list[Job | None]:
        waiter = await self._loop_result_waiter()
        return await waiter.wait_for_end(request.refs, request.timeout, self.get)

    async def stream(self, request: StreamEnds) -> AsyncGenerator[dict[Ref, Job | None], None]:
        result_waiter = await self._loop_result_waiter()
        async with contextlib.aclosing(result_waiter.stream_ends(request.refs, request.timeout)) as ends:
            async for some in ends:
                yield some

    async def _loop_result_waiter(self) -> ResultWaiter:
        """Return the result waiter of the running event loop."""
        loop = asyncio.get_running_loop()
        result_waiter = self._result_waiters.get(loop)
        if result_waiter is None:
            if self._seen_counts.counts is None:  # the notifier exists only after the file is opened
                await self._runner.run(self.namespace, BASELINE, self._seen_counts)
            # not the store: a reference would keep it from being collected
            runner, namespace = self._runner, self.namespace

            async def look(refs: Sequence[Ref], _: float) -> EndedJobs:
                return await runner.run(namespace, _FIND_ENDED, refs)

            result_waiter = ResultWaiter(look, every=_SAFETY, listening=self._listener(ENDED).calling)
            result_waiter = self._result_waiters.put(loop, result_waiter)
        return result_waiter

    async def _wait(self, request: Wait) -> Wake:
        timeout, on_due = request.timeout, request.on_due
        until, ends = self._clock.now() + timeout, time.monotonic() + timeout / 1000
        before = self._seen_counts.counts
        if before is None:
            before = await self._runner.run(self.namespace, BASELINE, self._seen_counts)
        with self._listener(WORK).listening(request.queues) as waiter:
            while True:
                found = await self._runner.run(
                    self.namespace, _LOOK, request.queues, until, before, request.parked, on_due is None
                )
                wake, left = found.wake, ends - time.monotonic()
                if wake or left <= 0:
                    self._seen_counts.update(found.counts)
                    return wake
                if on_due is not None and found.due is not None:
                    on_due(found.due, found.now)
                await waiter.wait(min(left, _SAFETY))

    def _listener(self, name: str) -> LoopListener:
        loop = asyncio.get_running_loop()
        listeners = self._listeners.get(loop)
        if listeners is None:
            listeners = self._listeners.put(loop, {})
        listener = listeners.get(name)
        if listener is None:
            listener = listeners[name] = self._runner.notifiers[name].loop_listener()
        return listener

    async def _checkup(self, request: Checkup) -> list[Finding]:
        return []


#: What the store does for the requests that are not one call of the runner.
_OWN: Mapping[type[Request[Any]], Callable[[Any, Any], Awaitable[Any]]] = {
    Fetch: SqlStore._fetch,
    Wait: SqlStore._wait,
    WaitForEnd: SqlStore._wait_for_end,
    Checkup: lambda store, request: store._checkup(request),
}


class _SyncSqlStore(OwnSyncStore):
    """The sync verbs; each runs in the caller's thread."""

    def __init__(self, runner: SqlRunner, namespace: str) -> None:
        self._runner, self._namespace = runner, namespace

    def _answer(self, request: SyncRequest[A]) -> A:
        answer: Any
        if (verb := HANDLERS.get(type(request))) is not None:
            answer = self._runner.run_sync(self._namespace, verb, *astuple(request))
        else:
            assert isinstance(request, WaitForEnd)
            answer = self._wait_for_end(request)
        return answer  # type: ignore[no-any-return]

    def stream(self, request: StreamEnds) -> Generator[dict[Ref, Job | None], None, None]:
        until = time.monotonic() + request.timeout / 1000
        open, took = list(dict.fromkeys(request.refs)), 0.0
        waiter: ThreadListener | None = None
        with contextlib.ExitStack() as listening:
            while open:
                if took > _SHORT:  # a burst of notifications must not cause a burst of queries
                    time.sleep(min(took, _REST))
                began = time.monotonic()
                found = self._runner.run_sync(self._namespace, _FIND_ENDED, open)
                took = time.monotonic() - began
                left = until - time.monotonic()
                if found:
                    open = [ref for ref in open if ref not in found]
                    yield found
                elif left <= 0:
                    return
                elif waiter is None:  # after this, no notification is missed
                    waiter = listening.enter_context(self._runner.notifiers[ENDED].listening())
                else:
                    waiter.wait(min(left, _SAFETY))


class SeenCounts:
    """The requests to stop and changes of settings that the waits of a store object have reported."""

    def __init__(self) -> None:
        self.counts: WakeCounts | None = None

    def begin(self, tx: TransactionContext) -> None:
        """Set the baseline when the file is first opened: earlier events are never reported."""
        if self.counts is None:
            self.counts = fetching.wake_counts(tx)

    def update(self, now: WakeCounts) -> None:
        """Store what a wait has reported; if several waits end at once, the highest counts stay."""
        self.counts = now if self.counts is None else self.counts.highest(now)


def _baseline(tx: TransactionContext, seen: SeenCounts) -> WakeCounts:
    seen.begin(tx)  # of a view of a namespace: at its first wait
    assert seen.counts is not None
    return seen.counts


BASELINE = Verb(_baseline, reads=True)
