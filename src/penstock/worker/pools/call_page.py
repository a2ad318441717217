"""A page of memory in which a child shows the call that it runs, without a message for each call."""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time

from penstock.worker.pools.arena import SIZE, Arena

__all__ = ["CallPage"]

_NUMBER, _STARTED, _CHECK, _BEGUN = range(4)  # 8-byte words
_as_float = struct.Struct("=d").unpack
_as_bytes = struct.Struct("=Q").pack


class CallPage:
    """The child writes `note_begun`, `begin` and `end`; the worker reads, also after the child's death."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, mmap.PAGESIZE)
        self._view = memoryview(self._map)
        self._numbers, self._times = self._view.cast("Q"), self._view.cast("d")

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

    def close(self) -> None:
        """Unmap the memory."""
        for view in (self._numbers, self._times, self._view):
            view.release()
        self._map.close()

    def note_begun(self, number: int) -> None:
        """Show that this call has begun: from now on, user code may run for it."""
        self._numbers[_BEGUN] = number

    @property
    def begun(self) -> int:
        """The number of the last call that has begun; 0: none."""
        return self._numbers[_BEGUN]

    def begin(self, number: int) -> float:
        """Show that the function of this call starts now; returns `time.monotonic()`."""
        numbers = self._numbers
        numbers[_NUMBER] = 0
        self._times[_STARTED] = now = time.monotonic()
        numbers[_CHECK] = numbers[_STARTED] ^ number
        numbers[_NUMBER] = number
        return now

    def end(self) -> None:
        """Show that no function runs."""
        self._numbers[_NUMBER] = 0

    def current(self) -> tuple[int, float] | None:
        """The number of the running call and when its function started; None if none runs.

        A processor may show the writes in another order, so the check word tells whether number and time
        belong together.
        """
        numbers = self._numbers
        number, started = numbers[_NUMBER], numbers[_STARTED]
        if not number or numbers[_CHECK] != started ^ number:
            return None
        return number, _as_float(_as_bytes(started))[0]
