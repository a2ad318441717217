"""Limits and order among jobs: how many of a key, or of a queue, are on loan at once, and who comes first."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import groupby
from typing import NamedTuple

from penstock.verify.ledger.facts import Limited
from penstock.verify.ledger.reading.story import Story
from penstock.verify.ledger.rules.case import Case, broken
from penstock.verify.ledger.rules.spans import FOR_EVER, Span, leases_of
from penstock.verify.ledger.verdict import Violation

__all__ = ["lanes", "queue_limits"]

#: A job that is due later may join its lane so much before the ledger thinks that it is due (ns).
_ABOUT = 50_000_000


def lanes(case: Case) -> Iterator[Violation]:
    """Of the jobs of one key no more are on loan at once than it may have; ordered ones in their order."""
    by_key: dict[tuple[str, str], list[Story]] = defaultdict(list)
    for story in case.history.stories:
        if story.offer is not None and story.offer.lane is not None and story.leases:
            by_key[story.ref.queue, story.offer.lane].append(story)
    for (_, key), stories in by_key.items():
        spans = [span for story in stories for span in leases_of(story, case)]
        for span, at_once in _crowds(spans, _most_of_key):
            yield broken(
                span.story, "limits", f"{len(at_once)} jobs of the key {key!r} ran at once: {_ids(at_once)}"
            )
        yield from _order(key, stories, case)


def queue_limits(case: Case) -> Iterator[Violation]:
    """Of a queue no more jobs are on loan at once than its `max_running` was, where that was written down."""
    spans: dict[str, list[Span]] = defaultdict(list)
    for story in case.history.stories:
        if story.ref.queue in case.history.limits:
            spans[story.ref.queue] += leases_of(story, case)
    for queue, of_queue in spans.items():
        limit = _Limit(case.history.limits[queue])
        for span, at_once in _crowds(of_queue, limit.most):
            says = f"{len(at_once)} jobs of its queue ran at once: {_ids(at_once)}"
            yield broken(span.story, "limits", says)


def _ids(spans: Iterable[Span]) -> str:
    ids = [span.story.ref.id for span in spans]
    return ", ".join(ids[:5]) + (" …" if len(ids) > 5 else "")


# ── how many at once ─────────────────────────────────────────────────────────────────────────────


def _crowds(
    spans: list[Span], most: Callable[[Span, Sequence[Span]], int]
) -> Iterator[tuple[Span, list[Span]]]:
    """Each span at whose beginning there were more than may be, with all that there were."""
    spans.sort(key=lambda span: span.begin)
    ends: list[tuple[int, int]] = []
    active: dict[int, Span] = {}
    for i, span in enumerate(spans):
        while ends and ends[0][0] <= span.begin:
            del active[heappop(ends)[1]]
        active[i] = span
        heappush(ends, (span.end, i))
        if len(active) > 1:
            at_once = list(active.values())
            if len(at_once) > most(span, at_once):
                yield span, at_once


def _most_of_key(_: Span, at_once: Sequence[Span]) -> int:
    """Whoever was admitted last was so by its own terms; nobody knows who that was."""
    return max(span.story.offer.lane_most for span in at_once if span.story.offer is not None)


class _Limit:
    """A queue's `max_running` as it was set: from the question on it may hold, until the next answer."""

    def __init__(self, said: Sequence[Limited]) -> None:
        self._values: list[tuple[int, int, int]] = []  # value, from, until
        asked = [one for one in said if not one.told]
        told = [one for one in said if one.told]
        if asked:
            self._values.append((FOR_EVER, 0, self._settled(told, asked[0])))
        for i, one in enumerate(asked):
            value = FOR_EVER if one.max_running is None else one.max_running
            until = self._settled(told, asked[i + 1]) if i + 1 < len(asked) else FOR_EVER
            self._values.append((value, one.mono, until))

    @staticmethod
    def _settled(told: Sequence[Limited], asked: Limited) -> int:
        """When that change was certainly made."""
        return next((one.mono for one in told if one.pid == asked.pid and one.mono > asked.mono), FOR_EVER)

    def most(self, span: Span, _: Sequence[Span]) -> int:
        """The largest that it can have been when this one was leased."""
        held = [v for v, begin, until in self._values if begin <= span.begin and until >= span.asked]
        return max(held, default=FOR_EVER)


# ── in which order ───────────────────────────────────────────────────────────────────────────────


class _Place(NamedTuple):
    """When a job joined its lane (not before `first`, not after `last`), and when it was leased: for the
    first time at `leased`, for the last time not before `again`."""

    first: int
    last: int
    call: tuple[int, int]  # the answer to the enqueue that brought it
    leased: int
    again: int
    story: Story


def _order(key: str, stories: Iterable[Story], case: Case) -> Iterator[Violation]:
    """An ordered one is not leased before all that joined before it are done."""
    places = [place for story in stories if (place := _place(story, case)) is not None]
    places.sort(key=lambda place: place.last)
    ends = [place.last for place in places]
    latest: list[_Place] = []  # of all up to this one, the one that was leased last
    for place in places:
        latest.append(max(latest[-1], place, key=_again) if latest else place)
    for place in places:
        n = bisect_right(ends, place.first - 1)
        before = latest[n - 1] if n else None
        if before is not None and before.again > place.leased:
            yield _overtaken(key, place, before)
    by_call = sorted(places, key=lambda place: (place.call, place.first))
    for call, together in groupby(by_call, key=lambda place: place.call):
        if call[0]:
            yield from _order_of_call(key, list(together))


def _order_of_call(key: str, together: Sequence[_Place]) -> Iterator[Violation]:
    """Those of one call joined in the order in which they were offered."""
    before = together[0]
    for place in together[1:]:
        if before.again > place.leased:
            yield _overtaken(key, place, before)
        before = max(before, place, key=_again)


def _again(place: _Place) -> int:
    return place.again


def _overtaken(key: str, place: _Place, before: _Place) -> Violation:
    says = f"it ran before {before.story.ref.id} was done, which came before it in the order of {key!r}"
    return broken(place.story, "order", says)


def _place(story: Story, case: Case) -> _Place | None:
    offer = story.offer
    if offer is None or not offer.ordered:
        return None
    if any(op.asked.verb in ("retry", "reschedule") for op in story.operations):
        return None  # it was given another place
    leased = story.leases[0].mono
    if any(map(case.forgiven, (leased, story.acknowledged_at or leased))):
        return None
    again = max(lease.asked for lease in story.leases)
    at = story.acknowledged_at
    if not offer.delayed:
        pid = next((v.pid for v in story.verdicts if v.mono == at), 0)
        return _Place(offer.mono, leased if at is None else at, (at or 0, pid), leased, again, story)
    due = case.history.mono(offer.due)
    if case.misled or due is None:
        return None
    return _Place(
        max(offer.mono, due - _ABOUT - case.slack * 1_000_000), leased, (0, 0), leased, again, story
    )
