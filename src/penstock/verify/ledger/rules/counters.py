"""Compares the counters of a store with the ledger, and what operators are shown with these counters.

The counters, what the command line and the dashboard show of them, and the metrics are each compared with
the ledger.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from penstock.core.job import Job, Ref, State
from penstock.stores.contract import QueueInfo, QueueStats, StatsRow
from penstock.verify.ledger.story import Story
from penstock.verify.ledger.verdict import Violation

# ── the store ────────────────────────────────────────────────────────────────────────────────────


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
    unsettled = sum(_unsettled(story) for story in stories)
    for what, value, counted in (
        ("processed", shown.processed, [act for act in acts if act.asked.charge]),
        ("failed", shown.failed, [act for act in acts if act.asked.error]),
    ):
        applied = [act for act in counted if act.applied]
        low = sum(1 for act in applied if not forgiven(*act.call))
        high = len(applied) + unsettled + sum(1 for act in counted if act.perhaps)
        yield from _within(name, what, value, low, high)


def _was_new(story: Story, forgiven: Callable[[int, int], bool]) -> bool:
    told = zip(story.verdicts, story.calls, strict=True)
    if any(v.verdict == "new" and not forgiven(*call) for v, call in told):
        return True
    return (story.acknowledged or story.of_flow) and any(
        not forgiven(*story.call_of(lease)) for lease in story.leases
    )


def _unsettled(story: Story) -> int:
    """The number of leases without a recorded end."""
    settled = {act.asked.token for act in story.acts if act.applied}
    return sum(1 for token in {lease.token for lease in story.leases} if token not in settled)


def _within(name: str, what: str, shown: int, low: int, high: int) -> Iterator[Violation]:
    if not low <= shown <= high:
        expected = str(low) if low == high else f"{low} to {high}"
        yield Violation("counters", f"the store counts {what} {shown}; correct is {expected}", name)


# ── faces ────────────────────────────────────────────────────────────────────────────────────────


#: The totals of a queue.
TOTALS = ("enqueued", "processed", "failed")
#: Numbers by queue, and state or total.
Numbers = Mapping[tuple[str, str], int]


def counted(queues: Iterable[QueueInfo], stats: Iterable[QueueStats]) -> Numbers:
    """The jobs of each queue by state, and its totals, as the store counts them."""
    found = {(one.name, total): int(getattr(one, total)) for one in stats for total in TOTALS}
    return found | {(info.name, state.value): n for info in queues for state, n in info.counts.items()}


def numbers_of(queues: Iterable[Mapping[str, Any]], stats: Iterable[Mapping[str, Any]]) -> Numbers:
    """The same, from the views of an inspector as JSON; what is 0 is left out."""
    found = {(one["name"], total): int(one[total]) for one in stats for total in TOTALS}
    found |= {(one["name"], state): int(n) for one in queues for state, n in one["counts"].items()}
    return {what: n for what, n in found.items() if n}


def faces(shown: Mapping[str, Numbers], here: Numbers) -> Iterator[Violation]:
    """Check that each face shows what the store counts: `here`."""
    there_is = {what: n for what, n in here.items() if n}
    for face, numbers in shown.items():
        for queue, what in sorted(numbers.keys() | there_is.keys()):
            there, n = numbers.get((queue, what), 0), there_is.get((queue, what), 0)
            if there != n:
                says = f"{face} shows {what} {there}; the store counts {n}"
                yield Violation("counters", says, queue)


def tasks_of_queues(rows: Iterable[StatsRow], stats: Iterable[QueueStats]) -> Iterator[Violation]:
    """Check that the statistics of tasks count no more attempts than their queue.

    They may count less: a worker that is killed loses its last seconds, and a supervisor reports none.
    """
    sums: Counter[tuple[str, str]] = Counter()
    for row in rows:
        sums[row.queue, "processed"] += row.stats.processed
        sums[row.queue, "failed"] += row.stats.failed
    for one in stats:
        for what in ("processed", "failed"):
            n, total = sums[one.name, what], getattr(one, what)
            if n > total:
                says = f"the statistics of its tasks count {what} {n}; the queue counts {total}"
                yield Violation("counters", says, one.name)


# ── metrics ──────────────────────────────────────────────────────────────────────────────────────


_SAMPLE = re.compile(
    r"^penstock_(?:queue_jobs|jobs_(?P<total>[a-z]+)_total)"
    r'\{pool="[^"]*",queue="(?P<queue>(?:[^"\\]|\\.)*)"(?:,state="(?P<state>[a-z]+)")?\} (?P<value>\d+)$',
    re.MULTILINE,
)


def scraped(metrics: str, queues: Iterable[QueueInfo], stats: Iterable[QueueStats]) -> Iterator[Violation]:
    """Check that the metrics show each queue's jobs by state, and its totals, as the store counts them.

    `counters` compares the store with the ledger, so both together compare the metrics with the ledger.
    """
    shown = {
        (_unescaped(found["queue"]), found["total"] or found["state"]): int(found["value"])
        for found in _SAMPLE.finditer(metrics)
    }
    queues = list(queues)
    none = {(info.name, state.value): 0 for info in queues for state in State}  # each state has a series
    numbers = {**none, **counted(queues, stats)}
    for name, what in sorted(shown.keys() | numbers.keys()):
        there, here = shown.get((name, what), "nothing"), numbers.get((name, what), "nothing")
        if there != here:
            yield Violation("counters", f"the metrics show {what} {there}; the store counts {here}", name)


def _unescaped(label: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], label)
