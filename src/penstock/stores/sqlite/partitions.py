"""Lanes and turns: what a job's step means for the others of its key. Queues without them never come here."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from penstock.core.job import NewJob
from penstock.core.partition import Lane, Turn
from penstock.stores.sqlite.rows import AVAILABLE, CANCELLED, PARKED, RUNNING, WAITING, Row, numbers, spec_of
from penstock.stores.sqlite.transaction_context import SQL, Queue, Step

__all__ = [
    "Tie",
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

_LOOK = SQL["ties.look"]
_LANED = SQL["ties.laned"]
_JOIN = SQL["ties.join"]
_ADMITTED = SQL["ties.admitted"]
_AVAILABLE = SQL["ties.available"]
_WAIT = SQL["ties.wait"]
_TO_PLACE = SQL["ties.to_place"]
_PROMOTE = SQL["ties.promote"]
_FIRST = SQL["ties.first"]
_COUNT = SQL["ties.count"]
_READY = SQL["ties.ready"]
_RATES = SQL["ties.rates"]
_KEY = SQL["ties.key"]
_REMEMBER = SQL["ties.remember"]
_DUE = SQL["ties.due"]
_NOT_DUE = SQL["ties.not_due"]
_LANES_DUE = SQL["ties.lanes_due"]
_NEXT_DUE = SQL["ties.next_due"]
_OVER = SQL["ties.over"]
_FORGET = SQL["ties.forget"]
_FAIR = SQL["ties.fair"]
_TURNS = SQL["ties.turns"]
_TURN = SQL["ties.turn"]
_TAIL = SQL["ties.tail"]
_NEXT_PLACE = SQL["ties.next_place"]
_DROP_TURN = SQL["ties.drop_turn"]
_FETCHED = SQL["ties.fetched"]
_PAST = SQL["ties.past"]
_ANY_TURN = SQL["ties.any_turn"]
_REST = SQL["ties.rest"]
_DROPS = [SQL["ties.drop_turns"], SQL["ties.drop_now"], SQL["ties.drop_lanes"]]

_NO_TURN = Turn("")  # where turns are taken, jobs without one are those of one key


class Tie(NamedTuple):
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


def look(step: Step, seq: int) -> Tie:
    return Tie(*step.cx.execute(_LOOK, (seq,)).fetchone())


def join(step: Step, queue: Queue, seq: int, job: NewJob, place: int) -> None:
    """A new job has a lane or a turn."""
    if job.turn is not None and queue.fair is None:
        queue.fair = place
        step.cx.execute(_FAIR, (queue.qid, queue.fair))
    if job.lane is not None:
        if not queue.laned:
            queue.laned = True
            step.cx.execute(_LANED, (queue.qid,))
        step.cx.execute(_JOIN, (seq, job.lane.key, job.lane.rank(job.priority)))


def leave(step: Step, queue: Queue, seq: int) -> Tie:
    """A queued job is of no lane any more, and gives its turn back; as it was. `advance` its lane then."""
    tie = look(step, seq)
    if tie.state == AVAILABLE:
        _give_back(step, queue, tie)
    if tie.lane is not None:
        step.cx.execute(_JOIN, (seq, None, None))
        step.cx.execute(_ADMITTED, (seq, None))
    return tie


def became(
    step: Step, queue: Queue, tie: Tie, code: int | None, place: int, *, at_tail: bool = False
) -> int | None:
    """The job's row was changed: it is of another state now (None: it is gone), and stands at that place.

    Which state it has in the end: one for which there is no room in its lane waits. Whoever gets room for it
    is admitted.
    """
    if tie.state == AVAILABLE and code != RUNNING:
        _give_back(step, queue, tie)
    if tie.lane is not None:
        code = _entered(step, queue, tie, code, place)
    if code == AVAILABLE and at_tail and queue.fair is not None:
        step.cx.execute(_TO_PLACE, (tie.seq, _draw(step, queue, tie)))
    if tie.lane is not None:
        advance(step, queue, tie.lane)
    return code


def to_tail(step: Step, queue: Queue, seq: int) -> None:
    """A job that is due becomes available."""
    tie = look(step, seq)
    place = step.tails(queue, 1) + 1
    step.cx.execute(_PROMOTE, (seq, place))
    step.move(queue, tie.state, became(step, queue, tie, AVAILABLE, place, at_tail=True))


def to_lane(step: Step, queue: Queue, seq: int) -> None:
    """A parked job for which there is no room waits, at its own place."""
    tie = look(step, seq)
    step.cx.execute(_PROMOTE, (seq, tie.place))
    step.move(queue, tie.state, became(step, queue, tie, AVAILABLE, tie.place, at_tail=True))


def end_queued(step: Step, queue: Queue, seq: int, state: int, spec: NewJob | bytes, reason: str) -> None:
    """A job that was not running is cancelled, in whatever queue."""
    if not queue.tied:
        step.end_queued(queue, seq, state, spec, reason)
        return
    tie = look(step, seq)
    assert tie.state is not None
    step.end_queued(queue, seq, tie.state, spec, reason)
    became(step, queue, tie, CANCELLED, tie.place)


# ── lanes ────────────────────────────────────────────────────────────────────────────────────────


def _entered(step: Step, queue: Queue, tie: Tie, code: int | None, place: int) -> int | None:
    """What the job's new state means for its lane."""
    if code == AVAILABLE:
        if not tie.admitted and not _may_enter(step, queue, tie, place):
            step.cx.execute(_WAIT, (tie.seq,))
            return WAITING
        _admit(step, tie.seq, tie.terms)
    elif tie.admitted and code is not None:
        stays = code <= PARKED and tie.terms.ordered
        step.cx.execute(_ADMITTED, (tie.seq, 1 if stays else None))
    return code


