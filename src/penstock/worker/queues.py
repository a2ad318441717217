"""Which queue's turn it is: strict order, or by weight, and never more than a queue's slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from penstock.core.errors import ConfigError
from penstock.core.ids import check_queue
from penstock.core.job import Job
from penstock.stores.contract import Share

__all__ = ["Queue", "WeightedRoundRobin", "as_queues", "is_count", "spread"]


class Queue(msgspec.Struct, frozen=True):
    """A queue that a worker serves. `weight`: its share of starts while all queues are full.
    `slots`: never more of its jobs at once in this worker process."""

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
    """Whether it is a number of things of which there is at least one."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def as_queues(queues: Sequence[Queue | str]) -> tuple[Queue, ...]:
    """Queues from what a user wrote; a name given twice is refused."""
    if isinstance(queues, (str, Queue)) or not isinstance(queues, Iterable):
        raise ConfigError(f"queues={queues!r} is not a list of queues: write queues=['mail'] for one")
    made = tuple(q if isinstance(q, Queue) else Queue(q) for q in queues)
    names = [q.name for q in made]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"queue {name!r} is listed twice")
    return made


def spread(jobs: list[Job], got: Mapping[str, int]) -> list[Job]:
    """Jobs of one fetch in the order of their start: each queue's own order, the queues evenly mixed.

    A fetch brings them queue by queue, which would let all of one queue start before any of the next.
    """
    if len(got) <= 1:
        return jobs
    step = {queue: 1 / n for queue, n in got.items()}
    place = {queue: one / 2 for queue, one in step.items()}
    places: list[float] = []
    for job in jobs:
        queue = job.spec.queue
        places.append(place[queue])
        place[queue] += step[queue]
    return [jobs[i] for i in sorted(range(len(jobs)), key=places.__getitem__)]


class WeightedRoundRobin:
    """Splits a fetch between queues.

    By weight: each queue saves up credit for its share of what is asked, and pays for what it gets
    (smooth weighted round robin), so the shares hold for a limit of 1 as for 1 000. A queue that had
    less than its quota is empty and loses its credit: what it did not use it cannot claim later.
    Strict: the first queue gives all it has before the second is asked.
    """

    def __init__(self, queues: Sequence[Queue], *, strict: bool = False) -> None:
        self._queues = tuple(queues)
        self._strict = strict
        self._credit = {q.name: 0.0 for q in queues}

    def plan(self, limit: int, free: int, held: Mapping[str, int], closed: Mapping[str, int]) -> list[Share]:
        """The shares of one fetch of up to `limit` jobs.

        `free`: slots free now, which bounds queues that have a limit of their own (no look-ahead there).
        `held`: jobs in hand per queue. `closed`: queues of which at most so many are wanted now.
        """
        caps: dict[str, int] = {}
        for q in self._queues:
            cap = limit if q.slots is None else min(limit, free, q.slots - held.get(q.name, 0))
            cap = min(cap, closed.get(q.name, cap))
            if cap > 0:
                caps[q.name] = cap
        if self._strict or len(caps) <= 1:
            return [Share(name, cap, cap, free) for name, cap in caps.items()]
        return self._by_weight(limit, caps, free)

    def _by_weight(self, limit: int, caps: dict[str, int], free: int) -> list[Share]:
        open_ = [q for q in self._queues if q.name in caps]
        total = sum(q.weight for q in open_)
        for q in open_:
            self._credit[q.name] += limit * q.weight / total
        ranked = sorted(open_, key=lambda q: -self._credit[q.name])
        left = limit
        quotas = dict.fromkeys(caps, 0)
        for q in ranked:
            quotas[q.name] = max(0, min(left, caps[q.name], int(self._credit[q.name])))
            left -= quotas[q.name]
        while left > 0:  # what rounding left over goes to whoever is owed most
            needy = max(
                (q for q in ranked if quotas[q.name] < caps[q.name]),
                key=lambda q: self._credit[q.name] - quotas[q.name],
                default=None,
            )
            if needy is None:
                break
            quotas[needy.name] += 1
            left -= 1
        return [Share(q.name, quotas[q.name], caps[q.name], free) for q in ranked]

    def paid(self, shares: Sequence[Share], got: Mapping[str, int]) -> None:
        """What the fetch of these shares brought, per queue."""
        for share in shares:
            n = got.get(share.queue, 0)
            credit = self._credit[share.queue] - n
            if n < share.quota:
                credit = 0.0
            bound = max(1.0, float(share.cap))
            self._credit[share.queue] = max(-bound, min(bound, credit))
