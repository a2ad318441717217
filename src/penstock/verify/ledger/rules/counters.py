"""Compares the counters of a store with the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from penstock.core.job import Job, Ref
from penstock.stores.contract import QueueInfo, QueueStats
from penstock.verify.ledger.reading.story import Story
from penstock.verify.ledger.verdict import Violation

__all__ = ["counters"]


def counters(
    stories: Iterable[Story],
    jobs: Mapping[Ref, Job],
    queues: Iterable[QueueInfo],
    stats: Iterable[QueueStats],
    forgiven: Callable[[int, int], bool] = lambda *_: False,
) -> Iterator[Violation]:
    """Compare, per queue, the jobs per state and the totals of enqueued, processed and failed.

    Totals are exact if all ends were recorded. Each lease without a recorded end (its worker was killed, and
    the supervisor, which writes no ledger, settled it) widens the bounds by one. A call whose write may be
    lost (`forgiven`) widens them too.
    """
    by_queue: dict[str, list[Story]] = {}
    for story in stories:
        by_queue.setdefault(story.ref.queue, []).append(story)
    there = {info.name: info for info in queues}
    totals = {one.name: one for one in stats}
    for name, mine in by_queue.items():
        if name in there:
            yield from _per_state(name, there[name], jobs)
        if name in totals:
            yield from _totals(name, totals[name], mine, forgiven)


def _per_state(name: str, info: QueueInfo, jobs: Mapping[Ref, Job]) -> Iterator[Violation]:
    known = Counter(job.state for ref, job in jobs.items() if ref.queue == name)
    shown = Counter({state: n for state, n in info.counts.items() if n})
    if sum(shown.values()) > sum(known.values()):
        n = sum(shown.values()) - sum(known.values())
        yield Violation("counters", f"the store counts {n} job(s) that the ledger does not know", name)
        return
    for state in sorted({*known, *shown}):
        if known[state] != shown[state]:
            says = f"the store counts {shown[state]} {state.value} job(s), but has {known[state]}"
            yield Violation("counters", says, name)


def _totals(
    name: str, shown: QueueStats, stories: list[Story], forgiven: Callable[[int, int], bool]
) -> Iterator[Violation]:
    certain = sum(1 for s in stories if _was_new(s, forgiven))
    perhaps = sum(1 for s in stories if s.acknowledged or s.unknown)
    yield from _within(name, "enqueued", shown.enqueued, certain, perhaps)
    acts = [act for story in stories for act in story.acts]
    unsaid = sum(_unsaid(story) for story in stories)
    for what, value, counted in (
        ("processed", shown.processed, [act for act in acts if act.asked.charge]),
        ("failed", shown.failed, [act for act in acts if act.asked.error]),
    ):
        applied = [act for act in counted if act.applied]
        low = sum(1 for act in applied if not forgiven(*act.call))
        high = len(applied) + unsaid + sum(1 for act in counted if act.perhaps)
        yield from _within(name, what, value, low, high)


def _was_new(story: Story, forgiven: Callable[[int, int], bool]) -> bool:
    told = zip(story.verdicts, story.calls, strict=True)
    if any(v.verdict == "new" and not forgiven(*call) for v, call in told):
        return True
    return (story.acknowledged or story.of_flow) and any(
        not forgiven(*story.call_of(lease)) for lease in story.leases
    )


def _unsaid(story: Story) -> int:
    """The number of leases without a recorded end."""
    settled = {act.asked.token for act in story.acts if act.applied}
    return sum(1 for token in {lease.token for lease in story.leases} if token not in settled)


def _within(name: str, what: str, shown: int, low: int, high: int) -> Iterator[Violation]:
    if not low <= shown <= high:
        expected = str(low) if low == high else f"{low} to {high}"
        yield Violation("counters", f"the store counts {what} {shown}; correct is {expected}", name)
