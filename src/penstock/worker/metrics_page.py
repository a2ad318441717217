"""A worker process's figures in shared memory: its supervisor reads them, also after the process was killed.

The file has two places, and a write goes to the older one, so that a process that dies while it writes leaves
the figures before. Each place has a header: number of the write, length and checksum of what follows.
"""

from __future__ import annotations

import os
import struct
import zlib

_HEADER = struct.Struct("=QII")
#: Size of a place. Memory that is not written costs nothing.
_PLACE = 4 * 1024 * 1024


class MetricsPage:
    """Bytes that one process writes and another one reads."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._writes = 0

    @classmethod
    def create(cls) -> MetricsPage:
        """A page without content. Pass `fileno()` to the process that writes."""
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("penstock-metrics"))
        import tempfile

        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    @classmethod
    def attach(cls, fd: int) -> MetricsPage:
        """The page behind a file descriptor that was passed by another process; the page owns it."""
        os.set_inheritable(fd, False)
        return cls(fd)

    def fileno(self) -> int:
        return self._fd

    def write(self, content: bytes) -> None:
        """Replace the content. What is too large for the page is left out."""
        if len(content) > _PLACE - _HEADER.size:
            return
        self._writes += 1
        header = _HEADER.pack(self._writes, len(content), zlib.crc32(content))
        os.pwrite(self._fd, header + content, (self._writes % 2) * _PLACE)

    def read(self) -> bytes:
        """The last content that was written whole; b"" if there is none."""
        newest, found = 0, b""
        for place in (0, _PLACE):
            header = os.pread(self._fd, _HEADER.size, place)
            if len(header) < _HEADER.size:
                continue
            writes, length, checksum = _HEADER.unpack(header)
            if writes <= newest:
                continue
            content = os.pread(self._fd, min(length, _PLACE), place + _HEADER.size)
            if len(content) == length and zlib.crc32(content) == checksum:
                newest, found = writes, content
        return found

    def close(self) -> None:
        os.close(self._fd)
