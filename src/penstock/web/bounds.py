"""Bounds of an HTTP listener: sizes, numbers and times, so that no client can take all of its memory."""

from __future__ import annotations

import msgspec

__all__ = ["DEFAULT_BOUNDS", "HttpBounds"]


class HttpBounds(msgspec.Struct, frozen=True):
    """The bounds of one listener. Sizes are in bytes, times in seconds.

    - `head`: request line and headers of one request.
    - `headers`: number of headers of one request.
    - `discarded`: how much of a body that is too large is read and thrown away, so that the client can read
      the answer on the same connection. A larger body ends the connection.
    - `bodies`: all bodies in memory at the same time, over all connections.
    - `pipelined`: unanswered requests of one connection; reading pauses beyond it.
    - `connections`: open connections; beyond it, the longest idle one is closed.
    - `head_time`: from the first byte of a request to the end of its headers.
    - `body_time`, `body_rate`: a body may take `body_time` plus its size divided by `body_rate` (bytes/s).
    - `write_time`: how long a client may leave an answer unread.

    An idle connection has no time limit: clients of lmstfy keep connections open, and do not repeat a PUT on
    a connection that the server has closed.
    """

    head: int = 64 * 1024
    headers: int = 100
    discarded: int = 16 * 1024 * 1024
    bodies: int = 256 * 1024 * 1024
    pipelined: int = 64
    connections: int = 10_000
    head_time: float = 10.0
    body_time: float = 30.0
    body_rate: int = 16 * 1024
    write_time: float = 60.0


DEFAULT_BOUNDS = HttpBounds()
