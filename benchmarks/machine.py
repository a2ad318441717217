"""Facts of the machine: its disk, and the CPU time and memory of a process session."""

from __future__ import annotations

import contextlib
import os
import platform
import sqlite3
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "Memory",
    "cpu_seconds",
    "describe",
    "fdatasync_ms",
    "memory",
    "memory_of",
    "percentile",
    "session",
]

_TICK = os.sysconf("SC_CLK_TCK")
_BLOCK = 4096


def percentile(values: Sequence[float], p: float) -> float:
    """The p-th percentile of values, interpolated; nan if there are none."""
    if not values:
        return float("nan")
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=1000, method="inclusive")[min(998, round(p * 10) - 1)]


def session(leader: int) -> list[int]:
    """The processes of this session: its leader and its descendants, unless they left the session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                rest = _stat(int(entry.name))
            except OSError:
                continue
            if int(rest[3]) == leader and rest[0] != "Z":
                found.append(int(entry.name))
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU seconds of these processes and their ended children."""
    ticks = 0
    for pid in pids:
        try:
            ticks += sum(int(field) for field in _stat(pid)[11:15])
        except OSError:
            continue
    return ticks / _TICK


class Memory(NamedTuple):
    """Memory of a process, MB (10⁶ bytes).

    `rss`: all of it. `pss`: a page that n processes share counts as 1/n. `uss`: what it shares with none.
    """

    rss: float
    pss: float
    uss: float


def memory_of(pid: int) -> Memory:
    """The memory of this process. Raises OSError if it has ended."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 / 1e6 for line in lines[1:]}
    return Memory(sizes["Rss"], sizes["Pss"], sizes["Private_Clean"] + sizes["Private_Dirty"])


def memory(pids: Sequence[int]) -> tuple[float, float]:
    """RSS and PSS of these processes together, MB."""
    rss = pss = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            found = memory_of(pid)
            rss, pss = rss + found.rss, pss + found.pss
    return rss, pss


def fdatasync_ms(folder: Path, n: int) -> list[float]:
    """How long each of `n` durable writes of a block takes there, in a file that does not grow (ms).

    That is what a commit to a write-ahead log asks of the disk.
    """
    path = folder / "fdatasync.probe"
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(file, bytes(_BLOCK * 256), 0)
        os.fsync(file)
        block, took = os.urandom(_BLOCK), []
        for i in range(n):
            started = time.perf_counter()
            os.pwrite(file, block, i % 256 * _BLOCK)
            os.fdatasync(file)
            took.append((time.perf_counter() - started) * 1000)
        return took
    finally:
        os.close(file)
        path.unlink()


def describe() -> str:
    """The machine and the versions in one line."""
    from penstock import __version__

    return (
        f"{datetime.now(UTC):%Y-%m-%d}, Penstock {__version__}, Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}, {platform.system()} {platform.release()}, "
        f"{len(os.sched_getaffinity(0))} cores ({_cpu_model()})"
    )


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may contain anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
