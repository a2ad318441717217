"""Messages between a worker and the process that forks its children: packets with a kind of one byte."""

from __future__ import annotations

import struct

__all__ = ["FORK", "REAP", "Reply"]

#: Requests: fork a child with the two descriptors of this packet; reap the child with this pid.
FORK, REAP = b"F", b"R"
_EVENT = struct.Struct("<qi")


class Reply:
    """Packets to the worker: a reason, or a pid and a number."""

    READY, UNCLEAN, FORKED, FAILED, EXITED = b"S", b"U", b"P", b"E", b"X"

    @staticmethod
    def of(kind: bytes, pid: int, number: int) -> bytes:
        return kind + _EVENT.pack(pid, number)

    @staticmethod
    def event(packet: bytes) -> tuple[int, int]:
        """The pid, and the exit code or error number."""
        pid, number = _EVENT.unpack_from(packet, 1)
        return pid, number
