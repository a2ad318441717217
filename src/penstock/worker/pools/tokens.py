"""Tokens that decide which side has a call: the child that begins it, or the worker that takes it back.

A token is a call's number in 8 bytes on a stream that both sides read. The kernel gives each token to exactly
one of them. A child begins a call only after reading its token; tokens that the worker reads back, also after
the child's death, belong to calls that never began.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Sequence

__all__ = ["CallTokens", "Claims", "blocking_pair"]

_TOKEN = struct.Struct("<Q")
_READ = 8 * 4096


def blocking_pair() -> tuple[socket.socket, socket.socket]:
    """A pair of connected sockets that block, also if the program has set a default timeout for sockets."""
    pair = socket.socketpair()
    for end in pair:
        end.setblocking(True)
    return pair


class CallTokens:
    """The worker's end. `child_end` is passed to the child; a copy of it stays here, to read tokens back."""

    def __init__(self) -> None:
        self._out, self.child_end = blocking_pair()

    def give(self, numbers: Sequence[int]) -> None:
        """Let the child begin these calls, in order. Raises OSError if the child's end is closed.

        A child has far fewer tokens than the kernel buffers, so this never blocks.
        """
        self._out.sendall(struct.pack(f"<{len(numbers)}Q", *numbers))

    def take_back(self) -> list[int]:
        """Remove and return all tokens that the child has not read, in order."""
        try:
            data = self.child_end.recv(_READ, socket.MSG_DONTWAIT)
        except OSError:  # no token is left
            return []
        return [number for (number,) in _TOKEN.iter_unpack(data)]

    def end(self) -> None:
        """Let the child end after the tokens that it has."""
        self._out.close()

    def close(self) -> None:
        self._out.close()
        self.child_end.close()


class Claims:
    """The child's end. `is_orphan` says whether the worker has died: then nothing is begun any more."""

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
