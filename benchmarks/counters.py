"""Counters of the measured tasks: a count and instants in shared memory, without use of the store.

Each process that runs tasks owns two files in a tmpfs folder: `count.PID`, mapped into memory, and
`instants.PID`, appended to. The measuring process only reads them. A count costs a task less than a
microsecond and no system call, an instant one write.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from pathlib import Path

__all__ = ["Counters", "count", "instant", "leave_in"]

#: The time of every n-th execution is kept, so that the rate of any part can be computed.
EVERY = 100
_MARKS = 20_000
_COUNT, _FIRST, _LAST, _MARK = 0, 1, 2, 3
_BYTES = 8 * (_MARK + _MARKS)
_INSTANT = struct.Struct("<qq")

_lock = threading.Lock()
_folder = os.environ.get("BENCH_DIR", "")
_slot: memoryview | None = None
_instants = -1


def leave_in(folder: Path) -> None:
    """Set the folder for the counters of this process; worker processes read it from BENCH_DIR."""
    global _folder, _slot, _instants
    with _lock:
        _folder, _slot, _instants = str(folder), None, -1


def count() -> None:
    """Count one execution, now."""
    global _slot
    now = time.monotonic_ns()
    with _lock:
        slot = _slot
        if slot is None:
            slot = _slot = _mapped(Path(_folder) / f"count.{os.getpid()}", create=True)
        n = slot[_COUNT]
        if n == 0:
            slot[_FIRST] = now
        slot[_LAST] = now
        if n % EVERY == 0 and n < EVERY * _MARKS:
            slot[_MARK + n // EVERY] = now
        slot[_COUNT] = n + 1


def instant(reference: int, now: int) -> None:
    """Record an execution that began at `now`, and its delay since `reference` (ns)."""
    global _instants
    if _instants < 0:
        with _lock:
            if _instants < 0:
                path = os.path.join(_folder, f"instants.{os.getpid()}")
                _instants = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(_instants, _INSTANT.pack(reference, now))


class Counters:
    """Reads the counters of all processes in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._slots: dict[Path, memoryview] = {}

    def total(self) -> int:
        """The number of executions."""
        return sum(slot[_COUNT] for slot in self._look())

    def per_process(self) -> list[int]:
        """The number of executions of each process that has run something."""
        return [slot[_COUNT] for slot in self._look() if slot[_COUNT]]

    def rate(self) -> float:
        """Executions per second, from the first to the last of all processes."""
        slots = [slot for slot in self._look() if slot[_COUNT]]
        total = sum(slot[_COUNT] for slot in slots)
        if total < 2:
            return float("nan")
        span = max(slot[_LAST] for slot in slots) - min(slot[_FIRST] for slot in slots)
        return (total - 1) / (span / 1e9)

    def span(self) -> tuple[int, int]:
        """The times of the first and the last execution of all processes (monotonic, ns)."""
        slots = [slot for slot in self._look() if slot[_COUNT]]
        return min(slot[_FIRST] for slot in slots), max(slot[_LAST] for slot in slots)

    def rate_of_first(self, n: int) -> float:
        """Executions per second over the first `n`, to the mark before it; of one process."""
        (slot,) = [slot for slot in self._look() if slot[_COUNT]]
        last = (n - 1) // EVERY
        return last * EVERY / ((slot[_MARK + last] - slot[_MARK]) / 1e9)

    def reset(self) -> None:
        """Reset all counters; no task may be running."""
        for slot in self._look():
            for place in range(len(slot)):
                slot[place] = 0
        for path in self.folder.glob("instants.*"):
            os.truncate(path, 0)

    def elapsed(self) -> list[int]:
        """The delay of each instant since its reference (ns)."""
        return [now - reference for reference, now in self._instants()]

    def instant_times(self) -> list[int]:
        """The times of the instants (ns)."""
        return [now for _, now in self._instants()]

    def instants(self) -> int:
        """The number of instants."""
        return sum(path.stat().st_size for path in self.folder.glob("instants.*")) // _INSTANT.size

    def _instants(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for path in self.folder.glob("instants.*"):
            data = path.read_bytes()
            found += _INSTANT.iter_unpack(data[: len(data) // _INSTANT.size * _INSTANT.size])
        return found

    def _look(self) -> list[memoryview]:
        for path in self.folder.glob("count.*"):
            if path not in self._slots and path.stat().st_size == _BYTES:
                self._slots[path] = _mapped(path)
        return list(self._slots.values())


def _mapped(path: Path, *, create: bool = False) -> memoryview:
    file = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    try:
        if create:
            os.ftruncate(file, _BYTES)
        return memoryview(mmap.mmap(file, _BYTES)).cast("q")
    finally:
        os.close(file)
