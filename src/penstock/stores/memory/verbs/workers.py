"""Who works: workers announce themselves again and again, and one that is silent is not shown any more."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.stores.contract import WorkerInfo
from penstock.stores.memory.state import Shelf

__all__ = ["announce", "retire", "silent", "workers"]

_SILENT = 60_000  # after so long (ms) it is taken to be away


def announce(shelf: Shelf, worker: WorkerInfo) -> None:
    shelf.workers[worker.id] = replace(worker, seen_at=shelf.clock.now())


def retire(shelf: Shelf, worker: str) -> None:
    shelf.workers.pop(worker, None)


def workers(shelf: Shelf) -> list[WorkerInfo]:
    now = shelf.clock.now()
    seen = [worker for worker in shelf.workers.values() if not silent(worker, now)]
    return sorted(seen, key=lambda worker: (worker.started_at, worker.id))


def silent(worker: WorkerInfo, now: int) -> bool:
    return now - worker.seen_at > _SILENT
