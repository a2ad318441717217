"""Limits of a child process: number of jobs and memory size, after which it is replaced."""

from __future__ import annotations

import os
import subprocess

import msgspec

__all__ = ["ChildLimits", "resident"]


class ChildLimits(msgspec.Struct, frozen=True):
    """Replace a child after `jobs` jobs, or when it is larger than `memory` bytes after a job.

    0: no limit.
    """

    jobs: int = 0
    memory: int = 0

    def is_reached(self, jobs: int, pid: int) -> bool:
        """Whether a child that has run this many jobs must be replaced."""
        if self.jobs and jobs >= self.jobs:
            return True
        return self.memory > 0 and resident(pid) > self.memory


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
