"""Warns once at start: of settings of the store, of unknown queues, and of workers of other releases."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

from penstock.core.errors import PenstockError, StoreError, StoreUnavailable, did_you_mean
from penstock.core.job import Ref
from penstock.core.schedule import Entry, NewEntry
from penstock.maintenance.service import Service
from penstock.stores.contract import Level, Store, WorkerInfo

# ── settings of the store that put jobs at risk ──────────────────────────────────────────────────

_log = logging.getLogger("penstock.worker")


class StoreCheckup(Service):
    """Runs the store's checkup and logs each finding whose level is not FINE."""

    name = "checkup"

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    async def tick(self) -> float:
        try:
            findings = await self._store.checkup()
        except StoreUnavailable:
            raise  # retried later
        except StoreError as error:  # the store may refuse only the checkup
            _log.warning(
                "%s: the store refused the checkup, so its settings are unknown: %s", self._store.url, error
            )
            findings = []
        for finding in findings:
            if finding.level is not Level.FINE:
                level = logging.ERROR if finding.level is Level.ERROR else logging.WARNING
                _log.log(level, "%s: %s", self._store.url, finding)
        self.stop()
        return 0.0


# ── queues that neither the app nor the store knows: often a typing error ────────────────────────

#: Maximum number of queues named in the warning.
_NAMED = 10


class UnknownQueues(Service):
    """Compares the served queues with those of the app's tasks and of the store.

    An unknown queue is not an error: jobs from other languages or from a newer app may arrive in it.
    """

    name = "unknown-queues"

    def __init__(self, store: Store, worker: str, served: Sequence[str], of_tasks: Sequence[str]) -> None:
        super().__init__()
        self._store = store
        self._worker = worker
        self._of_tasks = of_tasks
        self._unregistered = [name for name in served if name not in set(of_tasks)]

    async def tick(self) -> float:
        if self._unregistered:
            try:
                known = {*self._of_tasks, *(queue.name for queue in await self._store.queues())}
            except StoreUnavailable:
                raise  # retried later
            except StoreError:  # the queues are unknown; the warning is optional
                known = set(self._unregistered)
            self._warn([name for name in self._unregistered if name not in known], known)
        self.stop()
        return 0.0

    def _warn(self, names: Sequence[str], known: set[str]) -> None:
        if not names:
            return
        shown = ", ".join(f"{name!r}" for name in names[:_NAMED])
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        near = did_you_mean(names[0], known) if len(names) == 1 else ""
        which = "the queue" if len(names) == 1 else "the queues"
        _log.warning(
            "worker %s serves %s %s%s, unknown to the app's tasks and to the store%s: "
            "it waits there for jobs",
            self._worker,
            which,
            shown,
            more,
            near,
        )


# ── what this release does not share with running workers of another one ─────────────────────────


async def warn_of_unshared(store: Store, me: WorkerInfo, entries: Mapping[Ref, NewEntry]) -> None:
    """Log what releases with different names for the same task or entry do not share. Reads only."""
    try:
        others = [one for one in await store.workers() if one.id != me.id]
        warnings = [*unshared_tasks(me, others)]
        if me.entries and any(set(one.entries or ()) - set(me.entries) for one in others):
            stored = (await store.entries(me.queues)).entries
            warnings += unshared_entries(me, others, [*entries.values()], stored)
    except PenstockError:  # the store is unreachable: a warning is not worth a wait
        return
    for warning in warnings:
        _log.warning(warning)


def unshared_tasks(me: WorkerInfo, others: Sequence[WorkerInfo]) -> Iterator[str]:
    """One warning per name of a task that another worker counts under another oldest name."""
    for name in me.tasks:
        own = me.identities.get(name, name)
        other = {one.identities.get(name, name) for one in others if name in one.tasks} - {own}
        if other:
            yield (
                f"the task {name!r}: running workers of another release know {', '.join(sorted(other))!r} as "
                f"its oldest name, this one knows {own!r}. Until they have ended, the two releases do not "
                "share its unique keys, batches and periodic entries: aliases= lists all former names, the "
                "oldest first"
            )


def unshared_entries(
    me: WorkerInfo, others: Sequence[WorkerInfo], entries: Sequence[NewEntry], stored: Sequence[Entry]
) -> Iterator[str]:
    """One warning per entry of another release that does what one of this release does."""

    def does(entry: NewEntry) -> tuple[str, str, bytes]:
        task = me.identities.get(entry.job.task, entry.job.task)
        return task, entry.schedule.key, entry.job.payload

    running = {address for one in others for address in one.entries or ()} - set(me.entries or ())
    for entry in stored:
        if f"{entry.ref.queue}/{entry.spec.name}" not in running or entry.unreadable is not None:
            continue
        for own in entries:
            if does(own) == does(entry.spec):
                yield (
                    f"the periodic entry {own.job.queue}/{own.name}: running workers of another release have "
                    f"{entry.ref.queue}/{entry.spec.name} with the same task, schedule and arguments. Until "
                    "they have ended, each instant has two jobs: keep the queue and the name of an entry, "
                    f"name={entry.spec.name!r}"
                )
