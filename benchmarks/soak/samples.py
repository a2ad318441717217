"""Samples of a worker and its store during a soak test, and the check for growth."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.machine import memory, percentile, session
from benchmarks.rig import Rig
from penstock import State

__all__ = ["KEEP_DEAD", "Sample", "faults", "growth", "look"]

#: How many dead jobs are kept; once there are as many, the store should not grow any more.
KEEP_DEAD = 500
_LIMIT_MB = 10.0
_STORE_SLACK = 1.10, 4e6
#: Limit of the waiting times at the end relative to the beginning (medians of the thirds). A shared machine
#: is sometimes twice as slow; a wait that grows with the number of jobs exceeds that by far.
_LATENCY = 2.0


class Sample(msgspec.Struct):
    """After so many jobs. MB; `size` is the file with its log, or what Redis uses.

    `descriptors` and `threads` are those of the supervisor and its child together; `p50` and `p99` (ms) are
    of how long after its enqueue a job began, since the sample before.
    """

    jobs: int
    seconds: float
    worker_rss: float
    worker_pss: float
    all_pss: float
    descriptors: int
    threads: int
    size: float
    dead: int
    p50: float
    p99: float


def look(rig: Rig, supervisor: int, jobs: int, seconds: float, waits: Sequence[int]) -> Sample:
    """Take a sample; `waits` (ns) are the waiting times since the previous sample."""
    pids = session(supervisor)
    worker_rss, worker_pss = memory([pid for pid in pids if pid != supervisor])
    late = [wait / 1e6 for wait in waits]
    return Sample(
        jobs,
        seconds,
        worker_rss,
        worker_pss,
        memory(pids)[1],
        sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
        sum(len(os.listdir(f"/proc/{pid}/task")) for pid in pids),
        _size(rig) / 1e6,
        sum(queue.counts.get(State.DEAD, 0) for queue in rig.app.store.sync.queues()),
        percentile(late, 50) if late else float("nan"),
        percentile(late, 99) if late else float("nan"),
    )


def _size(rig: Rig) -> int:
    if rig.server is not None:
        return rig.server.used()
    return sum(path.stat().st_size for path in (rig.file, Path(f"{rig.file}-wal")) if path.exists())


def growth(samples: Sequence[Sample]) -> float:
    """By how many MB the worker's PSS has grown since the first sample."""
    return samples[-1].worker_pss - samples[0].worker_pss


def faults(samples: Sequence[Sample]) -> list[str]:
    """The measurements that have grown and should not have."""
    first = samples[0]
    found = []
    if growth(samples) > _LIMIT_MB:
        found.append(
            f"GREW: the worker by {growth(samples):.1f} MB after its first {first.jobs:,} jobs "
            f"(limit {_LIMIT_MB:.0f})"
        )
    for name, seen in (
        ("descriptors", [sample.descriptors for sample in samples]),
        ("threads", [sample.threads for sample in samples]),
    ):
        if _keeps_growing(seen):
            found.append(f"GREW: the {name} from {seen[0]} to {seen[-1]}")
    return [*found, *_store_grew(samples), *_slower(samples)]


def _keeps_growing(seen: Sequence[int]) -> bool:
    """Whether it was less in the first half, and still grew in the second. What leaks goes on leaking; a
    connection that is opened when two calls meet for the first time does not."""
    half = len(seen) // 2
    return max(seen[:half], default=seen[0]) < min(seen[half:]) < seen[-1]


def _store_grew(samples: Sequence[Sample]) -> list[str]:
    # the store may grow until the limit of dead jobs is reached
    settled = [sample for sample in samples[:-1] if sample.dead >= KEEP_DEAD] or list(samples[-2:-1])
    factor, slack = _STORE_SLACK
    if not settled or samples[-1].size <= settled[0].size * factor + slack / 1e6:
        return []
    return [
        f"GREW: the store from {settled[0].size:.1f} MB after {settled[0].jobs:,} jobs "
        f"to {samples[-1].size:.1f} MB at the end"
    ]


def _slower(samples: Sequence[Sample]) -> list[str]:
    third = len(samples) // 3
    if third < 3:  # too few samples to distinguish a slow moment from a trend
        return []
    before = statistics.median(sample.p99 for sample in samples[:third])
    after = statistics.median(sample.p99 for sample in samples[-third:])
    if after <= before * _LATENCY:
        return []
    return [f"SLOWER: p99 from {before:.1f} ms in the first third to {after:.1f} ms in the last"]