def _may_enter(step: Step, queue: Queue, tie: Tie, place: int) -> bool:
    terms = tie.terms
    first = step.cx.execute(_FIRST, (queue.qid, terms.key)).fetchone()
    if first is not None and (first[7], first[3]) < (terms.rank(tie.priority), place):
        return False
    at = _allowed_at(step, queue, terms)
    return at is not None and at <= step.now


def _allowed_at(step: Step, queue: Queue, terms: Lane) -> int | None:
    """From when on one more of these terms may be admitted; None: not before another one leaves or starts."""
    cx, name = step.cx, (queue.qid, terms.key)
    if cx.execute(_COUNT, name).fetchone()[0] >= terms.most:
        return None
    spent, held, _ = cx.execute(_KEY, name).fetchone() or (0.0, 0, None)
    ready = 0 if terms.rate is None else cx.execute(_READY, name).fetchone()[0]
    return terms.allowed_at(ready, spent, held, step.now)


def _admit(step: Step, seq: int, terms: Lane) -> None:
    step.cx.execute(_ADMITTED, (seq, 1 if terms.rate is None else 2))


def has_room(step: Step, queue: Queue, seq: int) -> bool:
    """Whether its lane, if it has one, lets this parked job start at once; then it is admitted there."""
    tie = look(step, seq)
    if tie.lane is None:
        return True
    if not tie.admitted and not _may_enter(step, queue, tie, tie.place):
        return False
    _admit(step, seq, tie.terms)
    return True


def advance(step: Step, queue: Queue, key: str) -> int:
    """Admit who may be; how many they were. Then note when the next one may."""
    cx, name, admitted, due = step.cx, (queue.qid, key), 0, None
    while (row := cx.execute(_FIRST, name).fetchone()) is not None:
        tie = Tie(*row[:7])
        terms = tie.terms
        due = _allowed_at(step, queue, terms)
        if due is None or due > step.now:
            break
        due = None
        cx.execute(_AVAILABLE, (tie.seq, 1 if terms.rate is None else 2))
        if queue.fair is not None:
            cx.execute(_TO_PLACE, (tie.seq, _draw(step, queue, tie)))
        step.move(queue, WAITING, AVAILABLE)
        admitted += 1
    if due is None:
        cx.execute(_NOT_DUE, name)
    else:
        cx.execute(_DUE, (*name, due))
        step.work = True
    return admitted


def hold(step: Step, queue: Queue, tie: Tie, key: str, until: int, *, back: bool) -> Tie:
    """Nobody of it is admitted before this instant, nor this job where it comes back at once."""
    spent, held, _ = step.cx.execute(_KEY, (queue.qid, key)).fetchone() or (0.0, 0, None)
    _remember(step, queue, key, spent, max(held, until))
    if not back:
        return tie
    step.cx.execute(_ADMITTED, (tie.seq, None))
    return tie._replace(admitted=None)


