"""Rule about lost shards: while one shard is away, the queues of the other shards make progress."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from penstock.verify.ledger.reading.story import Story
from penstock.verify.ledger.rules.case import Case
from penstock.verify.ledger.rules.faults import with_parents
from penstock.verify.ledger.rules.spans import FOR_EVER
from penstock.verify.ledger.verdict import Violation

__all__ = ["LostShard", "went_on"]

#: Minimum of ready jobs to check a queue by itself, and to check all healthy queues together.
_ENOUGH, _AT_LEAST = 20, 5
#: Workers that stop do so once they have noticed the loss, within this time (ns): jobs leased before prove
#: no progress.
_NOTICED = 2_000_000_000


class LostShard(NamedTuple):
    """A span (wall clock, ms) in which a shard was away, and the queues of the other shards."""

    begin: int
    end: int
    queues: tuple[str, ...]


def went_on(case: Case, lost_shards: Sequence[LostShard]) -> Iterator[Violation]:
    """Check that during each lost shard a job ended in every healthy queue with enough ready jobs.

    If no single queue has enough, all healthy queues are checked together. A job counts as ready if it was
    acknowledged and due in the first half of the span, and had not ended before. A span without a worker that
    ran through it without a fault is not checked.
    """
    if not lost_shards:
        return
    by_queue: dict[str, list[Story]] = defaultdict(list)
    for story in case.history.stories:
        by_queue[story.ref.queue].append(story)
    for one in lost_shards:
        begin, end = case.history.mono(one.begin), case.history.mono(one.end)
        if begin is None or end is None or not _had_a_worker(case, begin, end):
            continue
        seen = {queue: _seen(by_queue[queue], begin, end, case) for queue in one.queues}
        seconds = (one.end - one.begin) / 1_000
        for queue, (ready, ended) in seen.items():
            if ready >= _ENOUGH and not ended:
                yield _stood_still(ready, seconds, queue)
        ready = sum(n for n, _ in seen.values())
        alone = any(n >= _ENOUGH for n, _ in seen.values())
        if ready >= _AT_LEAST and not alone and not any(ended for _, ended in seen.values()):
            yield _stood_still(ready, seconds)


def _stood_still(ready: int, seconds: float, queue: str = "") -> Violation:
    whose = "" if queue else " of all available queues"
    says = f"{ready} job(s){whose} were ready while another shard was away for {seconds:.1f} s"
    return Violation("lost shard", f"{says}, and none ended", queue)


def _had_a_worker(case: Case, begin: int, end: int) -> bool:
    """Whether a process leased jobs before and after the span, and no fault hit it in between."""
    leases = [lease for story in case.history.stories for lease in story.leases]
    lived = {one.pid for one in leases if one.mono < begin} & {one.pid for one in leases if one.mono >= end}
    harmed = {
        fault.target
        for fault in case.history.faults
        if fault.target and fault.mono < end and fault.mono + int(fault.seconds * 1e9) >= begin
    }
    return any(harmed.isdisjoint(with_parents([pid], case.history.parents)) for pid in lived)


def _seen(stories: Sequence[Story], begin: int, end: int, case: Case) -> tuple[int, int]:
    """How many jobs of a queue were ready, and how many were leased and ended during the loss."""
    half = begin + (end - begin) // 2
    ready = sum(1 for story in stories if _was_ready(story, half, case) and min(_ends(story)) >= begin)
    ended = sum(
        1
        for story in stories
        if begin <= min(_ends(story, certain=True)) < end
        and any(lease.mono >= begin + _NOTICED for lease in story.leases)
    )
    return ready, ended


def _was_ready(story: Story, by: int, case: Case) -> bool:
    offer, since = story.offer, story.acknowledged_at
    if offer is None or since is None or since > by:
        return False
    due = case.history.mono(offer.due)
    return due is not None and due <= by


def _ends(story: Story, *, certain: bool = False) -> Iterator[int]:
    """When the job ended or may have ended, also with its batch. An end without an answer is not certain."""
    for act in chain(story.acts, *(batch.acts for batch in story.batches)):
        if act.terminal and (act.applied or (act.perhaps and not certain)):
            yield act.answered if act.applied else act.asked.mono
    for op in story.operations:
        if op.asked.verb in ("cancel", "delete") and (op.answer == "cancelled" or not certain):
            yield op.asked.mono
    yield FOR_EVER
