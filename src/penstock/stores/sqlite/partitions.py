"""Lanes and turns: what a job's step means for the others of its key. Queues without them never come here."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from penstock.core.job import NewJob
from penstock.core.partition import Lane, Turn
from penstock.stores.sqlite.rows import AVAILABLE, CANCELLED, PARKED, RUNNING, WAITING, Row, numbers, spec_of
from penstock.stores.sqlite.transaction_context import SQL, Queue, TransactionContext

__all__ = [
    "RowBefore",
    "advance",
    "became",
    "drop",
    "end_queued",
    "fetched",
    "has_idle",
    "has_room",
    "hold",
    "join",
    "lanes_due",
    "leave",
    "look",
    "next_due",
    "prune",
    "to_lane",
    "to_tail",
]

_LOOK = SQL["partitions.look"]
_LANED = SQL["partitions.laned"]
_JOIN = SQL["partitions.join"]
_ADMITTED = SQL["partitions.admitted"]
_AVAILABLE = SQL["partitions.available"]
_WAIT = SQL["partitions.wait"]
_TO_PLACE = SQL["partitions.to_place"]
_PROMOTE = SQL["partitions.promote"]
_FIRST = SQL["partitions.first"]
_COUNT = SQL["partitions.count"]
_READY = SQL["partitions.ready"]
_RATES = SQL["partitions.rates"]
_KEY = SQL["partitions.key"]
_REMEMBER = SQL["partitions.remember"]
_DUE = SQL["partitions.due"]
_NOT_DUE = SQL["partitions.not_due"]
_LANES_DUE = SQL["partitions.lanes_due"]
_NEXT_DUE = SQL["partitions.next_due"]
_OVER = SQL["partitions.over"]
_FORGET = SQL["partitions.forget"]
_FAIR = SQL["partitions.fair"]
_TURNS = SQL["partitions.turns"]
_TURN = SQL["partitions.turn"]
_TAIL = SQL["partitions.tail"]
_NEXT_PLACE = SQL["partitions.next_place"]
_DROP_TURN = SQL["partitions.drop_turn"]
_FETCHED = SQL["partitions.fetched"]
_PAST = SQL["partitions.past"]
_ANY_TURN = SQL["partitions.any_turn"]
_REST = SQL["partitions.rest"]
_DROPS = [SQL["partitions.drop_turns"], SQL["partitions.drop_now"], SQL["partitions.drop_lanes"]]

_NO_TURN = Turn("")  # where turns are taken, jobs without one are those of one key


class RowBefore(NamedTuple):
    """A job before a step of its own."""

    seq: int
    state: int | None  # None: it is new
    priority: int
    place: int
    lane: str | None
    admitted: int | None
    spec: bytes

    @property
    def terms(self) -> Lane:
        lane = spec_of(self.seq, self.spec).lane
        assert lane is not None
        return lane

    @property
    def turn(self) -> Turn:
        return spec_of(self.seq, self.spec).turn or _NO_TURN


def look(tx: TransactionContext, seq: int) -> RowBefore:
    return RowBefore(*tx.execute(_LOOK, (seq,)).fetchone())


def join(tx: TransactionContext, queue: Queue, seq: int, job: NewJob, place: int) -> None:
    """A new job has a lane or a turn."""
    if job.turn is not None and queue.fair is None:
        queue.fair = place
        tx.execute(_FAIR, (queue.qid, queue.fair))
    if job.lane is not None:
        if not queue.laned:
            queue.laned = True
            tx.execute(_LANED, (queue.qid,))
        tx.execute(_JOIN, (seq, job.lane.key, job.lane.rank(job.priority)))


def leave(tx: TransactionContext, queue: Queue, seq: int) -> RowBefore:
    """A queued job is of no lane any more, and gives its turn back; as it was. `advance` its lane then."""
    before = look(tx, seq)
    if before.state == AVAILABLE:
        _give_back(tx, queue, before)
    if before.lane is not None:
        tx.execute(_JOIN, (seq, None, None))
        tx.execute(_ADMITTED, (seq, None))
    return before


def became(
    tx: TransactionContext,
    queue: Queue,
    before: RowBefore,
    code: int | None,
    place: int,
    *,
    at_tail: bool = False,
) -> int | None:
    """The job's row was changed: it is of another state now (None: it is gone), and stands at that place.

    Which state it has in the end: one for which there is no room in its lane waits. Whoever gets room for it
    is admitted.
    """
    if before.state == AVAILABLE and code != RUNNING:
        _give_back(tx, queue, before)
    if before.lane is not None:
        code = _entered(tx, queue, before, code, place)
    if code == AVAILABLE and at_tail and queue.fair is not None:
        tx.execute(_TO_PLACE, (before.seq, _draw(tx, queue, before)))
    if before.lane is not None:
        advance(tx, queue, before.lane)
    return code


def to_tail(tx: TransactionContext, queue: Queue, seq: int) -> None:
    """A job that is due becomes available."""
    before = look(tx, seq)
    place = tx.tails(queue, 1) + 1
    tx.execute(_PROMOTE, (seq, place))
    tx.move(queue, before.state, became(tx, queue, before, AVAILABLE, place, at_tail=True))


def to_lane(tx: TransactionContext, queue: Queue, seq: int) -> None:
    """A parked job for which there is no room waits, at its own place."""
    before = look(tx, seq)
    tx.execute(_PROMOTE, (seq, before.place))
    tx.move(queue, before.state, became(tx, queue, before, AVAILABLE, before.place, at_tail=True))


def end_queued(
    tx: TransactionContext, queue: Queue, seq: int, state: int, spec: NewJob | bytes, reason: str
) -> None:
    """A job that was not running is cancelled, in whatever queue."""
    if not queue.has_dependents:
        tx.end_queued(queue, seq, state, spec, reason)
        return
    before = look(tx, seq)
    assert before.state is not None
    tx.end_queued(queue, seq, before.state, spec, reason)
    became(tx, queue, before, CANCELLED, before.place)


# ── lanes ────────────────────────────────────────────────────────────────────────────────────────


def _entered(
    tx: TransactionContext, queue: Queue, before: RowBefore, code: int | None, place: int
) -> int | None:
    """What the job's new state means for its lane."""
    if code == AVAILABLE:
        if not before.admitted and not _may_enter(tx, queue, before, place):
            tx.execute(_WAIT, (before.seq,))
            return WAITING
        _admit(tx, before.seq, before.terms)
    elif before.admitted and code is not None:
        stays = code <= PARKED and before.terms.ordered
        tx.execute(_ADMITTED, (before.seq, 1 if stays else None))
    return code


