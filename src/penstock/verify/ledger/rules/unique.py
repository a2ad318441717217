"""Rules about unique jobs: a unique key has one holder, and only a holder's key refuses a job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from heapq import heappush

from penstock.core.job import Ref, State
from penstock.core.unique import WHILE_FINISHED, WHILE_QUEUED, WHILE_RUNNING
from penstock.verify.ledger.reading.story import Story
from penstock.verify.ledger.rules.case import Case, broken
from penstock.verify.ledger.rules.ends import is_forgiven
from penstock.verify.ledger.rules.spans import FOR_EVER, Span, leases_of, open_until
from penstock.verify.ledger.verdict import Violation

__all__ = ["uniqueness"]


def uniqueness(case: Case) -> Iterator[Violation]:
    """Check that a unique key has one holder at a time.

    No job may be stored while another certainly holds its key, and a refused duplicate must name a job that
    may have held it.
    """
    by_key: dict[tuple[str, str], list[Story]] = defaultdict(list)
    for story in case.history.stories:
        if story.offer is not None and story.offer.unique:
            by_key[story.ref.queue, story.offer.unique].append(story)
    for stories in by_key.values():
        stories.sort(key=lambda story: story.began)
        yield from _two_holders(stories, case)
        for story in stories:
            yield from _turned_away(story, case)


def _two_holders(stories: Sequence[Story], case: Case) -> Iterator[Violation]:
    taken = [story for story in stories if story.acknowledged and not is_forgiven(story, case)]
    if len(taken) < 2:
        return
    spans = sorted(
        (span for story in taken for span in _key_spans(story, taken, case)), key=lambda s: s.begin
    )
    best: list[tuple[int, int]] = []  # the longest holder first
    coming = 0
    for second in taken:
        while coming < len(spans) and spans[coming].begin <= second.began:
            heappush(best, (-spans[coming].end, coming))
            coming += 1
        at = second.acknowledged_at
        if best and at is not None and -best[0][0] > at:
            first = spans[best[0][1]].story
            yield broken(second, "unique", f"its unique key was still held by job {first.ref.id}")


def _key_spans(story: Story, rivals: Sequence[Story], case: Case) -> Iterator[Span]:
    """The spans in which the job certainly held its unique key.

    They begin at the enqueue and end as its rule says. If the rule covers running jobs alone: while the job
    ran, unless another job may have held the key.
    """
    offer = story.offer
    assert offer is not None
    over = FOR_EVER
    if offer.unique_until is not None:
        over = offer.mono + (offer.unique_until - offer.at) * 1_000_000
    spans: list[Span] = []
    states = offer.unique_states
    if states & WHILE_QUEUED:
        spans = [_from_the_enqueue(story, states, over, case)]
    elif states & WHILE_RUNNING and rivals[0] is story:
        first = next(leases_of(story, case), None)
        if first is not None and (len(rivals) == 1 or rivals[1].began > first.begin):
            spans = [first]
    for span in spans:
        if min(span.end, over) > span.begin:
            yield span._replace(end=min(span.end, over))


def _from_the_enqueue(story: Story, states: int, over: int, case: Case) -> Span:
    begin = story.acknowledged_at or story.began
    end = open_until(story, case)
    if not states & WHILE_RUNNING:
        starts = [run.start.mono for run in story.runs]
        asked = [lease.since or begin for lease in story.leases]
        end = min([end, *asked, *starts]) if story.leases else begin if story.runs else end
    elif states & WHILE_FINISHED and _completed_at(story, end):
        kept = case.job(story)
        if over != FOR_EVER:
            end = over  # also if the job itself is not kept
        elif kept is not None and kept.state is State.COMPLETED:
            end = FOR_EVER
    return Span(begin, end, begin, story)


def _completed_at(story: Story, mono: int) -> bool:
    """Whether the job was completed at this moment (mono), and no operation followed."""
    applied = [act for act in story.acts if act.terminal and act.applied]
    return (
        len(applied) == 1
        and applied[0].asked.state == "completed"
        and applied[0].asked.mono == mono
        and not story.operations
    )


def _turned_away(story: Story, case: Case) -> Iterator[Violation]:
    """Check for a refused enqueue whose named holder had certainly ended without keeping its key."""
    for verdict in story.verdicts:
        if verdict.verdict not in ("duplicate", "replaced") or story.offers != 1 or case.clock_skewed:
            continue
        holder = case.last.get(Ref(verdict.queue, verdict.holder))
        ended = None if holder is None else _released_at(holder, case)
        if ended is not None and ended < story.began:
            says = f"the enqueue was refused because of job {verdict.holder}, which had ended and held no key"
            yield broken(story, "unique", says)


def _released_at(holder: Story, case: Case) -> int | None:
    """When the job certainly had released its key; None: it may still hold it."""
    offer = holder.offer
    if offer is None or any(op.asked.verb in ("retry", "reschedule") for op in holder.operations):
        return None
    for act in holder.acts:
        if act.applied and act.terminal and not case.forgiven(*act.call):
            kept = act.asked.state == "completed" and offer.unique_states & WHILE_FINISHED
            return None if kept else act.answered
    told = [op for op in holder.operations if op.asked.verb == "cancel" and op.answer == "cancelled"]
    return min((op.answered for op in told if not case.forgiven(*op.call)), default=None)
