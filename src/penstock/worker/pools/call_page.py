"""A page of memory in which a child shows the call that it runs, without a message for each call."""

from __future__ import annotations

import mmap
import os
import tempfile
import time

from penstock.worker.pools.arena import SIZE, Arena

__all__ = ["CallPage"]

_NUMBER, _STARTED = 0, 1  # 8-byte words


class CallPage:
    """The child writes `begin` and `end`; the worker reads `current`, also after the child's death."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, mmap.PAGESIZE)
        view = memoryview(self._map)
        self._numbers, self._times = view.cast("Q"), view.cast("d")

    @staticmethod
    def create() -> int:
        """Create the memory of a page and, behind it, of an arena; the caller closes the descriptor.

        Without anonymous files there is no arena: a file on a disk would be slower than the socket.
        """
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("penstock-child")
            os.ftruncate(fd, mmap.PAGESIZE + SIZE)
            return fd
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
        os.ftruncate(fd, mmap.PAGESIZE)
        return fd

    @staticmethod
    def arena(fd: int) -> Arena | None:
        """The arena behind the page of this file, if it has one."""
        return Arena(fd, mmap.PAGESIZE) if Arena.fits(fd, mmap.PAGESIZE) else None

    def begin(self, number: int) -> float:
        """Show that the function of this call starts now; returns `time.monotonic()`."""
        self._numbers[_NUMBER] = 0
        self._times[_STARTED] = now = time.monotonic()
        self._numbers[_NUMBER] = number
        return now

    def end(self) -> None:
        """Show that no function runs."""
        self._numbers[_NUMBER] = 0

    def current(self) -> tuple[int, float] | None:
        """The number of the running call and when its function started; None if none runs.

        A number is used once per child, so the same number before and after means that the time belongs to
        it.
        """
        number = self._numbers[_NUMBER]
        started = self._times[_STARTED]
        return (number, started) if number and self._numbers[_NUMBER] == number else None
