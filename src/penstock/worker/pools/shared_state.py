"""Memory and sockets that a worker shares with a child: who has a call, which call runs, large values.

    tokens      decide which side has a call: the child that begins it, or the worker that takes it back
    call page   memory in which the child shows the call that it runs, without a message for each call
    arena       memory for large arguments and results, which then need not go through the socket

The memory is an anonymous file that both processes map. It is gone when both have ended, however they end.
Where anonymous files are missing there is no arena, and everything goes through the socket.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Sequence

from penstock.worker.pools.messages import OVERWRITTEN, ChannelBroken
from penstock.worker.shared_lease_table import keep_size, mapped

# ── tokens ───────────────────────────────────────────────────────────────────────────────────────

_TOKEN = struct.Struct("<Q")
_READ_TOKENS = 8 * 4096


def blocking_pair() -> tuple[socket.socket, socket.socket]:
    """A pair of connected sockets that block, also if the program has set a default timeout for sockets."""
    pair = socket.socketpair()
    for end in pair:
        end.setblocking(True)
    return pair


class CallTokens:
    """The worker's end of the tokens.

    A token is a call's number in 8 bytes on a stream that both sides read. The kernel gives each token to
    exactly one of them. A child begins a call only after reading its token; tokens that the worker reads
    back, also after the child's death, belong to calls that never began. `child_end` is passed to the child;
    a copy of it stays here, to read tokens back.
    """

    def __init__(self) -> None:
        self._out, self.child_end = blocking_pair()

    def give(self, numbers: Sequence[int]) -> None:
        """Let the child begin these calls, in order. Raises OSError if the child's end is closed.

        A child has far fewer tokens than the kernel buffers, so this never blocks.
        """
        self._out.sendall(struct.pack(f"<{len(numbers)}Q", *numbers))

    def take_back(self) -> list[int]:
        """Remove and return all tokens that the child has not read, in order. Raises ChannelBroken."""
        try:
            data = self.child_end.recv(_READ_TOKENS, socket.MSG_DONTWAIT)
        except OSError:  # no token is left
            return []
        if len(data) % _TOKEN.size:
            raise ChannelBroken("has read a part of a token")
        return [number for (number,) in _TOKEN.iter_unpack(data)]

    def end(self) -> None:
        """Let the child end after the tokens that it has."""
        self._out.close()

    def close(self) -> None:
        self._out.close()
        self.child_end.close()


class Claims:
    """The child's end of the tokens.

    `is_orphan` says whether the worker has died: then nothing is begun any more.
    """

    def __init__(self, fd: int, is_orphan: Callable[[], bool] | None = None) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(True)
        self._is_orphan = is_orphan

    def next(self) -> int | None:
        """Wait for the next call to begin; None if the worker has closed its end or has died."""
        try:
            data = self._socket.recv(_TOKEN.size)
        except OSError:
            return None
        if self._is_orphan is not None and self._is_orphan():
            return None
        return int.from_bytes(data, "little") if len(data) == _TOKEN.size else None


# ── the call page ────────────────────────────────────────────────────────────────────────────────

_NUMBER, _STARTED, _CHECK, _BEGUN = range(4)  # 8-byte words
_as_float = struct.Struct("=d").unpack
_as_bytes = struct.Struct("=Q").pack


class CallPage:
    """The child writes `note_begun`, `begin` and `end`; the worker reads, also after the child's death."""

    def __init__(self, fd: int) -> None:
        self._map = mapped(fd, mmap.PAGESIZE)
        self._view = memoryview(self._map)
        self._numbers, self._times = self._view.cast("Q"), self._view.cast("d")

    @staticmethod
    def create() -> int:
        """Create the memory of a page and, behind it, of an arena; the caller closes the descriptor.

        Without anonymous files there is no arena: a file on a disk would be slower than the socket.
        """
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("penstock-child", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, mmap.PAGESIZE + SIZE)
            keep_size(fd)
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
        belong together. Raises ChannelBroken if they do not after 4 ms: the number is written last.
        """
        numbers = self._numbers
        for look in range(5):
            if look:
                time.sleep(0.001)
            number, started = numbers[_NUMBER], numbers[_STARTED]
            if not number:
                return None
            if numbers[_CHECK] == started ^ number:
                return number, _as_float(_as_bytes(started))[0]
        raise ChannelBroken(OVERWRITTEN)


# ── the arena ────────────────────────────────────────────────────────────────────────────────────

#: Arguments and results of at least this size (bytes) lie in shared memory.
LARGE = 64 << 10
_ARGUMENTS, _HALF = 8 << 20, 4 << 20
_MARKS = mmap.PAGESIZE
#: The size of the memory; pages that were never written take none.
SIZE = _MARKS + _ARGUMENTS + 2 * _HALF

#: Offset and length.
Region = tuple[int, int]


class Arena:
    """The memory of one child, in both processes. `offset` is its place in the file.

    arguments   written by the worker, each into a free place; freed when its call has ended or was taken back
    results     two halves, used in turn by the child; the worker marks a half when it has read it

    What does not fit goes through the socket.
    """

    def __init__(self, fd: int, offset: int) -> None:
        self._map = mapped(fd, SIZE, offset)
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
        """Read the result of this call, and let the child use its half again. Raises ChannelBroken."""
        half, inside = divmod(place[0] - _MARKS - _ARGUMENTS, _HALF)
        if half not in (0, 1) or inside or not 0 <= place[1] <= _HALF:
            raise ChannelBroken("sent the place of a result where none can be")
        data = self.get(place)
        self._read[half] = number
        return data