def _may_enter(tx: TransactionContext, queue: Queue, before: RowBefore, place: int) -> bool:
    terms = before.terms
    first = tx.execute(_FIRST, (queue.qid, terms.key)).fetchone()
    if first is not None and (first[7], first[3]) < (terms.rank(before.priority), place):
        return False
    at = _allowed_at(tx, queue, terms)
    return at is not None and at <= tx.now


def _allowed_at(tx: TransactionContext, queue: Queue, terms: Lane) -> int | None:
    """From when on one more of these terms may be admitted; None: not before another one leaves or starts."""
    cx, name = tx.cx, (queue.qid, terms.key)
    if cx.execute(_COUNT, name).fetchone()[0] >= terms.most:
        return None
    spent, held, _ = cx.execute(_KEY, name).fetchone() or (0.0, 0, None)
    ready = 0 if terms.rate is None else cx.execute(_READY, name).fetchone()[0]
    return terms.allowed_at(ready, spent, held, tx.now)


def _admit(tx: TransactionContext, seq: int, terms: Lane) -> None:
    tx.execute(_ADMITTED, (seq, 1 if terms.rate is None else 2))


def has_room(tx: TransactionContext, queue: Queue, seq: int) -> bool:
    """Whether its lane, if it has one, lets this parked job start at once; then it is admitted there."""
    before = look(tx, seq)
    if before.lane is None:
        return True
    if not before.admitted and not _may_enter(tx, queue, before, before.place):
        return False
    _admit(tx, seq, before.terms)
    return True


def advance(tx: TransactionContext, queue: Queue, key: str) -> int:
    """Admit who may be; how many they were. Then note when the next one may."""
    cx, name, admitted, due = tx.cx, (queue.qid, key), 0, None
    while (row := cx.execute(_FIRST, name).fetchone()) is not None:
        before = RowBefore(*row[:7])
        terms = before.terms
        due = _allowed_at(tx, queue, terms)
        if due is None or due > tx.now:
            break
        due = None
        cx.execute(_AVAILABLE, (before.seq, 1 if terms.rate is None else 2))
        if queue.fair is not None:
            cx.execute(_TO_PLACE, (before.seq, _draw(tx, queue, before)))
        tx.move(queue, WAITING, AVAILABLE)
        admitted += 1
    if due is None:
        cx.execute(_NOT_DUE, name)
    else:
        cx.execute(_DUE, (*name, due))
        tx.work = True
    return admitted


def hold(
    tx: TransactionContext, queue: Queue, before: RowBefore, key: str, until: int, *, back: bool
) -> RowBefore:
    """Nobody of it is admitted before this instant, nor this job where it comes back at once."""
    spent, held, _ = tx.execute(_KEY, (queue.qid, key)).fetchone() or (0.0, 0, None)
    _remember(tx, queue, key, spent, max(held, until))
    if not back:
        return before
    tx.execute(_ADMITTED, (before.seq, None))
    return before._replace(admitted=None)


