"""Samples of the depths of queues, in the oracle."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.core.job import QUEUED, State
from penstock.core.stats import QueueDepth, enqueued_between
from penstock.stores.contract import DepthPage, DepthRow, Resolution
from tests.oracle.rows import MemoryQueue
from tests.oracle.state import MemoryState

__all__ = ["read_depths", "sample_depths"]

_MINUTE = Resolution.MINUTE.length
_LATER = (QUEUED | {State.SUSPENDED}) - {State.AVAILABLE}


def sample_depths(memory: MemoryState) -> int:
    now = memory.clock.now()
    for queue in memory.known(None):
        queue.statistics.add_depth(_depth_of(queue), queue.enqueued, now)
    return _MINUTE - now % _MINUTE


def _depth_of(queue: MemoryQueue) -> QueueDepth:
    counts = queue.counts
    later = sum(counts[state] for state in _LATER)
    return QueueDepth.sample(counts[State.AVAILABLE], counts[State.RUNNING], later)


def read_depths(memory: MemoryState, resolution: Resolution, span: int, queue: str | None) -> DepthPage:
    now, length = memory.clock.now(), resolution.length
    oldest = max(resolution.oldest(now), (now - span) // length)
    rows: list[DepthRow] = []
    for one in memory.known(None if queue is None else [queue]):
        depths, totals = one.statistics.depths[resolution], one.statistics.totals[resolution]
        periods = [period for period in sorted(depths) if oldest <= period <= now // length]
        enqueued = enqueued_between([totals[period] for period in periods], one.enqueued)
        rows += [
            DepthRow(one.name, period * length, replace(depths[period], enqueued=number))
            for period, number in zip(periods, enqueued, strict=True)
        ]
    return DepthPage(rows, now)
