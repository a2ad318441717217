"""prune: remove old jobs, unique keys, daily counts and workers; cancel expired jobs."""

from __future__ import annotations

from penstock.core.job import State
from penstock.core.lifecycle import EXPIRED
from penstock.stores.contract import Pruned
from tests.oracle import keys, partitions, transitions
from tests.oracle.rows import DAY, MemoryQueue
from tests.oracle.state import MemoryState
from tests.oracle.verbs.workers import silent

__all__ = ["DAYS_KEPT", "prune"]

#: Number of days for which daily counts are kept.
DAYS_KEPT = 90


def prune(memory: MemoryState, limit: int, keep_finished: int, keep_dead: int, _: str) -> Pruned:
    now = memory.clock.now()
    for queue in memory.queues.values():
        _forget_idle(queue, now)
        _forget_days(queue, now)
    finished = _prune_ended(memory, limit, keep_finished, keep_dead, now)
    expired = _prune_expired(memory, limit - finished, now)
    workers = _prune_workers(memory, limit - finished - expired, now)
    return Pruned(finished, expired, workers, _prune_keys(memory, limit, now))


def _prune_ended(memory: MemoryState, limit: int, keep_finished: int, keep_dead: int, now: int) -> int:
    keep = {State.COMPLETED: keep_finished, State.CANCELLED: keep_finished, State.DEAD: keep_dead}
    gone = 0
    while gone < limit and (first := memory.over.first()) is not None and first[0] <= now:
        gone += _forget(memory, first[1])
    for queue in memory.known(None):
        for state, newest in keep.items():
            most, until = queue.rate_limiter.limits.kept(state is State.DEAD, newest, now)
            ended = queue.ended[state]
            while gone < limit and (first := ended.first()) is not None:
                if len(ended) <= most and first[0] > until:
                    break
                gone += _forget(memory, first[1])
    return gone


def _forget(memory: MemoryState, generation: int) -> int:
    transitions.drop(memory, memory.rows[generation], forgotten=True)
    return 1


def _prune_expired(memory: MemoryState, limit: int, now: int) -> int:
    done = 0
    while done < limit and (first := memory.expiring.first()) is not None and first[0] <= now:
        transitions.end_queued(memory, memory.rows[first[1]], EXPIRED, now)
        done += 1
    return done


def _prune_workers(memory: MemoryState, limit: int, now: int) -> int:
    gone = sorted((w.seen_at, w.id) for w in memory.workers.values() if silent(w, now))[: max(0, limit)]
    for _, id in gone:
        del memory.workers[id]
    return len(gone)


def _prune_keys(memory: MemoryState, limit: int, now: int) -> int:
    done = 0
    for queue in memory.queues.values():
        while done < limit and (first := queue.key_ends.first()) is not None and first[0] <= now:
            keys.free(memory, first[1])
            done += 1
    return done


def _forget_idle(queue: MemoryQueue, now: int) -> None:
    """Delete unused partitions, and the fair shares of a queue without available jobs."""
    partitions.forget_idle(queue, now)
    if not queue.counts[State.AVAILABLE]:
        for share in queue.fair_share.values():
            share.rest()


def _forget_days(queue: MemoryQueue, now: int) -> None:
    for day in [day for day in queue.days if day <= now // DAY - DAYS_KEPT]:
        del queue.days[day]
