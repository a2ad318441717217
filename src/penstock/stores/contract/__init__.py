"""The contract of a store: the verbs that every store implements. Callers know neither SQL nor Redis.

| module | verbs | used by |
|---|---|---|
| `producing.py` | enqueue, get, cancel, wait_for_end, stream_ends | clients |
| `consuming.py` | fetch, extend, settle, promote, reclaim, wait | workers |
| `scheduling.py` | entries, put, pause, delete, tick | periodic jobs |
| `operating.py` | list, queues, settings, retry, delete, prune, announce … | operators, maintenance |
| `changing.py` | discard, edit_jobs, move_jobs | operators |
| `documenting.py` | documents, change_documents, take_quota, append_log … | HTTP, dashboards |
| `measuring.py` | add_stats, read_stats, read_errors, sample_depths … | workers, operators |
| `flowing.py` | put_flow, get_flows, change_flow, advance_flows … | workflows |
| `stepping.py` | record_steps, steps, await_signals, send_signals | durable steps |
| `searching.py` | search_jobs | operators |
| `store.py` | all of them, and the sync verbs | |

`reports.py`, `checkup.py` and `set_aside.py` define the values that operators read.

Rules for every verb:

- A verb is one atomic step. A verb that takes many items gives one answer per item, in the order of the
  items.
- A verb makes no decisions: `settle` applies the `Transition` that `lifecycle.decide` has computed, if the
  lease token still matches.
- Durations go in, instants come out, both in ms. All instants are by the store's clock, never the caller's.
- An item that cannot be processed changes nothing, and its answer gives the reason. The other items are
  processed.
- A store raises StoreError or one of its subclasses (`errors.py`). Exceptions of a driver never leave a
  store.

Concepts, with an example each:

- docs/concepts/order.md: which job of a queue starts first
- docs/concepts/partitions.md: jobs that share a concurrency key (`Partition`)
- docs/concepts/fair-share.md: tenants that share a queue (`Tenant`)
- docs/concepts/batches.md: single jobs that are collected and run together (`BatchTerms`)
- docs/concepts/unique-keys.md: when a unique key is taken and freed
- docs/concepts/flows.md: jobs that depend on each other (`FlowMember`)
- docs/concepts/time-and-leases.md: clocks, leases, tokens
- docs/concepts/steps.md: what a job remembers, and the signals that it waits for
- docs/concepts/unreadable-records.md: how a store treats a record that cannot be read
"""

from __future__ import annotations

from penstock.stores.contract.changing import Changing, JobEdit, JobMove, check_edits, check_moves
from penstock.stores.contract.checkup import Finding, Level, unreadable_settings_of
from penstock.stores.contract.consuming import (
    Consuming,
    Due,
    Fetched,
    HeartbeatRequest,
    LeaseStatus,
    OnDue,
    Settled,
    Settlement,
    Share,
    Wake,
    WorkerOffer,
    no_outcome,
)
from penstock.stores.contract.documenting import (
    LARGEST_DOCUMENT,
    LONGEST_LOG,
    MOST_DOCUMENTS,
    Document,
    DocumentChange,
    Documenting,
    DocumentPage,
    DocumentStatus,
    LogEntry,
    LogPage,
    QuotaRequest,
    QuotaTaken,
    WrittenDocument,
    check_change,
    check_kind,
)
from penstock.stores.contract.flowing import (
    FLOW_STEP,
    FlowChange,
    Flowing,
    FlowPage,
    SyncFlowing,
    most_steps,
)
from penstock.stores.contract.measuring import (
    ERRORS_KEPT,
    MOST_ERROR_GROUPS,
    MOST_STATS_TASKS,
    REPORTS_REMEMBERED,
    SIZE_SAMPLE,
    DepthPage,
    DepthRow,
    ErrorCount,
    ErrorGroup,
    Measuring,
    QueueSize,
    Resolution,
    StatsPage,
    StatsReport,
    StatsRow,
    TaskCount,
)
from penstock.stores.contract.operating import (
    MOST_LISTED,
    Operating,
    Pruned,
    Replacement,
    SyncOperating,
    check_replacements,
    page_size,
)
from penstock.stores.contract.producing import Enqueued, EnqueueStatus, Producing, SyncProducing
from penstock.stores.contract.reports import (
    PARTITION_SHOWN,
    BatchInfo,
    DayCount,
    Page,
    Parked,
    PartitionInfo,
    QueueInfo,
    QueueStats,
    WorkerInfo,
)
from penstock.stores.contract.scheduling import Scheduling, Tick, TickResult, TickStatus, Timetable
from penstock.stores.contract.searching import (
    DUE_LATER,
    MOST_FOUND,
    SEARCH_BYTES,
    SEARCH_STEP,
    JobFilter,
    JobOrder,
    SearchHit,
    Searching,
    SearchPage,
    TimeRange,
    check_search,
)
from penstock.stores.contract.set_aside import SetAside
from penstock.stores.contract.stepping import (
    LARGEST_MEMORY,
    LARGEST_SIGNAL,
    LONGEST_SIGNAL_NAME,
    LONGEST_STEP_NAME,
    MOST_SIGNALS,
    MOST_STEPS,
    SIGNAL_GRACE,
    SIGNAL_KEPT,
    RecordedStep,
    RecordStatus,
    Signal,
    SignalStatus,
    SignalWait,
    Stepping,
    StepRecord,
    StoredStep,
    SyncStepping,
)
from penstock.stores.contract.store import Store, SyncStore

