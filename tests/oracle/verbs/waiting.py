"""wait, wait_for_end, stream_ends: register waits, and query what they wait for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.core.flow import flow_with_end
from penstock.core.job import Job, Ref
from penstock.stores.contract import Wake
from penstock.stores.own_store import WakeCounts
from tests.oracle.notifier import MemoryNotifier
from tests.oracle.state import MemoryState
from tests.oracle.verbs.producing import get
from tests.oracle.verbs.promoting import next_due
from tests.oracle.waiters import EndWatch

__all__ = ["look", "take_ended", "unwatch", "unwatch_ends", "watch", "watch_ends"]


def watch(memory: MemoryState, queues: Sequence[str], notifier: MemoryNotifier) -> None:
    """Notify when one of the queues may have work, and at each request to stop or change of settings."""
    memory.waiters.watch(queues, notifier)


def unwatch(memory: MemoryState, queues: Sequence[str], notifier: MemoryNotifier) -> None:
    memory.waiters.unwatch(queues, notifier)


class FoundWork(NamedTuple):
    """What a wait has found."""

    wake: Wake
    counts: WakeCounts
    due: int | None  # the first instant at which something is due
    now: int


def look(
    memory: MemoryState,
    queues: Sequence[str],
    until: int,
    before: WakeCounts,
    parked: Sequence[str] = (),
    ends_at_due: bool = True,
) -> FoundWork:
    """Return the flags of a wait that ends at `until`, and the counts so far.

    - `before`: the counts that were reported last; `parked`: as in `Wait`.
    - `ends_at_due`: whether what is due before the end is work.
    """
    wake, now, wake_counts = Wake.NOTHING, memory.clock.now(), memory.waiters.wake_counts
    known = memory.known(queues)
    if any(queue.gives(now, parked=queue.name in parked) for queue in known):
        wake |= Wake.WORK
    first = next_due(memory, queues)
    for due in (first if ends_at_due else None, *(queue.opens_at(now) for queue in known)):
        if due is not None and (due <= now or due < until):
            wake |= Wake.WORK
    return FoundWork(wake | wake_counts.wake_since(before), wake_counts, first, now)


def watch_ends(memory: MemoryState, refs: Sequence[Ref], notifier: MemoryNotifier, each: bool) -> EndWatch:
    """Notify when all jobs have ended or do not exist; `each`: whenever one ends (see `take_ended`)."""
    flows = {ref for ref in refs if _is_open_flow(memory, ref)}
    watch = EndWatch(notifier, dict(zip(refs, get(memory, refs), strict=True)), flows, each)
    memory.waiters.watch_ends(watch)
    return watch


def _is_open_flow(memory: MemoryState, ref: Ref) -> bool:
    of = flow_with_end(ref)
    flow = None if of is None else memory.flows.get(of)
    return flow is not None and not flow.head.over


def unwatch_ends(memory: MemoryState, watch: EndWatch) -> None:
    memory.waiters.unwatch_ends(watch)


def take_ended(_: MemoryState, watch: EndWatch) -> dict[Ref, Job | None]:
    """Return the jobs that have ended since the last call."""
    ended, watch.ended = watch.ended, {}
    return ended
