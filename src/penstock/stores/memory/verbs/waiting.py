"""Waiting: what a wait is for, and what there is for it when it looks."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.job import Job, Ref
from penstock.stores.contract import Wake
from penstock.stores.memory.notifier import Bell
from penstock.stores.memory.state import Shelf
from penstock.stores.memory.verbs.producing import get
from penstock.stores.memory.verbs.promoting import next_due
from penstock.stores.memory.waiters import EndWatch, Heard

__all__ = ["look", "told", "unwatch", "unwatch_ends", "watch", "watch_ends"]


def watch(shelf: Shelf, queues: Sequence[str], bell: Bell) -> None:
    """Ring when one of the queues may have work, and at every request to stop or change of settings."""
    shelf.waiters.watch(queues, bell)


def unwatch(shelf: Shelf, queues: Sequence[str], bell: Bell) -> None:
    shelf.waiters.unwatch(queues, bell)


def look(
    shelf: Shelf, queues: Sequence[str], until: int, before: Heard, parked: Sequence[str] = ()
) -> tuple[Wake, Heard]:
    """What there is for a wait that ends at `until` and had heard of `before`; `parked`: as `wait` says."""
    wake, now, heard = Wake.NOTHING, shelf.clock.now(), shelf.waiters.heard
    known = shelf.known(queues)
    if any(queue.gives(now, parked=queue.name in parked) for queue in known):
        wake |= Wake.WORK
    for due in (next_due(shelf, queues), *(queue.opens(now) for queue in known)):
        if due is not None and (due <= now or due < until):
            wake |= Wake.WORK
    if heard.cancels > before.cancels:
        wake |= Wake.CANCEL
    if heard.changes > before.changes:
        wake |= Wake.SETTINGS
    return wake, heard


def watch_ends(shelf: Shelf, refs: Sequence[Ref], bell: Bell, each: bool) -> EndWatch:
    """Ring when all of these have ended or are gone; `each`: whenever one is, and `told` says of which."""
    watch = EndWatch(bell, dict(zip(refs, get(shelf, refs), strict=True)), each)
    shelf.waiters.watch_ends(watch)
    return watch


def unwatch_ends(shelf: Shelf, watch: EndWatch) -> None:
    shelf.waiters.unwatch_ends(watch)


def told(_: Shelf, watch: EndWatch) -> dict[Ref, Job | None]:
    """Those that have ended since this was asked last."""
    told, watch.told = watch.told, {}
    return told
