"""Workers: announce, retire and list them. A worker that has stopped announcing itself is not listed."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.stores.contract import WorkerInfo
from tests.oracle.state import MemoryState

__all__ = ["announce", "retire", "silent", "workers"]

_SILENT = 60_000  # a worker that has not announced itself for this long (ms) counts as stopped


def announce(memory: MemoryState, worker: WorkerInfo) -> None:
    memory.workers[worker.id] = replace(worker, seen_at=memory.clock.now())


def retire(memory: MemoryState, worker: str) -> None:
    memory.workers.pop(worker, None)


def workers(memory: MemoryState) -> list[WorkerInfo]:
    now = memory.clock.now()
    seen = [worker for worker in memory.workers.values() if not silent(worker, now)]
    return sorted(seen, key=lambda worker: (worker.started_at, worker.id))


def silent(worker: WorkerInfo, now: int) -> bool:
    return now - worker.seen_at > _SILENT
