"""The folder of a demo run: environment variables of its processes, and what each child process does now.

A child shows what it does in a small file in shared memory, which the display reads. A write costs two
microseconds and no system call, so the picture does not slow the work down.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from penstock.core.errors import PenstockError
from penstock.worker.process_identity import worker_pid

# ── what the children do ─────────────────────────────────────────────────────────────────────────


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


# ── the folder ───────────────────────────────────────────────────────────────────────────────────


# without the prefix PENSTOCK_: unknown settings are refused
URL = "_PENSTOCK_DEMO_URL"
NAMESPACE = "_PENSTOCK_DEMO_NAMESPACE"
LEDGER = "_PENSTOCK_DEMO_LEDGER"
CHILDREN = "_PENSTOCK_DEMO_CHILDREN"


class DemoFailed(PenstockError):
    """The demo could not be completed; the message says why, and where the workers' log is."""


@dataclass(frozen=True)
class DemoFolder:
    """The directory of a run, and the store of its jobs.

    `external_store`: the store is not a file in the directory. `fresh`: only this run uses the namespace.
    `with_ledger`: producers and workers record what they do.
    """

    workdir: Path
    url: str
    namespace: str = ""
    external_store: bool = False
    fresh: bool = False
    with_ledger: bool = True

    @property
    def ledger(self) -> Path:
        return self.workdir / "ledger"

    @property
    def children(self) -> Path:
        """The files in which the child processes show what they do."""
        return self.workdir / "children"

    @property
    def log(self) -> Path:
        return self.workdir / "worker.log"

    def announce(self) -> None:
        """Set the environment variables of this process and its children.

        Call it before importing the tasks.
        """
        os.environ.update({URL: self.url, NAMESPACE: self.namespace, CHILDREN: str(self.children)})
        if self.with_ledger:
            os.environ[LEDGER] = str(self.ledger)
        else:
            os.environ.pop(LEDGER, None)


@dataclass
class DemoProgress:
    """The progress of the demo: completed and enqueued jobs per queue, and a message or an empty text.

    `children`: the child processes that have worked.
    """

    done: dict[str, int] = field(default_factory=dict)
    of: dict[str, int] = field(default_factory=dict)
    news: str = ""
    children: list[ParsingChild] = field(default_factory=list)
