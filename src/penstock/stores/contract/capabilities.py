"""What a store can do: the core that every store has, and the capabilities that a store declares.

Our own stores have all. A store over the keys of another system has the core and what its layout has: one
without ended jobs cannot be followed, say. `store.can(Capability.FOLLOW)` tells; a request of a capability
that a store does not have raises Unsupported, and nothing is stored.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from penstock.core.errors import Unsupported
from penstock.stores.contract import (
    changing,
    consuming,
    documenting,
    flowing,
    measuring,
    operating,
    producing,
    scheduling,
    searching,
    stepping,
)
from penstock.stores.contract.request import Request


class Capability(enum.StrEnum):
    """A group of requests, or of options, that belong together; the value says what they are for."""

    CORE = "keep jobs and lease them"
    FOLLOW = "tell what became of a job, or cancel it"
    CHANGE = "change, move or remove jobs"
    SEARCH = "list or search jobs"
    SCHEDULE = "keep periodic entries"
    WORKERS = "keep a list of workers"
    DOCUMENTS = "keep documents and logs"
    MEASURE = "keep statistics"
    FLOW = "keep flows"
    STEPS = "keep durable steps and signals"

    # of options
    UNIQUE = "keep unique keys"
    PARTITIONS = "limit jobs by a concurrency key"
    FAIR_SHARE = "share a queue fairly"
    BATCHES = "collect jobs in batches"
    LIMITS = "limit queues"
    PRIORITIES = "order jobs by priority"
    EXPIRY = "let jobs expire"
    RETENTION = "keep ended jobs for a chosen time"
    CHECKPOINTS = "keep checkpoints"
    PARKING = "park jobs"

    __hash__ = str.__hash__


#: The requests of each capability that has some; `options.OPTIONS` has the options.
REQUESTS: Mapping[Capability, tuple[type[Request[Any]], ...]] = {
    Capability.CORE: (
        producing.Enqueue,
        consuming.Fetch,
        consuming.Extend,
        consuming.Settle,
        consuming.Promote,
        consuming.Reclaim,
        consuming.Wait,
        operating.Queues,
        operating.Settings,
        operating.Prune,
        operating.Checkup,
    ),
    Capability.FOLLOW: (
        producing.Get,
        producing.CancelJobs,
        producing.WaitForEnd,
        producing.StreamEnds,
    ),
    Capability.CHANGE: (
        operating.Delete,
        operating.ReplaceJobs,
        operating.Purge,
        operating.Drop,
        operating.FlushBatch,
        changing.ChangeJobs,
    ),
    Capability.SEARCH: (
        operating.CountParked,
        operating.ReadPartition,
        operating.Batches,
        searching.Search,
    ),
    Capability.SCHEDULE: (
        scheduling.Entries,
        scheduling.PutEntries,
        scheduling.PauseEntries,
        scheduling.DeleteEntries,
        scheduling.TickEntries,
    ),
    Capability.WORKERS: (operating.Announce, operating.Retire, operating.Workers),
    Capability.DOCUMENTS: (
        documenting.Documents,
        documenting.DocumentVersions,
        documenting.ChangeDocuments,
        documenting.TakeQuota,
        documenting.AppendLog,
        documenting.ReadLog,
    ),
    Capability.MEASURE: (
        operating.Stats,
        measuring.AddStats,
        measuring.ReadStats,
        measuring.ReadErrors,
        measuring.SampleDepths,
        measuring.ReadDepths,
        measuring.QueueSizes,
    ),
    Capability.FLOW: (
        flowing.PutFlow,
        flowing.AddToFlow,
        flowing.GetFlows,
        flowing.FlowNodes,
        flowing.ListFlows,
        flowing.ChangeFlow,
        flowing.AdvanceFlows,
    ),
    Capability.STEPS: (
        stepping.RecordSteps,
        stepping.ForgetSteps,
        stepping.ReadSteps,
        stepping.AwaitSignals,
        stepping.SendSignals,
        stepping.EditSteps,
        stepping.Signals,
        stepping.ForgetSignals,
        stepping.SignalWaiters,
    ),
}

_OF: Mapping[type[Request[Any]], Capability] = {
    request: capability for capability, group in REQUESTS.items() for request in group
}


def capability_of(request: type[Request[Any]]) -> Capability:
    """The capability that a request belongs to."""
    return _OF[request]


def unsupported(url: str, request: type[Request[Any]]) -> Unsupported:
    """The error for a request that a store cannot answer."""
    return Unsupported(
        f"{url} cannot {capability_of(request).value}, which {request.verb!r} needs; nothing was changed"
    )
