"""Rules about periodic entries: each instant of an entry is processed exactly once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from penstock.verify.ledger.facts import TickAnswered, Ticking
from penstock.verify.ledger.reading.story import Story
from penstock.verify.ledger.rules.case import Case, broken
from penstock.verify.ledger.verdict import Violation

__all__ = ["periods"]

#: Process, revision and watermark of a tick call; tells a repeated call from the call before.
_TickKey = tuple[int, int, int]


class _EntryMove(NamedTuple):
    """A tick that was or may have been applied: the entry advanced from `watermark` to `to`."""

    revision: int
    watermark: int
    to: int
    call: tuple[int, int]  # when it was sent and answered (mono)
    certain: bool


def periods(case: Case) -> Iterator[Violation]:
    for (queue, name), ticks in _by_entry(case.history.ticks).items():
        for says in _broken_chain(_moves(ticks), case):
            yield Violation("periodic", f"entry {name!r}: {says}", queue)
    for story in case.history.stories:
        if story.offer is not None and story.offer.entry:
            yield from _enqueued_once(story, case)


def _by_entry(
    ticks: Iterable[Ticking | TickAnswered],
) -> dict[tuple[str, str], list[Ticking | TickAnswered]]:
    found: dict[tuple[str, str], list[Ticking | TickAnswered]] = defaultdict(list)
    for tick in ticks:
        found[tick.queue, tick.name].append(tick)
    return found


def _moves(ticks: Iterable[Ticking | TickAnswered]) -> list[_EntryMove]:
    """The ticks that were or may have been applied, by watermark.

    A `stale` tick counts too: its first reply may have been lost, and the repeated call found it applied.
    """
    asked: dict[_TickKey, Ticking] = {}
    moves: list[_EntryMove] = []
    for tick in ticks:
        key = (tick.pid, tick.revision, tick.watermark)
        if isinstance(tick, Ticking):
            if key in asked:
                moves.append(_move(asked[key], tick.mono, certain=False))
            asked[key] = tick
            continue
        asking = asked.pop(key, None)
        if asking is not None and tick.answer in ("applied", "unknown", "stale"):
            moves.append(_move(asking, tick.mono, certain=tick.answer == "applied"))
    moves += [_move(asking, asking.mono, certain=False) for asking in asked.values()]
    return sorted(moves, key=lambda move: (move.watermark, move.call[1]))


def _move(asking: Ticking, answered: int, *, certain: bool) -> _EntryMove:
    call = (asking.mono, answered)
    return _EntryMove(asking.revision, asking.watermark, asking.to, call, certain)


def _broken_chain(moves: list[_EntryMove], case: Case) -> Iterator[str]:
    certain = [move for move in moves if move.certain and not case.forgiven(*move.call)]
    uncertain = {move.watermark for move in moves if not move.certain or case.forgiven(*move.call)}
    for before, after in pairwise(certain):
        if after.watermark < before.to:
            yield (
                f"the instants before {before.to} were processed twice, "
                f"from {before.watermark} and {after.watermark}"
            )
        elif after.watermark > before.to and after.revision == before.revision and before.to not in uncertain:
            yield f"the instants between {before.to} and {after.watermark} were skipped"


def _enqueued_once(story: Story, case: Case) -> Iterator[Violation]:
    """Check that an instant has one job: a second story with its id would be a second job."""
    if any(op.asked.verb in ("delete", "move", "retry") for op in story.operations) or case.is_purged(story):
        return
    if not case.is_last(story) and not any(case.forgiven(*call) for call in story.calls):
        yield broken(story, "periodic", "its instant enqueued a second job later")
