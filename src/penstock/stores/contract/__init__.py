"""The contract of a store: what every store can do. Code above it knows neither SQL nor Redis.

| page | verbs | for |
|---|---|---|
| `producing.py` | enqueue, get, cancel, ended, ends | clients |
| `consuming.py` | fetch, extend, settle, promote, reclaim, wait | workers |
| `scheduling.py` | entries, put, pause, delete, tick | periodic jobs |
| `operating.py` | list, queues, settings, retry, delete, prune, announce … | operators, maintenance |
| `store.py` | all of them, and the sync door | |

`reports.py`, `checkup.py` and `set_aside.py` have the values that operators read.

Rules for every verb:

- A verb is one atomic step. A verb for a batch answers per item, in the order of the items.
- A verb decides nothing: `settle` applies the `Transition` that `lifecycle.decide` has made, if the token of
  the lease still matches.
- Durations go in, instants come out, both in ms. The store's clock counts, never the caller's.
- An item that cannot be processed changes nothing and says so in its answer. The batch never fails for it.
- Errors are those of `errors.py` under StoreError. Exceptions of a driver never leave a store.

Concepts, with an example each:

- docs/concepts/order.md: which job of a queue starts first
- docs/concepts/partitions.md: jobs that share a concurrency key (`Lane`)
- docs/concepts/fair-share.md: turns among tenants (`Turn`)
- docs/concepts/batches.md: jobs that are collected (`Group`)
- docs/concepts/unique-keys.md: when a unique key is taken and freed
- docs/concepts/time-and-leases.md: clocks, leases, tokens
- docs/concepts/unreadable-records.md: what happens to a record that cannot be read
"""

from __future__ import annotations

from penstock.stores.contract.checkup import Finding, Level, unreadable_settings_of
from penstock.stores.contract.consuming import (
    Consuming,
    Due,
    Fetched,
    HeartbeatRequest,
    LeaseStatus,
    Offer,
    Settled,
    Settlement,
    Share,
    Wake,
    no_outcome,
)
from penstock.stores.contract.operating import Operating, Pruned, SyncOperating
from penstock.stores.contract.producing import Enqueued, EnqueueStatus, Producing, SyncProducing
from penstock.stores.contract.reports import (
    LANE_SHOWN,
    DayCount,
    GroupInfo,
    LaneInfo,
    Page,
    Parked,
    QueueInfo,
    QueueStats,
    WorkerInfo,
)
from penstock.stores.contract.scheduling import Scheduling, Tick, TickResult, TickStatus, Timetable
from penstock.stores.contract.set_aside import SetAside
from penstock.stores.contract.store import Store, SyncStore

__all__ = [
    "LANE_SHOWN",
    "Consuming",
    "DayCount",
    "Due",
    "EnqueueStatus",
    "Enqueued",
    "Fetched",
    "Finding",
    "GroupInfo",
    "HeartbeatRequest",
    "LaneInfo",
    "LeaseStatus",
    "Level",
    "Offer",
    "Operating",
    "Page",
    "Parked",
    "Producing",
    "Pruned",
    "QueueInfo",
    "QueueStats",
    "Scheduling",
    "SetAside",
    "Settled",
    "Settlement",
    "Share",
    "Store",
    "SyncOperating",
    "SyncProducing",
    "SyncStore",
    "Tick",
    "TickResult",
    "TickStatus",
    "Timetable",
    "Wake",
    "WorkerInfo",
    "no_outcome",
    "unreadable_settings_of",
]
