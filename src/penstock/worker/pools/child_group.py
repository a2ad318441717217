"""The children of a process pool: which of them may have calls, and when one is replaced."""

from __future__ import annotations

import os
import subprocess

import msgspec

from penstock.config import Config
from penstock.worker.pools.child_process import ChildProcess


class ChildGroup:
    """Children that take calls, and retired ones that run their last. At most `size` have calls at a time."""

    def __init__(self, size: int) -> None:
        self._size = size
        #: Children that take calls; successors that are ready early are among them.
        self.active: list[ChildProcess] = []
        #: Children that were asked to end.
        self.retired: list[ChildProcess] = []

    def clear(self) -> None:
        """Forget all children."""
        self.active, self.retired = [], []

    def places(self) -> tuple[list[ChildProcess], int]:
        """The children that may have calls, and how many more may.

        A successor stays idle until the child before it has ended its last call.
        """
        held = sum([1 for child in self.retired if child.calls]) if self.retired else 0
        if not held and len(self.active) <= self._size:
            return self.active, self._size - len(self.active)
        busy = [child for child in self.active if child.calls]
        idle = [child for child in self.active if not child.calls]
        free = max(0, self._size - held - len(busy))
        return busy + idle[:free], max(0, free - len(idle))

    def least_loaded(self, expected: float | None) -> ChildProcess | None:
        """The least loaded child with room for a call of this expected duration (s; None: unknown)."""
        best = None
        for child in self.places()[0]:
            if (best is None or child.work < best.work) and child.room(expected) > 0:
                best = child
        return best

    def has_idle(self, besides: ChildProcess | None = None) -> bool:
        """Whether an active child, other than this one, has no calls."""
        return any(not child.calls and child is not besides for child in self.active)


# ── options ──────────────────────────────────────────────────────────────────────────────────────


class ChildLimits(msgspec.Struct, frozen=True):
    """Replace a child after `jobs` jobs, or when it is larger than `memory` bytes after a job.

    0: no limit.
    """

    jobs: int = 0
    memory: int = 0

    @property
    def any(self) -> bool:
        """Whether there is a limit."""
        return self.jobs > 0 or self.memory > 0

    def is_reached(self, jobs: int, size: int) -> bool:
        """Whether a child of this size (bytes) that has run this many jobs must be replaced."""
        return (self.jobs > 0 and jobs >= self.jobs) or (self.memory > 0 and size > self.memory)

    def is_near(self, child: ChildProcess, size: int, lead: float) -> bool:
        """Whether a child will reach a limit within about `lead` seconds of work, or is 90 % as large."""
        if self.memory and size > 0.9 * self.memory:
            return True
        left = self.jobs - child.jobs
        return self.jobs > 0 and (left <= len(child.calls) or (child.jobs > 0 and left * child.pace <= lead))


class ChildOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the children of a pool start, run, and are replaced."""

    #: The config that children get; None: they read their own.
    config: Config | None = None
    #: How they start: "fork", "preload" or "spawn" (see `process_start`).
    start: str = "fork"
    #: The time (s) in which a child must be ready.
    start_timeout: float = 120.0
    #: This many children beyond those with calls are kept ready.
    spares: int = 0
    #: Added to the niceness of children.
    nice: int = 0
    #: The processors that children may use; empty: those of the worker.
    cpus: tuple[int, ...] = ()
    limits: ChildLimits = ChildLimits()


def resident(pid: int) -> int:
    """The resident memory of a process in bytes, without its own children; 0 if unknown."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        return _as_ps_says(pid)


def _as_ps_says(pid: int) -> int:
    """The resident memory by `ps`, for systems without /proc such as macOS."""
    try:
        command = ["ps", "-o", "rss=", "-p", str(pid)]
        done = subprocess.run(command, capture_output=True, timeout=1.0, check=False)  # noqa: S603 (fixed arguments)
        return int(done.stdout.strip() or 0) * 1024
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0
