"""The waits of the oracle: for work in a queue, for events of workers, for the ends of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from penstock.core.flow import end_of_flow
from penstock.core.job import Job, Ref
from penstock.stores.own_store import WakeCounts
from tests.oracle.notifier import MemoryNotifier

__all__ = ["EndWatch", "Waiters"]

D = TypeVar("D")
T = TypeVar("T")


class EndWatch:
    """A wait for the end of jobs. It is notified when all have ended or, with `each`, whenever one ends."""

    __slots__ = ("each", "ended", "notifier", "open")

    def __init__(
        self, notifier: MemoryNotifier, found: Mapping[Ref, Job | None], flows: set[Ref], each: bool
    ) -> None:
        """`found`: the jobs as they are now; None for a job that does not exist. `flows`: ends of flows."""
        over = {ref: job for ref, job in found.items() if ref not in flows and (job is None or job.ended)}
        self.notifier = notifier
        self.each = each
        self.open = set(found) - set(over)
        self.ended = over if each else {}


class Waiters:
    """All waits, and the counts of events for workers. Used only under the lock of the state."""

    def __init__(self) -> None:
        self.wake_counts = WakeCounts(0, 0)
        self.notifiers: set[MemoryNotifier] = set()
        self.queue_notifiers: dict[str, set[MemoryNotifier]] = {}
        self.end_watches: dict[Ref, set[EndWatch]] = {}

    # ── waits ──

    def watch(self, queues: Iterable[str], notifier: MemoryNotifier) -> None:
        """Notify when one of the queues may have work, and at each request to stop or change of settings."""
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

    # ── notifications ──

    def notify_work(self, queue: str) -> None:
        """Notify the waits of this queue: it may have work."""
        _notify(self.queue_notifiers.get(queue, ()))

    def notify_cancel(self) -> None:
        """Notify all waits of a request to stop a running job."""
        self.wake_counts = self.wake_counts._replace(cancels=self.wake_counts.cancels + 1)
        _notify(self.notifiers)

    def notify_settings(self) -> None:
        """Notify all waits of a change of settings or periodic entries."""
        self.wake_counts = self.wake_counts._replace(changes=self.wake_counts.changes + 1)
        _notify(self.notifiers)

    def notify_ended(self, job: Job, *, gone: bool = False) -> None:
        """Notify the waits for this job: it has ended, or (`gone`) was removed."""
        self._notify_end(job.ref, None if gone else job)

    def notify_over(self, flow: Ref) -> None:
        """Notify the waits for this flow: it has ended, or its result exists."""
        self._notify_end(end_of_flow(flow), None)

    def _notify_end(self, ref: Ref, job: Job | None) -> None:
        for watch in self.end_watches.pop(ref, ()):
            watch.open.discard(ref)
            if watch.each:
                watch.ended[ref] = job
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
