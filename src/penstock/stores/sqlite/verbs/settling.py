"""settle: all that ended well at once, the rest one job at a time."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence

from penstock.core.job import MAX_ERRORS, TERMINAL, AttemptError, Lease, Ref, State
from penstock.core.lifecycle import Place, Transition
from penstock.stores.contract import Settled, Settlement, no_outcome
from penstock.stores.sqlite import partitions
from penstock.stores.sqlite.blobs import errors_blob, errors_of
from penstock.stores.sqlite.rows import Row, Unreadable, numbers
from penstock.stores.sqlite.sql import SQL
from penstock.stores.sqlite.states import CODE, RUNNING
from penstock.stores.sqlite.transaction_context import QueueContext, TransactionContext
from penstock.stores.sqlite.verbs import limits
from penstock.stores.sqlite.verbs.batches import drop_members, end_members
from penstock.stores.sqlite.verbs.keys import forget_key, shift_key
from penstock.stores.sqlite.verbs.producing import enqueue_one
from penstock.stores.text_encoding import reason_after, storable

__all__ = ["settle"]

_REMOVE = SQL["settle.remove"]
_LEFT = SQL["settle.left"]
_KEEP = SQL["settle.keep"]
_LOOK = SQL["settle.look"]
_MOVE = SQL["settle.move"]
_DROP = SQL["settle.drop"]

_COMPLETED = State.COMPLETED


def settle(tx: TransactionContext, settlements: Sequence[Settlement]) -> list[Settled]:
    if len(settlements) == 1:
        _check(settlements[0])
        return [_settle_one(tx, settlements[0], _heads(tx, settlements))]
    simple, rest = _sort(tx, settlements)
    answers = [Settled.APPLIED] * len(settlements)
    tied = None if simple is None else simple.settle(tx)
    if tied is None:
        rest = list(range(len(settlements)))
    elif tied:
        rest = sorted({*rest, *(n for n, one in enumerate(settlements) if _generation(one) in tied)})
    if rest:
        heads = _heads(tx, [settlements[place] for place in rest])
        for place in rest:
            answers[place] = _settle_one(tx, settlements[place], heads)
    return answers


def _check(one: Settlement) -> None:
    no_outcome(one.transition)


def _generation(one: Settlement) -> int:
    return one.lease.generation if isinstance(one.lease, Lease) else -1


# ── all that ended well ──────────────────────────────────────────────────────────────────────────


class _Simple:
    """Jobs that are completed, and no more than that."""

    __slots__ = ("gone", "kept", "queues", "tied")

    def __init__(self) -> None:
        self.gone: dict[tuple[int, str], list[int]] = {}  # generations, by queue and token
        self.kept: list[Row] = []
        self.queues: dict[int, QueueContext] = {}
        self.tied: set[int] = set()  # generations

    def settle(self, tx: TransactionContext) -> set[int] | None:
        """All of them but those that are tied to others, whose generations come back; or nothing, and None,
        if one of the leases does not hold."""
        cx = tx.cx
        cx.execute("SAVEPOINT simple")
        try:
            all_hold = self._remove(cx) and self._keep(cx)
        except OverflowError:  # of one of them: which one is seen when they go one by one
            all_hold = False
        if not all_hold:
            cx.execute("ROLLBACK TO simple")
        cx.execute("RELEASE simple")
        if not all_hold:
            return None
        self._count(tx)
        return self.tied

    def _remove(self, cx: sqlite3.Connection) -> bool:
        for (qid, token), seqs in self.gone.items():
            done = cx.execute(_REMOVE, (numbers(seqs), qid, token)).rowcount
            if done != len(seqs):
                left = self._left(cx, qid, token, seqs)
                if done + len(left) != len(seqs):
                    return False
                seqs[:] = [seq for seq in seqs if seq not in left]
        return True

    def _keep(self, cx: sqlite3.Connection) -> bool:
        if not self.kept:
            return True
        done = cx.executemany(_KEEP, self.kept).rowcount
        if done == len(self.kept):
            return True
        under: dict[tuple[int, str], list[int]] = {}
        for seq, qid, _, token, *_ in self.kept:
            under.setdefault((qid, token), []).append(seq)
        left = {seq for (qid, token), seqs in under.items() for seq in self._left(cx, qid, token, seqs)}
        if done + len(left) != len(self.kept):
            return False
        self.kept = [row for row in self.kept if row[0] not in left]
        return True

    def _left(self, cx: sqlite3.Connection, qid: int, token: str, seqs: list[int]) -> set[int]:
        """Those of these leases that hold, and whose jobs are tied."""
        left = {seq for (seq,) in cx.execute(_LEFT, (numbers(seqs), qid, token))}
        self.tied |= left
        return left

    def _count(self, tx: TransactionContext) -> None:
        for (qid, _), seqs in self.gone.items():
            tx.move(self.queues[qid], RUNNING, None, len(seqs))
            tx.settled(self.queues[qid], len(seqs), 0)
        for qid, n in Counter([row[1] for row in self.kept]).items():
            tx.move(self.queues[qid], RUNNING, CODE[State.COMPLETED], n)
            tx.settled(self.queues[qid], n, 0)


def _sort(tx: TransactionContext, settlements: Sequence[Settlement]) -> tuple[_Simple | None, list[int]]:
    """What simply ended well, and the places in the call of the rest.

    Jobs that are settled once and bring no others do not touch each other, so that their order is free;
    else all have to be settled in the order of the call: no simple ones.
    """
    simple, rest = _Simple(), []
    gone, kept, queues, now = simple.gone, simple.kept, simple.queues, tx.now
    in_order = False
    name, queue, token = "", None, ""
    seqs: list[int] = []
    heap: list[int] = []  # those of the last queue and token
    for place, one in enumerate(settlements):
        lease, to = one.lease, one.transition
        if type(lease) is not Lease or one.then:
            in_order = True
            _check(one)
            continue
        seqs.append(lease.generation)
        if lease.queue != name:
            name, queue, token = lease.queue, tx.queue(lease.queue), ""
            if queue is not None:
                queues[queue.qid] = queue
        if (
            queue is not None
            and not queue.laned
            and to.state is _COMPLETED
            and to.error is None
            and to.charge
            and not to.lost
        ):
            if to.keep > 0:
                held = (lease.generation, queue.qid, lease.id, lease.token)
                reason = to.reason and storable(to.reason)
                kept.append((*held, now, now + to.keep, one.result, reason))
            else:
                if lease.token != token:
                    token = lease.token
                    heap = gone.setdefault((queue.qid, token), [])
                heap.append(lease.generation)
        else:
            _check(one)
            rest.append(place)
    if in_order or len(set(seqs)) != len(seqs):
        return None, rest
    return simple, rest


# ── one at a time ────────────────────────────────────────────────────────────────────────────────


def _heads(tx: TransactionContext, settlements: Sequence[Settlement]) -> dict[str, int]:
    """Per queue the first of the places at the head that this call needs: its jobs keep their order there."""
    needed: dict[str, int] = {}
    for one in settlements:
        if one.transition.place is Place.HEAD:
            needed[one.lease.queue] = needed.get(one.lease.queue, 0) + 1
    found = {name: tx.queue(name) for name in needed}
    return {name: tx.heads(queue, needed[name]) for name, queue in found.items() if queue is not None}


def _settle_one(tx: TransactionContext, one: Settlement, heads: dict[str, int]) -> Settled:
    lease = one.lease
    queue = tx.queue(lease.queue)
    row = None if queue is None else tx.execute(_LOOK, (queue.qid, lease.id)).fetchone()
    if queue is None or row is None:
        return Settled.GONE
    if not _holds(lease, row):
        return Settled.STALE
    head = 0
    if one.transition.place is Place.HEAD:
        head = heads[lease.queue]
        heads[lease.queue] += 1
    try:
        _apply(tx, queue, row, one, head)
    except OverflowError as error:
        raise Unreadable({row[0]: f"its end cannot be stored: {error}"}) from error
    for new in one.then:
        enqueue_one(tx, new, follows=True)
    return Settled.APPLIED


def _holds(lease: Lease | Ref, row: Row) -> bool:
    """Whether this is the lease of the running job; a bare Ref is that of whoever holds it."""
    if row[1] != RUNNING:
        return False
    return not isinstance(lease, Lease) or (row[0] == lease.generation and row[2] == lease.token)


def _apply(tx: TransactionContext, queue: QueueContext, row: Row, one: Settlement, head: int) -> None:
    seq, _, token, attempt, charged, lost, place, due, errors, tied, is_batch, asked, because = row
    to, now = one.transition, tx.now
    reason = reason_after(to, bool(asked), because)
    if to.hold:
        limits.hold(tx, queue, to.hold)
    before = partitions.look(tx, seq) if queue.has_dependents else None
    if before is not None and before.lane is not None and to.hold_lane > 0:
        before = partitions.hold(
            tx, queue, before, before.lane, now + to.hold_lane, back=to.state is State.AVAILABLE
        )
    tx.settled(queue, int(to.charge), int(to.error is not None))
    code = CODE[to.state]
    ended = to.state in TERMINAL
    if tied is not None:
        shift_key(tx, queue, seq, tied, State.RUNNING, to.state)
    if ended and to.keep <= 0:
        tx.execute(_DROP, (seq, token))
        tx.move(queue, RUNNING, None)
        if tied is not None:
            forget_key(tx, seq, code, tied)
        if is_batch:
            end_members(tx, queue, one.lease.id, code, now, reason)
            drop_members(tx, queue, one.lease.id, forgotten=True)
        if before is not None:
            partitions.became(tx, queue, before, None, place)
        return
    if to.place is not Place.OWN:
        place = head if to.place is Place.HEAD else tx.tails(queue, 1) + 1
    tx.execute(
        _MOVE,
        (
            seq,
            code,
            attempt - (1 if charged and not to.charge else 0),
            lost + to.lost,
            place,
            _due(to, due, now),
            now if ended else None,
            now + to.keep if ended else None,
            errors if to.error is None else _with(errors, to.error),
            one.result if ended else None,
            reason,
            token,
        ),
    )
    if is_batch and ended:
        end_members(tx, queue, one.lease.id, code, now + to.keep, reason)
    after: int | None = code
    if before is not None:
        after = partitions.became(tx, queue, before, code, place, at_tail=to.place is Place.TAIL)
    tx.move(queue, RUNNING, after)


def _due(to: Transition, due: int, now: int) -> int:
    if to.state in (State.SCHEDULED, State.RETRYABLE):
        return now + to.delay
    if to.state is State.AVAILABLE and to.place is not Place.OWN:
        return now
    return due


def _with(blob: bytes | None, error: AttemptError) -> bytes:
    return errors_blob((*errors_of(blob), error)[-MAX_ERRORS:])
