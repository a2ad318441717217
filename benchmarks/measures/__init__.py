"""All measurements in groups: the figures of each group, and the function that takes them once."""

from __future__ import annotations

from benchmarks.measures import (
    delay,
    depth,
    drain,
    enqueue,
    features,
    flows,
    latency,
    leftovers,
    memory,
    processes,
    result,
    schedule,
    size,
)
from benchmarks.measures.figure import Figure, FigureGroup, Lab

__all__ = ["GROUPS", "Figure", "FigureGroup", "Lab"]

#: In the order of the tables.
GROUPS: dict[str, FigureGroup] = {
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
        memory.GROUP,
        schedule.GROUP,
        depth.GROUP,
        features.GROUP,
        flows.GROUP,
    )
}
