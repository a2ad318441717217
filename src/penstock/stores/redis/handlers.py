"""What the Redis store does for each request: a function that makes the plan of its calls.

A function gets the arguments of its request, in the order of the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.stores import contract
from penstock.stores.contract import Request
from penstock.stores.redis.context import CallPlan
from penstock.stores.redis.verbs import (
    changing,
    documents,
    fetching,
    flows,
    leases,
    listing,
    maintenance,
    measuring,
    operating,
    periodic,
    producing,
    searching,
    settling,
    signalling,
    stepping,
    workers,
)

HANDLERS: Mapping[type[Request[Any]], Callable[..., CallPlan[Any]]] = {
    contract.Enqueue: producing.enqueue,
    contract.Get: producing.get,
    contract.CancelJobs: producing.cancel,
    contract.Fetch: fetching.fetch,
    contract.Extend: leases.extend,
    contract.Settle: settling.settle,
    contract.Promote: maintenance.promote,
    contract.Reclaim: leases.reclaim,
    contract.Search: searching.search,
    contract.Queues: listing.queues,
    contract.CountParked: listing.parked,
    contract.Stats: listing.stats,
    contract.Settings: operating.settings,
    contract.Delete: operating.delete,
    contract.ChangeJobs: changing.change_jobs,
    contract.ReplaceJobs: producing.replace_jobs,
    contract.Purge: operating.purge,
    contract.Drop: operating.drop,
    contract.ReadPartition: listing.partition,
    contract.Prune: maintenance.prune,
    contract.Announce: workers.announce,
    contract.Retire: workers.retire,
    contract.Workers: workers.workers,
    contract.Entries: periodic.entries,
    contract.PutEntries: periodic.put_entries,
    contract.PauseEntries: periodic.pause_entries,
    contract.DeleteEntries: periodic.delete_entries,
    contract.Batches: operating.batches,
    contract.FlushBatch: operating.flush_batch,
    contract.TickEntries: periodic.tick,
    contract.Documents: documents.documents,
    contract.DocumentVersions: documents.document_versions,
    contract.ChangeDocuments: documents.change_documents,
    contract.TakeQuota: documents.take_quota,
    contract.AppendLog: documents.append_log,
    contract.AddStats: measuring.add_stats,
    contract.ReadStats: measuring.read_stats,
    contract.ReadErrors: measuring.read_errors,
    contract.SampleDepths: measuring.sample_depths,
    contract.ReadDepths: measuring.read_depths,
    contract.QueueSizes: measuring.queue_sizes,
    contract.PutFlow: flows.put_flow,
    contract.AddToFlow: flows.add_to_flow,
    contract.GetFlows: flows.get_flows,
    contract.FlowNodes: flows.flow_nodes,
    contract.ListFlows: flows.list_flows,
    contract.ChangeFlow: flows.change_flow,
    contract.AdvanceFlows: flows.advance_flows,
    contract.ReadLog: documents.read_log,
    contract.RecordSteps: stepping.record_steps,
    contract.ForgetSteps: stepping.forget_steps,
    contract.ReadSteps: stepping.steps,
    contract.AwaitSignals: signalling.await_signals,
    contract.SendSignals: signalling.send_signals,
    contract.EditSteps: stepping.edit_steps,
    contract.Signals: signalling.signals,
    contract.ForgetSignals: signalling.forget_signals,
    contract.SignalWaiters: signalling.signal_waiters,
}
