"""Decides how many jobs to fetch from which queue: in strict order or by weight, within its slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from penstock.core.errors import ConfigError
from penstock.core.ids import check_queue
from penstock.core.job import Job
from penstock.stores.contract import Share, looked_at

_NONE: Mapping[str, int] = MappingProxyType({})


class Queue(msgspec.Struct, frozen=True):
    """A queue that a worker serves.

    `weight`: share of job starts while all queues have jobs. `slots`: maximum number of its jobs running at
    the same time in this worker process (default: no limit of its own).
    """

    name: str
    weight: int = 1
    slots: int | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "name", check_queue(self.name))
        if not is_count(self.weight):
            raise ConfigError(
                f"queue {self.name!r}: weight={self.weight!r} is not a whole number of 1 or more"
            )
        if self.slots is not None and not is_count(self.slots):
            raise ConfigError(f"queue {self.name!r}: slots={self.slots!r} is not a whole number of 1 or more")


def is_count(value: object) -> bool:
    """Whether the value is a whole number of 1 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def as_queues(queues: Sequence[Queue | str]) -> tuple[Queue, ...]:
    """Queues from names and `Queue`s. Raises ConfigError for a name given twice."""
    if isinstance(queues, (str, Queue)) or not isinstance(queues, Iterable):
        raise ConfigError(f"queues={queues!r} is not a list of queues: write queues=['mail'] for one")
    made = tuple(q if isinstance(q, Queue) else Queue(q) for q in queues)
    names = [q.name for q in made]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"queue {name!r} is listed twice")
    return made


def spread(jobs: list[Job], received: Mapping[str, int]) -> list[Job]:
    """The jobs of one fetch in the order in which to start them: queues evenly mixed, each in its own order.

    A fetch returns them queue by queue; without mixing, all jobs of one queue would start before the next
    queue's.
    """
    if len(received) <= 1:
        return jobs
    step = {queue: 1 / n for queue, n in received.items()}
    position = {queue: one / 2 for queue, one in step.items()}
    positions: list[float] = []
    for job in jobs:
        queue = job.spec.queue
        positions.append(position[queue])
        position[queue] += step[queue]
    return [jobs[i] for i in sorted(range(len(jobs)), key=positions.__getitem__)]


class WeightedRoundRobin:
    """Splits a fetch between queues.

    By weight: each queue earns credit for its share of each fetch and spends it on the jobs it gets (smooth
    weighted round robin), so the shares hold for a limit of 1 as for 1 000. A queue that gave less than its
    quota is empty and loses its credit: an unused share is not saved for later.
    Strict: the first queue is emptied before the second is asked.
    """

    def __init__(self, queues: Sequence[Queue], *, strict: bool = False) -> None:
        self._queues = tuple(queues)
        self._strict = strict
        self._credit = {q.name: 0.0 for q in queues}

    def plan(
        self,
        limit: int,
        free: int,
        held: Mapping[str, int],
        limits: Mapping[str, int],
        frees: Mapping[str, int] = _NONE,
    ) -> list[Share]:
        """The shares of one fetch of up to `limit` jobs.

        `free`: free slots now; they bound queues that have a limit of their own (no look-ahead there).
        `held`: leased jobs per queue. `limits`: maximum number of jobs to fetch now, per queue. `frees`: free
        slots of queues whose jobs cannot use all free slots; the store counts them where a queue is limited.
        """
        caps: dict[str, int] = {}
        for q in self._queues:
            cap = limit if q.slots is None else min(limit, free, q.slots - held.get(q.name, 0))
            cap = min(cap, limits.get(q.name, cap))
            if cap > 0:
                caps[q.name] = cap
        if self._strict or len(caps) <= 1:
            return [Share(name, cap, cap, min(free, frees.get(name, free))) for name, cap in caps.items()]
        return self._by_weight(limit, caps, free, frees)

    def _by_weight(
        self, limit: int, caps: dict[str, int], free: int, frees: Mapping[str, int]
    ) -> list[Share]:
        active = [q for q in self._queues if q.name in caps]
        total = sum(q.weight for q in active)
        for q in active:
            self._credit[q.name] += limit * q.weight / total
        ranked = sorted(active, key=lambda q: -self._credit[q.name])
        left = limit
        quotas = dict.fromkeys(caps, 0)
        for q in ranked:
            quotas[q.name] = max(0, min(left, caps[q.name], int(self._credit[q.name])))
            left -= quotas[q.name]
        while left > 0:  # what rounding leaves over goes to the queue with the most credit left
            next_queue = max(
                (q for q in ranked if quotas[q.name] < caps[q.name]),
                key=lambda q: self._credit[q.name] - quotas[q.name],
                default=None,
            )
            if next_queue is None:
                break
            quotas[next_queue.name] += 1
            left -= 1
        return [
            Share(q.name, quotas[q.name], caps[q.name], min(free, frees.get(q.name, free))) for q in ranked
        ]

    def charge(self, shares: Sequence[Share], received: Mapping[str, int]) -> None:
        """Charge each queue for the jobs that the fetch of these shares brought."""
        for share in looked_at(shares, received):
            n = received.get(share.queue, 0)
            credit = self._credit[share.queue] - n
            if n < share.quota:
                credit = 0.0
            bound = max(1.0, float(share.cap))
            self._credit[share.queue] = max(-bound, min(bound, credit))
