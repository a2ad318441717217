"""Queues with what keeps them from starting jobs, their limits, and parked jobs with who knows their task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from penstock.core.errors import StoreUnavailable
from penstock.core.formats import instant
from penstock.core.job import State
from penstock.core.lifecycle import UNKNOWN_TASK
from penstock.core.limits import LimitLayers, QueueLimits
from penstock.inspector.worker_views import knows
from penstock.stores.contract import Parked, QueueInfo, Store, WorkerInfo

#: For the reasons of parked jobs: the most jobs that are read of a queue, and the most queues.
_EXPLAINED = 20


class StoppedBy(msgspec.Struct, frozen=True):
    """The operator who paused or throttled a queue, and when."""

    who: str
    at: int

    def __str__(self) -> str:
        return f"{self.who} at {instant(self.at)}"


class QueueView(QueueInfo, frozen=True, kw_only=True):
    """A queue, and what the inspector knows beside it.

    - `counts`: in the order of the lifecycle, without states that have no jobs.
    - `workers`: number of live workers that fetch its jobs; None where it is not counted.
    - `held_by`: if `max_running` keeps it from starting more: the first of the running jobs.
    - `stopped_by`: who made the latest change of what keeps it from starting jobs (a pause, a throttle), if
      known.
    """

    workers: int | None = None
    held_by: tuple[str, ...] = ()
    stopped_by: StoppedBy | None = None

    @property
    def waits_for(self) -> str | None:
        """Why no ready job starts, as text."""
        if not self.counts.get(State.AVAILABLE):
            return None
        if self.paused:
            return "the queue is paused"
        if self.throttled_until is not None:
            return f"the queue is throttled until {instant(self.throttled_until)}"
        most, running = self.limits.max_running, self.counts.get(State.RUNNING, 0)
        if most is not None and running >= most:
            return f"{running} of its jobs run, the maximum by its max_running"
        return None if self.limits.rate is None else f"its rate is {self.limits.rate}"

    @property
    def set_by(self) -> dict[str, str]:
        """The source of each limit, "operator" or "code"; others have their default."""
        found = {name: self.layers.source(_limit_of(name)) for name in limit_values(self.limits)}
        return {name: source for name, source in found.items() if source != "default"}

    @property
    def by_code(self) -> dict[str, Any]:
        """The limits that the app's code sets, also where an operator's are in effect."""
        only = LimitLayers(code=self.layers.code)
        found = limit_values(only.limits())
        return {name: value for name, value in found.items() if only.source(_limit_of(name)) == "code"}


def limit_values(limits: QueueLimits) -> dict[str, Any]:
    """The limits by name; None: no limit. The rate is text that can be set again, ages are ms."""
    rate = limits.rate
    return {
        "max_size": limits.max_size,
        "on_full": limits.on_full.value,
        "max_running": limits.max_running,
        "rate": None if rate is None else str(rate),
        "burst": None if rate is None else rate.burst,
        "keep_finished": limits.keep_finished,
        "keep_dead": limits.keep_dead,
        "keep_finished_for": limits.keep_finished_for,
        "keep_dead_for": limits.keep_dead_for,
    }


def _limit_of(name: str) -> str:
    """The limit that a name belongs to: a burst is part of its rate."""
    return "rate" if name == "burst" else name


class ParkedView(msgspec.Struct, frozen=True):
    """Number of parked jobs of a task in a queue.

    `known_to`: ids of the queue's workers that know the task and will take the jobs when they have free
    slots. `reason`: if there are none, why the newest of the jobs is parked; "" if that was not read, which
    is so behind many newer parked jobs of the queue.
    """

    queue: str
    task: str
    jobs: int
    known_to: list[str]
    reason: str = ""

    @property
    def is_unknown(self) -> bool:
        """Whether no worker knows the task; else the reason says more, if it was read."""
        return not self.known_to and self.reason.startswith(UNKNOWN_TASK)


def queue_view(info: QueueInfo) -> QueueView:
    """A queue's counts in the order of the lifecycle, its switches and limits."""
    counts = {state: info.counts[state] for state in State if info.counts.get(state)}
    return QueueView(**{**asdict(info), "counts": counts})


def queue_views(infos: Sequence[QueueInfo], workers: Sequence[WorkerInfo] | None) -> list[QueueView]:
    """Queues with the number of workers that fetch their jobs; None: the store keeps no list of workers."""
    if workers is None:
        return [queue_view(info) for info in infos]
    serving = Counter(name for w in workers if w.state == "running" for name in set(w.queues))
    return [replace(queue_view(info), workers=serving[info.name]) for info in infos]


def parked_view(parked: Parked, workers: Sequence[WorkerInfo]) -> ParkedView:
    """Parked jobs, with the workers that know their task."""
    serving = [w for w in workers if parked.queue in w.queues]
    knowing = [w.id for w in serving if knows(w, parked.queue, parked.task)]
    return ParkedView(parked.queue, parked.task, parked.jobs, knowing)


async def parked_views(
    store: Store, found: Sequence[Parked], workers: Sequence[WorkerInfo]
) -> list[ParkedView]:
    """Parked jobs, also with the reasons of those that no worker will take, as far as they are read."""
    views = [parked_view(one, workers) for one in found]
    queues = list(dict.fromkeys(view.queue for view in views if not view.known_to))[:_EXPLAINED]
    reasons = {queue: await _why_parked(store, queue) for queue in queues}
    return [
        view if view.known_to else replace(view, reason=reasons.get(view.queue, {}).get(view.task, ""))
        for view in views
    ]


async def _why_parked(store: Store, queue: str) -> dict[str, str]:
    """The reasons of the newest parked jobs of a queue, by task."""
    try:
        page = await store.list_jobs(queue=queue, state=State.PARKED, limit=_EXPLAINED)
    except StoreUnavailable:  # of this part of the store
        return {}
    return {job.task: job.reason or "" for job in reversed(page.jobs)}
