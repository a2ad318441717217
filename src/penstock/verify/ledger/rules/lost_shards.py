"""While a part of the store was away for long, the queues of the others went on."""

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

#: From so many ready jobs on a queue is judged by itself; from so many on, all healthy queues together.
_ENOUGH, _AT_LEAST = 20, 5


class LostShard(NamedTuple):
    """From when to when (ms, wall clock) a part of the store was away, and the queues of the others."""

    begin: int
    end: int
    queues: tuple[str, ...]


def went_on(case: Case, lost_shards: Sequence[LostShard]) -> Iterator[Violation]:
    """In each healthy queue with enough to do, and in all of them together, a job ended meanwhile. Ready
    were those that were acknowledged and due before half of the time was over, and had not ended before.

    Where no worker lived through all of it unharmed, nothing can be said."""
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
    whose = "" if queue else " of all queues that were there"
    says = f"{ready} job(s){whose} were ready while another part of the store was away for {seconds:.1f} s"
    return Violation("lost shard", f"{says}, and none ended", queue)


def _had_a_worker(case: Case, begin: int, end: int) -> bool:
    """Whether a process had jobs before it and after it, and no harm was done to it in between."""
    leases = [lease for story in case.history.stories for lease in story.leases]
    lived = {one.pid for one in leases if one.mono < begin} & {one.pid for one in leases if one.mono >= end}
    harmed = {
        fault.target
        for fault in case.history.faults
        if fault.target and fault.mono < end and fault.mono + int(fault.seconds * 1e9) >= begin
    }
    return any(harmed.isdisjoint(with_parents([pid], case.history.parents)) for pid in lived)


def _seen(stories: Sequence[Story], begin: int, end: int, case: Case) -> tuple[int, int]:
    """How many jobs of a queue were ready, and how many ended meanwhile."""
    half = begin + (end - begin) // 2
    ready = sum(1 for story in stories if _was_ready(story, half, case) and min(_ends(story)) >= begin)
    ended = sum(1 for story in stories if begin <= min(_ends(story, certain=True)) < end)
    return ready, ended


def _was_ready(story: Story, by: int, case: Case) -> bool:
    offer, since = story.offer, story.acknowledged_at
    if offer is None or since is None or since > by:
        return False
    due = case.history.mono(offer.due)
    return due is not None and due <= by


def _ends(story: Story, *, certain: bool = False) -> Iterator[int]:
    """When it ended, or perhaps did; a member of a batch with that. What nobody answered is not certain."""
    for act in chain(story.acts, *(batch.acts for batch in story.batches)):
        if act.terminal and (act.applied or (act.perhaps and not certain)):
            yield act.answered if act.applied else act.asked.mono
    for op in story.operations:
        if op.asked.verb in ("cancel", "delete") and (op.answer == "cancelled" or not certain):
            yield op.asked.mono
    yield FOR_EVER
