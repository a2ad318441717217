"""Put a job into all indexes that its state requires, and take it out of them."""

from __future__ import annotations

from penstock.core.job import State
from tests.oracle import keys
from tests.oracle.rows import Row
from tests.oracle.sorted import Sorted
from tests.oracle.state import MemoryState

__all__ = ["put", "take"]


def put(memory: MemoryState, row: Row) -> None:
    """Put a row into every index that its state requires, and notify waiters."""
    job, queue, generation = row.job, row.queue, row.generation
    queue.counts[job.state] += 1
    match job.state:
        case State.AVAILABLE:
            if queue.fair is not None and row.at_tail:
                row.place = queue.fair_share_of(job.spec.priority, queue.fair).draw(job.spec.tenant)
            row.at_tail = False
            queue.ready.put(generation, (-job.spec.priority, row.place))
            queue.oldest.put(generation, job.run_at)
        case State.SCHEDULED | State.RETRYABLE | State.SUSPENDED:
            queue.due.put(generation, job.run_at)
        case State.PARKED:
            parked = queue.parked.setdefault(job.task, Sorted())
            parked.put(generation, (-job.spec.priority, row.place))
        case State.WAITING:
            assert job.spec.partition is not None
            order = job.spec.partition.rank(job.spec.priority), row.place
            queue.partitions[job.spec.partition.key].waiting.put(generation, order)
        case State.RUNNING:
            assert job.token is not None
            assert job.worker is not None
            queue.leases.put(generation, row.lease_until)
            memory.tokens.setdefault(job.token, {})[generation] = row
            memory.held.setdefault(job.worker, {})[generation] = row
            return
        case State.COLLECTING:
            if job.batch is None:
                assert job.spec.batch_terms is not None
                queue.batch_buffer.join(row.batch_name, generation, job.spec.batch_terms, job.run_at)
        case _:
            queue.ended[job.state].put(generation, job.ended_at or 0)
            memory.over.put(generation, row.over_at)
            if job.spec.unique is not None:
                keys.end(memory, row, job.spec.unique)
            if memory.waiters.end_watches:
                memory.waiters.notify_ended(job)
            return
    if job.expires_at is not None:
        memory.expiring.put(generation, job.expires_at)
    if memory.waiters.queue_notifiers:
        memory.waiters.notify_work(queue.name)


def take(memory: MemoryState, row: Row, *, starts: bool = False) -> None:
    """Take a row out of every index of its state. `starts`: it was fetched, so it keeps its place."""
    job, queue, generation = row.job, row.queue, row.generation
    queue.counts[job.state] -= 1
    match job.state:
        case State.AVAILABLE:
            queue.ready.drop(generation)
            queue.oldest.drop(generation)
            if not starts and (fair_share := row.fair_share) is not None:
                fair_share.give_back(job.spec.tenant)
        case State.SCHEDULED | State.RETRYABLE | State.SUSPENDED:
            queue.due.drop(generation)
        case State.PARKED:
            queue.parked[job.task].drop(generation)
            if not queue.parked[job.task]:
                del queue.parked[job.task]
        case State.WAITING:
            assert job.spec.partition is not None
            queue.partitions[job.spec.partition.key].waiting.drop(generation)
        case State.RUNNING:
            assert job.token is not None
            assert job.worker is not None
            queue.leases.drop(generation)
            _drop(memory.tokens, job.token, generation)
            _drop(memory.held, job.worker, generation)
            if queue.rate_limiter.limits.max_running is not None and (queue.ready.first() or queue.parked):
                memory.waiters.notify_work(queue.name)
        case State.COLLECTING:
            if job.batch is None:
                queue.batch_buffer.leave(row.batch_name, generation)
        case _:
            queue.ended[job.state].drop(generation)
            memory.over.drop(generation)
    if job.expires_at is not None:
        memory.expiring.drop(generation)


def _drop(leased: dict[str, dict[int, Row]], name: str, generation: int) -> None:
    rows = leased[name]
    del rows[generation]
    if not rows:
        del leased[name]