__all__ = [
    "DUE_LATER",
    "ERRORS_KEPT",
    "FLOW_STEP",
    "LARGEST_DOCUMENT",
    "LARGEST_MEMORY",
    "LARGEST_SIGNAL",
    "LONGEST_LOG",
    "LONGEST_SIGNAL_NAME",
    "LONGEST_STEP_NAME",
    "MOST_DOCUMENTS",
    "MOST_ERROR_GROUPS",
    "MOST_FOUND",
    "MOST_LISTED",
    "MOST_SIGNALS",
    "MOST_STATS_TASKS",
    "MOST_STEPS",
    "PARTITION_SHOWN",
    "REPORTS_REMEMBERED",
    "SEARCH_BYTES",
    "SEARCH_STEP",
    "SIGNAL_GRACE",
    "SIGNAL_KEPT",
    "SIZE_SAMPLE",
    "BatchInfo",
    "Changing",
    "Consuming",
    "DayCount",
    "DepthPage",
    "DepthRow",
    "Document",
    "DocumentChange",
    "DocumentPage",
    "DocumentStatus",
    "Documenting",
    "Due",
    "EnqueueStatus",
    "Enqueued",
    "ErrorCount",
    "ErrorGroup",
    "Fetched",
    "Finding",
    "FlowChange",
    "FlowPage",
    "Flowing",
    "HeartbeatRequest",
    "JobEdit",
    "JobFilter",
    "JobMove",
    "JobOrder",
    "LeaseStatus",
    "Level",
    "LogEntry",
    "LogPage",
    "Measuring",
    "OnDue",
    "Operating",
    "Page",
    "Parked",
    "PartitionInfo",
    "Producing",
    "Pruned",
    "QueueInfo",
    "QueueSize",
    "QueueStats",
    "QuotaRequest",
    "QuotaTaken",
    "RecordStatus",
    "RecordedStep",
    "Replacement",
    "Resolution",
    "Scheduling",
    "SearchHit",
    "SearchPage",
    "Searching",
    "SetAside",
    "Settled",
    "Settlement",
    "Share",
    "Signal",
    "SignalStatus",
    "SignalWait",
    "StatsPage",
    "StatsReport",
    "StatsRow",
    "StepRecord",
    "Stepping",
    "Store",
    "StoredStep",
    "SyncFlowing",
    "SyncOperating",
    "SyncProducing",
    "SyncStepping",
    "SyncStore",
    "TaskCount",
    "Tick",
    "TickResult",
    "TickStatus",
    "TimeRange",
    "Timetable",
    "Wake",
    "WorkerInfo",
    "WorkerOffer",
    "WrittenDocument",
    "check_change",
    "check_edits",
    "check_kind",
    "check_moves",
    "check_replacements",
    "check_search",
    "most_steps",
    "no_outcome",
    "page_size",
    "unreadable_settings_of",
]
