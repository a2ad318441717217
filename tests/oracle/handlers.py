"""What the oracle does for each request: a function of its data.

A function gets the arguments of its request, in the order of the fields.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec.structs import astuple

from penstock.core.clock import Clock
from penstock.core.errors import StoreError, StoreReentered
from penstock.stores import contract
from penstock.stores.contract import Request
from penstock.stores.rate_limiter import ExactRateLimiter, RateLimiter
from tests.oracle.state import MemoryState, named
from tests.oracle.verbs import (
    changing,
    depths,
    documents,
    fetching,
    flows,
    leases,
    listing,
    measuring,
    operating,
    periodic,
    producing,
    promoting,
    pruning,
    searching,
    settling,
    stepping,
    workers,
)

__all__ = ["HANDLERS", "OwnedMemory"]

A = TypeVar("A")


class OwnedMemory:
    """The data of one store object, for the process that made it."""

    def __init__(self, name: str, namespace: str, clock: Clock, *, exact: bool) -> None:
        self.url = f"memory://{name}"
        self._memory = (
            named(name, namespace, clock)
            if name
            else MemoryState(clock, ExactRateLimiter if exact else RateLimiter)
        )

    @property
    def memory(self) -> MemoryState:
        """The data; raises StoreError in a forked child, because no worker would see its copy."""
        if self._memory.pid != os.getpid():
            raise StoreError(
                f"{self.url} belongs to one process, and this is a fork of it: jobs stored here are lost; "
                "use sqlite:///FILE to share jobs between processes"
            )
        return self._memory

    def answer(self, request: Request[A]) -> A:
        """Do what a request says, in one atomic step."""
        memory, act = self.memory, HANDLERS[type(request)]
        with memory.lock:
            if memory.in_verb:  # a signal handler or a `__del__` in the middle of a verb
                raise StoreReentered(self.url)
            memory.in_verb = True
            try:
                answer: A = act(memory, *astuple(request))
                if memory.flow_ends:
                    flows.count_ends(memory)
                return answer
            finally:
                memory.in_verb = False


HANDLERS: Mapping[type[Request[Any]], Callable[..., Any]] = {
    contract.Enqueue: producing.enqueue,
    contract.Get: producing.get,
    contract.CancelJobs: producing.cancel,
    contract.Fetch: fetching.fetch,
    contract.Extend: leases.extend,
    contract.Settle: settling.settle,
    contract.Promote: promoting.promote,
    contract.Reclaim: leases.reclaim,
    contract.Search: searching.search,
    contract.Queues: listing.queues,
    contract.CountParked: listing.parked,
    contract.Stats: listing.stats,
    contract.Settings: operating.settings,
    contract.Delete: operating.delete,
    contract.ChangeJobs: changing.change_jobs,
    contract.ReplaceJobs: operating.replace_jobs,
    contract.Purge: operating.purge,
    contract.Drop: operating.drop,
    contract.ReadPartition: listing.partition,
    contract.Prune: pruning.prune,
    contract.Announce: workers.announce,
    contract.Retire: workers.retire,
    contract.Workers: workers.workers,
    contract.Entries: periodic.entries,
    contract.PutEntries: periodic.put_entries,
    contract.PauseEntries: periodic.pause_entries,
    contract.DeleteEntries: periodic.delete_entries,
    contract.Batches: listing.batches,
    contract.FlushBatch: operating.flush_batch,
    contract.TickEntries: periodic.tick,
    contract.Documents: documents.documents,
    contract.DocumentVersions: documents.document_versions,
    contract.ChangeDocuments: documents.change_documents,
    contract.TakeQuota: documents.take_quota,
    contract.AppendLog: documents.append_log,
    contract.ReadLog: documents.read_log,
    contract.AddStats: measuring.add_stats,
    contract.ReadStats: measuring.read_stats,
    contract.ReadErrors: measuring.read_errors,
    contract.SampleDepths: depths.sample_depths,
    contract.ReadDepths: depths.read_depths,
    contract.QueueSizes: measuring.queue_sizes,
    contract.PutFlow: flows.put_flow,
    contract.AddToFlow: flows.add_to_flow,
    contract.GetFlows: flows.get_flows,
    contract.FlowNodes: flows.flow_nodes,
    contract.ListFlows: flows.list_flows,
    contract.ChangeFlow: flows.change_flow,
    contract.AdvanceFlows: flows.advance_flows,
    contract.RecordSteps: stepping.record_steps,
    contract.ForgetSteps: stepping.forget_steps,
    contract.ReadSteps: stepping.steps,
    contract.AwaitSignals: stepping.await_signals,
    contract.SendSignals: stepping.send_signals,
    contract.EditSteps: stepping.edit_steps,
    contract.Signals: stepping.signals,
    contract.ForgetSignals: stepping.forget_signals,
    contract.SignalWaiters: stepping.signal_waiters,
}
