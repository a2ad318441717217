"""Who waits for what: for work in a queue, for news to workers, for the ends of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from penstock.core.job import Job, Ref
from penstock.stores.memory.notifier import MemoryNotifier
from penstock.stores.wake_counts import WakeCounts

__all__ = ["EndWatch", "Waiters"]

D = TypeVar("D")
T = TypeVar("T")


class EndWatch:
    """A wait for the end of these jobs: of all, or of `each` of them, and then for what it was told."""

    __slots__ = ("each", "notifier", "open", "told")

    def __init__(self, notifier: MemoryNotifier, found: Mapping[Ref, Job | None], each: bool) -> None:
        """`found`: the jobs as they are; None for one that is gone."""
        over = {ref: job for ref, job in found.items() if job is None or job.ended}
        self.notifier = notifier
        self.each = each
        self.open = set(found) - set(over)
        self.told = over if each else {}


class Waiters:
    """Whom a change may wake, and what workers are told of. All of it under the lock of the state."""

    def __init__(self) -> None:
        self.heard = WakeCounts(0, 0)
        self.notifiers: set[MemoryNotifier] = set()
        self.queue_notifiers: dict[str, set[MemoryNotifier]] = {}
        self.end_watches: dict[Ref, set[EndWatch]] = {}

    # ── those who wait ──

    def watch(self, queues: Iterable[str], notifier: MemoryNotifier) -> None:
        """Notify when one of the queues may have work, and at every request to stop or change of settings."""
        self.notifiers.add(notifier)
        for name in queues:
            self.queue_notifiers.setdefault(name, set()).add(notifier)

    def unwatch(self, queues: Iterable[str], notifier: MemoryNotifier) -> None:
        self.notifiers.discard(notifier)
        for name in queues:
            _discard(self.queue_notifiers, name, notifier)

    def watch_ends(self, watch: EndWatch) -> None:
        for ref in watch.open:
            self.end_watches.setdefault(ref, set()).add(watch)

    def unwatch_ends(self, watch: EndWatch) -> None:
        for ref in watch.open:
            _discard(self.end_watches, ref, watch)

    # ── what they are told ──

    def tell_work(self, queue: str) -> None:
        """This queue may have work."""
        _notify(self.queue_notifiers.get(queue, ()))

    def tell_stop(self) -> None:
        """A running job shall stop."""
        self.heard = self.heard._replace(cancels=self.heard.cancels + 1)
        _notify(self.notifiers)

    def tell_settings(self) -> None:
        """Settings or entries are others now."""
        self.heard = self.heard._replace(changes=self.heard.changes + 1)
        _notify(self.notifiers)

    def tell_ended(self, job: Job, *, gone: bool = False) -> None:
        """The job as it ended, or as it was before it went."""
        ref = job.ref
        for watch in self.end_watches.pop(ref, ()):
            watch.open.discard(ref)
            if watch.each:
                watch.told[ref] = None if gone else job
            if watch.each or not watch.open:
                watch.notifier.notify()


def _notify(notifiers: Iterable[MemoryNotifier]) -> None:
    for notifier in notifiers:
        notifier.notify()


def _discard(groups: dict[D, set[T]], name: D, member: T) -> None:
    group = groups.get(name)
    if group is not None:
        group.discard(member)
        if not group:
            del groups[name]