def _remember(tx: TransactionContext, queue: Queue, key: str, spent: float, held: int) -> None:
    tx.execute(_REMEMBER, (queue.qid, key, spent, held, max(math.ceil(spent), held)))


def lanes_due(tx: TransactionContext, queue: Queue, limit: int) -> list[Row]:
    """Lanes whose first waits for time alone, and the time has come: when, and the key."""
    return tx.execute(_LANES_DUE, (queue.qid, tx.now, limit)).fetchall() if queue.laned else []


def next_due(tx: TransactionContext, queue: Queue) -> int | None:
    if not queue.laned:
        return None
    due: int | None = tx.execute(_NEXT_DUE, (queue.qid,)).fetchone()[0]
    return due


# ── turns ────────────────────────────────────────────────────────────────────────────────────────


def fetched(tx: TransactionContext, queue: Queue, rows: Iterable[Row]) -> None:
    """Jobs were leased: (-priority, place, seq, …) each."""
    rows = list(rows)
    if queue.laned and rows:
        _started(tx, queue, [row[2] for row in rows])
    if queue.fair is None:
        return
    last: dict[int, int] = {}
    for minus, place, *_ in rows:
        if place > last.get(-minus, queue.fair):
            last[-minus] = place
    for priority, place in last.items():
        if tx.execute(_FETCHED, (queue.qid, priority, place)).rowcount:
            tx.execute(_PAST, (queue.qid, priority, place, 2 * len(rows) + 16))


def _started(tx: TransactionContext, queue: Queue, seqs: list[int]) -> None:
    """Those with a rate count against it from now on."""
    found = {row[0]: row for row in tx.execute(_RATES, (numbers(seqs),)).fetchall()}
    for seq, key, spec in [found[seq] for seq in seqs if seq in found]:
        terms = spec_of(seq, spec).lane
        assert terms is not None
        spent, held, _ = tx.execute(_KEY, (queue.qid, key)).fetchone() or (0.0, 0, None)
        _remember(tx, queue, key, terms.after_start(spent, tx.now), held)
    for seq in found:
        tx.execute(_ADMITTED, (seq, 1))
    for key in dict.fromkeys(row[1] for row in found.values()):
        advance(tx, queue, key)


def _draw(tx: TransactionContext, queue: Queue, before: RowBefore) -> int:
    """A place at the tail of its key."""
    assert queue.fair is not None
    cx, of, turn = tx.cx, (queue.qid, before.priority), before.turn
    now, tail = cx.execute(_TURNS, of).fetchone() or (queue.fair, 0)
    first: int = max(tail, now + 1)
    found = cx.execute(_TURN, (*of, turn.key)).fetchone()
    place: int = first if found is None else max(first, found[0])
    if place == first:
        cx.execute(_TAIL, (*of, now, first + 1))
    cx.execute(_NEXT_PLACE, (*of, turn.key, place + turn.step))
    return place


def _give_back(tx: TransactionContext, queue: Queue, before: RowBefore) -> None:
    """An available job goes, and was not fetched."""
    if queue.fair is None or before.place <= queue.fair:
        return
    cx, of, turn = tx.cx, (queue.qid, before.priority), before.turn
    found = cx.execute(_TURN, (*of, turn.key)).fetchone()
    if found is None:
        return
    now, tail = cx.execute(_TURNS, of).fetchone()
    place = found[0] - turn.step + 1  # not quite: another job of the key may stand there
    if place < max(tail, now + 1):
        cx.execute(_DROP_TURN, (*of, turn.key))
    else:
        cx.execute(_NEXT_PLACE, (*of, turn.key, place))


# ── what nobody has a use for any more ───────────────────────────────────────────────────────────


def has_idle(tx: TransactionContext, queue: Queue) -> bool:
    cx = tx.cx
    if queue.laned and cx.execute(_OVER, (queue.qid, tx.now)).fetchone():
        return True
    return _rests(tx, queue)


def prune(tx: TransactionContext, queue: Queue) -> None:
    """Keys whose rate is as it was; and where nobody is ready all begin alike."""
    if queue.laned:
        tx.execute(_FORGET, (queue.qid, tx.now))
    if _rests(tx, queue):
        tx.execute(_REST, (queue.qid,))
        tx.execute(_DROPS[0], (queue.qid,))


def _rests(tx: TransactionContext, queue: Queue) -> bool:
    if queue.fair is None or queue.count(AVAILABLE):
        return False
    return tx.execute(_ANY_TURN, (queue.qid,)).fetchone() is not None


def drop(tx: TransactionContext, queue: Queue) -> None:
    for statement in _DROPS if queue.has_dependents else ():
        tx.execute(statement, (queue.qid,))
