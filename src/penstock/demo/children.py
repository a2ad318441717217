"""What each child process of the demo does now: a small file per child in shared memory, read by the display.

A write costs two microseconds and no system call, so the picture does not slow the work down.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.worker.owner import worker_pid

__all__ = ["ChildFile", "ParsingChild", "children_in"]

#: Changes begun and ended (odd: a write is under way), worker, jobs, when the first one began, since when the
#: present one runs (0: none), when the last one ended, seconds of work, length of the name.
_FIELDS = struct.Struct("<QQQddddQ")
_NAME = 440
_SIZE = _FIELDS.size + _NAME
_TRIES = 100


@dataclass(frozen=True)
class ParsingChild:
    """One child: its process and worker, the jobs it has ended, and the file that it works on (empty: none).

    Times are monotonic, in seconds; 0: not yet.
    """

    pid: int
    worker: int
    jobs: int
    first: float
    since: float
    last: float
    busy: float
    name: str

    def load(self, now: float) -> float:
        """The share of the time since its first job that it has worked."""
        worked = self.busy + (now - self.since if self.since else 0.0)
        return min(1.0, worked / (now - self.first)) if self.first and now > self.first else 0.0


class ChildFile:
    """The file of this process, written by its only working thread."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        fd = os.open(directory / str(os.getpid()), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, _SIZE)
            self._memory = mmap.mmap(fd, _SIZE)
        finally:
            os.close(fd)
        self._version = 0
        self._worker, self._jobs = worker_pid(), 0
        self._first = self._last = self._busy = 0.0

    @contextlib.contextmanager
    def works_on(self, name: str) -> Iterator[None]:
        """Show this name during the block."""
        began = time.monotonic()
        self._first = self._first or began
        self._write(began, os.fsencode(name)[-_NAME:])
        try:
            yield
        finally:
            self._last = time.monotonic()
            self._jobs += 1
            self._busy += self._last - began
            self._write(0.0, b"")

    def _write(self, since: float, name: bytes) -> None:
        fields = (self._worker, self._jobs, self._first, since, self._last, self._busy, len(name))
        self._version += 2
        self._memory[:8] = (self._version - 1).to_bytes(8, "little")
        self._memory[_FIELDS.size : _FIELDS.size + len(name)] = name
        self._memory[8 : _FIELDS.size] = _FIELDS.pack(self._version, *fields)[8:]
        self._memory[:8] = self._version.to_bytes(8, "little")


def children_in(directory: Path) -> list[ParsingChild]:
    """The children that have worked, also those that are gone, in the order of their first job."""
    states = [state for path in directory.glob("*") if (state := _read(path)) is not None]
    return sorted(states, key=lambda state: state.first)


def _read(path: Path) -> ParsingChild | None:
    for _ in range(_TRIES):
        data = path.read_bytes()
        if len(data) < _SIZE:
            return None  # it has just been made
        version, worker, jobs, first, since, last, busy, length = _FIELDS.unpack_from(data)
        again = path.read_bytes()
        if version % 2 == 0 and data == again:
            name = os.fsdecode(data[_FIELDS.size : _FIELDS.size + length])
            return (
                ParsingChild(int(path.name), worker, jobs, first, since, last, busy, name) if first else None
            )
    return None  # it was killed while it wrote
