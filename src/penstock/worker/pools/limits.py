"""Limits of a child process: number of jobs and memory size, after which it is replaced."""

from __future__ import annotations

import os
import subprocess
from typing import Protocol

import msgspec

from penstock.worker.pools.calls import ProcessCall

__all__ = ["ChildLimits", "resident"]


class LimitedChild(Protocol):
    """What counts for the limit of jobs."""

    jobs: int
    pace: float
    calls: dict[int, ProcessCall]


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

    def is_near(self, child: LimitedChild, size: int, lead: float) -> bool:
        """Whether a child will reach a limit within about `lead` seconds of work, or is 90 % as large."""
        if self.memory and size > 0.9 * self.memory:
            return True
        left = self.jobs - child.jobs
        return self.jobs > 0 and (left <= len(child.calls) or (child.jobs > 0 and left * child.pace <= lead))


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
