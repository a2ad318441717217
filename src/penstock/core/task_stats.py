"""The statistics of a task in one queue during one period: numbers of attempts, and how long they took."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.core.sketch import Sketch, sum_sketches

__all__ = ["OTHER", "TaskStats", "sum_of"]

#: The name under which the tasks beyond the most that are counted by name are counted together.
OTHER = "other"


class TaskStats(msgspec.Struct, array_like=True):
    """Numbers of attempts by how they ended, and sketches of their times.

    - `started`: attempts whose function has started. `processed` and `failed` count as a queue's totals do:
      attempts that were charged, and those that ended with an error. `retried` and `dead`: what followed.
    - `waited`, `ran`: sums (µs). `waits`: from due to leased. `runs`: of the function.

    A store adds the numbers and the sketches of two records place by place, so all numbers come first.
    """

    started: int = 0
    processed: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    waited: int = 0
    ran: int = 0
    waits: Sketch = msgspec.field(default_factory=list)
    runs: Sketch = msgspec.field(default_factory=list)


def sum_of(parts: Sequence[TaskStats]) -> TaskStats:
    """The sum of many statistics."""
    return TaskStats(
        started=sum(one.started for one in parts),
        processed=sum(one.processed for one in parts),
        failed=sum(one.failed for one in parts),
        retried=sum(one.retried for one in parts),
        dead=sum(one.dead for one in parts),
        waited=sum(one.waited for one in parts),
        ran=sum(one.ran for one in parts),
        waits=sum_sketches(one.waits for one in parts),
        runs=sum_sketches(one.runs for one in parts),
    )
