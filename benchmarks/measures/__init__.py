"""What can be measured, group by group: each group's figures, and the function that takes them once."""

from __future__ import annotations

from benchmarks.measures import (
    delay,
    depth,
    drain,
    enqueue,
    latency,
    leftovers,
    processes,
    result,
    schedule,
    size,
)
from benchmarks.measures.figure import BatchTerms, Figure, Lab

__all__ = ["GROUPS", "BatchTerms", "Figure", "Lab"]

#: In the order of the tables.
GROUPS: dict[str, BatchTerms] = {
    group.name: group
    for group in (
        enqueue.GROUP,
        drain.GROUP,
        processes.GROUP,
        latency.GROUP,
        result.GROUP,
        delay.GROUP,
        size.GROUP,
        leftovers.GROUP,
        schedule.GROUP,
        depth.GROUP,
    )
}
