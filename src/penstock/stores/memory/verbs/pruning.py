"""Pruning: what has been kept for long enough goes, so that nothing on the shelf grows for ever."""

from __future__ import annotations

from penstock.core.job import State
from penstock.core.lifecycle import EXPIRED
from penstock.stores.contract import Pruned
from penstock.stores.memory import keys, partitions, transitions
from penstock.stores.memory.rows import DAY, Queue
from penstock.stores.memory.state import Shelf
from penstock.stores.memory.verbs.workers import silent

__all__ = ["DAYS_KEPT", "prune"]

#: For so many days the counts of a queue are kept.
DAYS_KEPT = 90


def prune(shelf: Shelf, limit: int, keep_finished: int, keep_dead: int) -> Pruned:
    now = shelf.clock.now()
    for queue in shelf.queues.values():
        _forget_ties(queue, now)
        _forget_days(queue, now)
    finished = _prune_ended(shelf, limit, keep_finished, keep_dead, now)
    expired = _prune_expired(shelf, limit - finished, now)
    workers = _prune_workers(shelf, limit - finished - expired, now)
    return Pruned(finished, expired, workers, _prune_keys(shelf, limit, now))


def _prune_ended(shelf: Shelf, limit: int, keep_finished: int, keep_dead: int, now: int) -> int:
    keep = {State.COMPLETED: keep_finished, State.CANCELLED: keep_finished, State.DEAD: keep_dead}
    gone = 0
    while gone < limit and (first := shelf.over.first()) is not None and first[0] <= now:
        gone += _forget(shelf, first[1])
    for queue in shelf.known(None):
        for state, newest in keep.items():
            most, until = queue.gate.limits.kept(state is State.DEAD, newest, now)
            ended = queue.ended[state]
            while gone < limit and (first := ended.first()) is not None:
                if len(ended) <= most and first[0] > until:
                    break
                gone += _forget(shelf, first[1])
    return gone


def _forget(shelf: Shelf, generation: int) -> int:
    transitions.drop(shelf, shelf.rows[generation], forgotten=True)
    return 1


def _prune_expired(shelf: Shelf, limit: int, now: int) -> int:
    done = 0
    while done < limit and (first := shelf.expiring.first()) is not None and first[0] <= now:
        transitions.end_queued(shelf, shelf.rows[first[1]], EXPIRED, now)
        done += 1
    return done


def _prune_workers(shelf: Shelf, limit: int, now: int) -> int:
    gone = sorted((w.seen_at, w.id) for w in shelf.workers.values() if silent(w, now))[: max(0, limit)]
    for _, id in gone:
        del shelf.workers[id]
    return len(gone)


def _prune_keys(shelf: Shelf, limit: int, now: int) -> int:
    done = 0
    for queue in shelf.queues.values():
        while done < limit and (first := queue.key_ends.first()) is not None and first[0] <= now:
            keys.free(shelf, first[1])
            done += 1
    return done


def _forget_ties(queue: Queue, now: int) -> None:
    """What nobody has a use for: lanes whose rate is as it was, the turns of a queue with no job."""
    partitions.forget_idle(queue, now)
    if not queue.counts[State.AVAILABLE]:
        for turns in queue.turns.values():
            turns.rest()


def _forget_days(queue: Queue, now: int) -> None:
    for day in [day for day in queue.days if day <= now // DAY - DAYS_KEPT]:
        del queue.days[day]
