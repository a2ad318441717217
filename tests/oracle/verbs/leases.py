"""extend and reclaim: extend leases that are still held, and lease lost jobs to another worker."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.core.lifecycle import LOST_BY
from penstock.stores.contract import Fetched, HeartbeatRequest, LeaseStatus
from penstock.stores.text_encoding import storable_progress
from tests.oracle import indexes, transitions
from tests.oracle.rows import Row
from tests.oracle.state import MemoryState

__all__ = ["extend", "notice_reboot", "reclaim"]

_VOID = -1  # the end of a lease from an earlier boot: before the end of any other lease


def extend(memory: MemoryState, requests: Sequence[HeartbeatRequest]) -> list[LeaseStatus]:
    notice_reboot(memory)
    return [_extend(memory, request) for request in requests]


def _extend(memory: MemoryState, request: HeartbeatRequest) -> LeaseStatus:
    row = memory.leased(request.lease)
    if row is None:
        return LeaseStatus.LOST
    _set_end(row, memory.clock.lease_now() + request.by)
    job = row.job
    row.job = replace(
        job,
        started=job.started or request.started,
        progress=job.progress if request.progress is None else storable_progress(request.progress),
        checkpoint=job.checkpoint if request.checkpoint is None else request.checkpoint,
    )
    return LeaseStatus.CANCEL_ASKED if job.cancel_asked else LeaseStatus.HELD


def reclaim(
    memory: MemoryState,
    queues: Sequence[str],
    limit: int,
    lease: int,
    worker: str,
    token: str,
    of: Sequence[str] | None,
) -> Fetched:
    notice_reboot(memory)
    jobs = memory.under(token)
    if not jobs:
        steady = memory.clock.lease_now()
        rows = _run_out(memory, queues, limit, steady) if of is None else _held_by(memory, of, limit)
        for row in rows:
            indexes.take(memory, row)
            row.lease_until = steady + lease
            lost_by = f"{LOST_BY}{row.job.worker}"
            row.job = replace(row.job, worker=worker, token=token, reason=lost_by)
            transitions.put(memory, row)
            jobs.append(row.job)
    return Fetched(jobs, memory.clock.now())


def _run_out(memory: MemoryState, queues: Sequence[str], limit: int, steady: int) -> list[Row]:
    leases = [queue.leases for queue in memory.known(queues)]
    rows: list[Row] = []
    while len(rows) < limit:
        first = min((f for f in (lease.first() for lease in leases) if f is not None), default=None)
        if first is None or first[0] > steady:
            break
        row = memory.rows[first[1]]
        row.queue.leases.drop(row.generation)  # its new lease may run out at once: only once per call
        rows.append(row)
    return rows


def _held_by(memory: MemoryState, workers: Sequence[str], limit: int) -> list[Row]:
    held = {g: row for worker in workers for g, row in memory.held.get(worker, {}).items()}
    return [held[generation] for generation in sorted(held)[: max(0, limit)]]


def notice_reboot(memory: MemoryState) -> None:
    """Void all leases if the machine has rebooted: they are on the clock of an earlier boot."""
    boot = memory.clock.boot_id()
    if boot == memory.boot:
        return
    memory.boot = boot
    for held in memory.held.values():
        for row in held.values():
            _set_end(row, _VOID)


def _set_end(row: Row, until: int) -> None:
    row.lease_until = until
    row.queue.leases.move(row.generation, until)
