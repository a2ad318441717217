"""Workers: announce, retire and list them. A worker that has stopped announcing itself is not listed."""

from __future__ import annotations

import msgspec

from penstock.stores.contract import WorkerInfo
from penstock.stores.sqlite.blobs import worker_blob, worker_of
from penstock.stores.sqlite.sql import SQL
from penstock.stores.sqlite.transaction_context import TransactionContext

__all__ = ["SILENT", "announce", "retire", "workers"]

_ANNOUNCE = SQL["queues.announce"]
_FORGET_WORKER = SQL["prune.worker"]
_WORKERS = SQL["queues.workers"]

#: A worker that has not announced itself for this long (ms) counts as stopped.
SILENT = 60_000


def announce(tx: TransactionContext, worker: WorkerInfo) -> None:
    seen = msgspec.structs.replace(worker, seen_at=tx.now)
    tx.execute(_ANNOUNCE, (tx.namespace, worker.id, tx.now, worker_blob(seen)))


def retire(tx: TransactionContext, worker: str) -> None:
    tx.execute(_FORGET_WORKER, (tx.namespace, worker))


def workers(tx: TransactionContext) -> list[WorkerInfo]:
    rows = tx.execute(_WORKERS, (tx.namespace, tx.now - SILENT))
    return sorted((worker_of(*row) for row in rows), key=lambda w: (w.started_at, w.id))
