"""Memory shared with a child for large arguments and results, which then need not go through the socket.

    arguments   written by the worker, each into a free place; freed when its call has ended or was taken back
    results     two halves, used in turn by the child; the worker marks a half when it has read it

The memory is an anonymous file that both processes map. It is gone when both have ended, however they end.
What does not fit goes through the socket, and so does everything where anonymous files are missing.
"""

from __future__ import annotations

import mmap
import os

__all__ = ["LARGE", "SIZE", "Arena", "Region"]

#: Arguments and results of at least this size (bytes) lie in shared memory.
LARGE = 64 << 10
_ARGUMENTS, _HALF = 8 << 20, 4 << 20
_MARKS = mmap.PAGESIZE
#: The size of the memory; pages that were never written take none.
SIZE = _MARKS + _ARGUMENTS + 2 * _HALF

#: Offset and length.
Region = tuple[int, int]


class Arena:
    """The memory of one child, in both processes. `offset` is its place in the file."""

    def __init__(self, fd: int, offset: int) -> None:
        self._map = mmap.mmap(fd, SIZE, offset=offset)
        self._marks = memoryview(self._map)[:_MARKS]
        self._read = self._marks.cast("Q")
        self._taken: list[Region] = []  # of the arguments, sorted
        self._written = [0, 0]  # the call whose result was last written into each half
        self._half = 0

    @staticmethod
    def fits(fd: int, offset: int) -> bool:
        """Whether the file has room for an arena."""
        return os.fstat(fd).st_size >= offset + SIZE

    def close(self) -> None:
        """Unmap the memory."""
        self._read.release()
        self._marks.release()
        self._map.close()

    # ── arguments ────────────────────────────────────────────────────────────────────────────────

    def put(self, data: bytes) -> Region | None:
        """Write arguments into a free place; None if there is none."""
        size, start = len(data), _MARKS
        at = len(self._taken)
        for i, (offset, length) in enumerate(self._taken):
            if offset - start >= size:
                at = i
                break
            start = offset + length
        else:
            if _MARKS + _ARGUMENTS - start < size:
                return None
        self._map[start : start + size] = data
        self._taken.insert(at, (start, size))
        return start, size

    def free(self, place: Region) -> None:
        """Let this place be used again."""
        self._taken.remove(place)

    def get(self, place: Region) -> bytes:
        """Read arguments or a result."""
        offset, length = place
        return self._map[offset : offset + length]

    # ── results ──────────────────────────────────────────────────────────────────────────────────

    def put_result(self, number: int, data: bytes) -> Region | None:
        """Write the result of this call; None if it is too large, or the worker has not read an older one."""
        half = self._half
        if len(data) > _HALF or self._read[half] != self._written[half]:
            return None
        self._half, self._written[half] = 1 - half, number
        start = _MARKS + _ARGUMENTS + half * _HALF
        self._map[start : start + len(data)] = data
        return start, len(data)

    def take_result(self, number: int, place: Region) -> bytes:
        """Read the result of this call, and let the child use its half again."""
        data = self.get(place)
        self._read[(place[0] - _MARKS - _ARGUMENTS) // _HALF] = number
        return data
