"""Rules about limits and order: how many jobs of a key or a queue are leased at once, and in which order."""

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

__all__ = ["partitions", "queue_limits"]

#: A delayed job may join its partition this much before its due time in the ledger (ns).
_ABOUT = 50_000_000


def partitions(case: Case) -> Iterator[Violation]:
    """Check the limit of jobs per key, and the order of ordered jobs."""
    by_key: dict[tuple[str, str], list[Story]] = defaultdict(list)
    for story in case.history.stories:
        if story.offer is not None and story.offer.partition is not None and story.leases:
            if any(story.accepted("edit")):
                continue  # its new arguments may have another key
            by_key[story.ref.queue, story.offer.partition].append(story)
    for (_, key), stories in by_key.items():
        spans = [span for story in stories for span in leases_of(story, case)]
        for span, at_once in _crowds(spans, _most_of_key):
            yield broken(
                span.story, "limits", f"{len(at_once)} jobs with key {key!r} ran at once: {_ids(at_once)}"
            )
        yield from _order(key, stories, case)


def queue_limits(case: Case) -> Iterator[Violation]:
    """Check `max_running` of each queue for which a limit was recorded."""
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


# ── limits ───────────────────────────────────────────────────────────────────────────────────────


def _crowds(
    spans: list[Span], most: Callable[[Span, Sequence[Span]], int]
) -> Iterator[tuple[Span, list[Span]]]:
    """Yield each span at whose begin more spans were active than allowed, with the active ones."""
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
    """The largest limit of these jobs: the limit of the last one to start applies, and that is unknown."""
    return max(span.story.offer.partition_most for span in at_once if span.story.offer is not None)


class _Limit:
    """A queue's `max_running` over time.

    A value may be in force from its call to the answer of the next call.
    """

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
        """When this change was certainly in force."""
        return next((one.mono for one in told if one.pid == asked.pid and one.mono > asked.mono), FOR_EVER)

    def most(self, span: Span, _: Sequence[Span]) -> int:
        """The largest limit that may have been in force when this job was leased."""
        held = [v for v, begin, until in self._values if begin <= span.begin and until >= span.asked]
        return max(held, default=FOR_EVER)


# ── order ────────────────────────────────────────────────────────────────────────────────────────


class _OrderedJob(NamedTuple):
    """When an ordered job joined its partition (between `first` and `last`), and when it was leased: first at
    `leased`, last not before `again`."""

    first: int
    last: int
    call: tuple[int, int]  # the answer of its enqueue call (mono, pid)
    leased: int
    again: int
    story: Story


def _order(concurrency_key: str, stories: Iterable[Story], case: Case) -> Iterator[Violation]:
    """Check that an ordered job is not leased before all jobs that joined before it are done."""
    jobs = [job for story in stories if (job := _ordered_job(story, case)) is not None]
    jobs.sort(key=lambda job: job.last)
    ends = [job.last for job in jobs]
    latest: list[_OrderedJob] = []  # of all up to this one, the one that was leased last
    for job in jobs:
        latest.append(max(latest[-1], job, key=_again) if latest else job)
    for job in jobs:
        n = bisect_right(ends, job.first - 1)
        before = latest[n - 1] if n else None
        if before is not None and before.again > job.leased:
            yield _overtaken(concurrency_key, job, before)
    by_call = sorted(jobs, key=lambda job: (job.call, job.first))
    for call, together in groupby(by_call, key=lambda job: job.call):
        if call[0]:
            yield from _order_of_call(concurrency_key, list(together))


def _order_of_call(concurrency_key: str, together: Sequence[_OrderedJob]) -> Iterator[Violation]:
    """Check the order of jobs of one enqueue call: they join in the order of the call."""
    before = together[0]
    for job in together[1:]:
        if before.again > job.leased:
            yield _overtaken(concurrency_key, job, before)
        before = max(before, job, key=_again)


def _again(job: _OrderedJob) -> int:
    return job.again


def _overtaken(concurrency_key: str, job: _OrderedJob, before: _OrderedJob) -> Violation:
    key, earlier = concurrency_key, before.story.ref.id
    says = f"the job ran before {earlier} was done, which precedes it in the order of key {key!r}"
    return broken(job.story, "order", says)


def _ordered_job(story: Story, case: Case) -> _OrderedJob | None:
    offer = story.offer
    if offer is None or not offer.ordered:
        return None
    if any(op.asked.verb in ("retry", "reschedule") for op in story.operations):
        return None  # the operation gave the job another place
    leased, enqueued = story.leases[0].mono, story.acknowledged_call
    calls = [story.call_of(story.leases[0]), *([] if enqueued is None else [enqueued])]
    if any(case.forgiven(*call) for call in calls):
        return None
    again = max(story.call_of(lease)[0] for lease in story.leases)
    at = story.acknowledged_at
    if not offer.delayed:
        pid = next((v.pid for v in story.verdicts if v.mono == at), 0)
        return _OrderedJob(offer.mono, leased if at is None else at, (at or 0, pid), leased, again, story)
    due = case.history.mono(offer.due)
    if case.clock_skewed or due is None:
        return None
    return _OrderedJob(
        max(offer.mono, due - _ABOUT - case.slack * 1_000_000), leased, (0, 0), leased, again, story
    )