def _remember(step: Step, queue: Queue, key: str, spent: float, held: int) -> None:
    step.cx.execute(_REMEMBER, (queue.qid, key, spent, held, max(math.ceil(spent), held)))


def lanes_due(step: Step, queue: Queue, limit: int) -> list[Row]:
    """Lanes whose first waits for time alone, and the time has come: when, and the key."""
    return step.cx.execute(_LANES_DUE, (queue.qid, step.now, limit)).fetchall() if queue.laned else []


def next_due(step: Step, queue: Queue) -> int | None:
    if not queue.laned:
        return None
    due: int | None = step.cx.execute(_NEXT_DUE, (queue.qid,)).fetchone()[0]
    return due


# ── turns ────────────────────────────────────────────────────────────────────────────────────────


def fetched(step: Step, queue: Queue, rows: Iterable[Row]) -> None:
    """Jobs were leased: (-priority, place, seq, …) each."""
    rows = list(rows)
    if queue.laned and rows:
        _started(step, queue, [row[2] for row in rows])
    if queue.fair is None:
        return
    last: dict[int, int] = {}
    for minus, place, *_ in rows:
        if place > last.get(-minus, queue.fair):
            last[-minus] = place
    for priority, place in last.items():
        if step.cx.execute(_FETCHED, (queue.qid, priority, place)).rowcount:
            step.cx.execute(_PAST, (queue.qid, priority, place, 2 * len(rows) + 16))


def _started(step: Step, queue: Queue, seqs: list[int]) -> None:
    """Those with a rate count against it from now on."""
    found = {row[0]: row for row in step.cx.execute(_RATES, (numbers(seqs),)).fetchall()}
    for seq, key, spec in [found[seq] for seq in seqs if seq in found]:
        terms = spec_of(seq, spec).lane
        assert terms is not None
        spent, held, _ = step.cx.execute(_KEY, (queue.qid, key)).fetchone() or (0.0, 0, None)
        _remember(step, queue, key, terms.after_start(spent, step.now), held)
    for seq in found:
        step.cx.execute(_ADMITTED, (seq, 1))
    for key in dict.fromkeys(row[1] for row in found.values()):
        advance(step, queue, key)


def _draw(step: Step, queue: Queue, tie: Tie) -> int:
    """A place at the tail of its key."""
    assert queue.fair is not None
    cx, of, turn = step.cx, (queue.qid, tie.priority), tie.turn
    now, tail = cx.execute(_TURNS, of).fetchone() or (queue.fair, 0)
    first: int = max(tail, now + 1)
    found = cx.execute(_TURN, (*of, turn.key)).fetchone()
    place: int = first if found is None else max(first, found[0])
    if place == first:
        cx.execute(_TAIL, (*of, now, first + 1))
    cx.execute(_NEXT_PLACE, (*of, turn.key, place + turn.step))
    return place


def _give_back(step: Step, queue: Queue, tie: Tie) -> None:
    """An available job goes, and was not fetched."""
    if queue.fair is None or tie.place <= queue.fair:
        return
    cx, of, turn = step.cx, (queue.qid, tie.priority), tie.turn
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


def has_idle(step: Step, queue: Queue) -> bool:
    cx = step.cx
    if queue.laned and cx.execute(_OVER, (queue.qid, step.now)).fetchone():
        return True
    return _rests(step, queue)


def prune(step: Step, queue: Queue) -> None:
    """Keys whose rate is as it was; and where nobody is ready all begin alike."""
    if queue.laned:
        step.cx.execute(_FORGET, (queue.qid, step.now))
    if _rests(step, queue):
        step.cx.execute(_REST, (queue.qid,))
        step.cx.execute(_DROPS[0], (queue.qid,))


def _rests(step: Step, queue: Queue) -> bool:
    if queue.fair is None or queue.count(AVAILABLE):
        return False
    return step.cx.execute(_ANY_TURN, (queue.qid,)).fetchone() is not None


def drop(step: Step, queue: Queue) -> None:
    for statement in _DROPS if queue.tied else ():
        step.cx.execute(statement, (queue.qid,))
