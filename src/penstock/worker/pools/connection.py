"""The worker's end of the socket to a child: non-blocking, with a queue for what the kernel does not take."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

__all__ = ["ChildConnection"]

_READ = 1 << 18
#: Maximum number of queued messages that one system call sends.
_TOGETHER = 64


class ChildConnection:
    """Calls `on_data` with each piece of data and `on_closed` once, when the other side is closed."""

    def __init__(
        self, end: socket.socket, on_data: Callable[[bytes], None], on_closed: Callable[[], None]
    ) -> None:
        end.setblocking(False)
        self._socket = end
        self._on_data = on_data
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[bytes] = deque()  # messages; the first may be the rest of one
        self._first_is_rest = False
        self._open = True
        self._ending = False
        self._paused = False
        self._loop.add_reader(end, self._read)

    @property
    def unsent(self) -> int:
        """Size (bytes) of the messages that the kernel has not taken."""
        return sum(map(len, self._unsent))

    def send(self, messages: Sequence[bytes]) -> None:
        """Send these messages, now or when the other side has read what was sent before."""
        if not self._open or self._ending:
            return
        if self._unsent:
            self._unsent.extend(messages)
            return
        data = b"".join(messages)
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:  # the other side is closed: reading shows it
            return
        if sent < len(data):
            self._unsent.extend(messages)
            self._drop(sent)
            self._loop.add_writer(self._socket, self._send_rest)

    def withdraw(self, n: int) -> None:
        """Drop the last `n` messages, apart from those that the kernel has, also in part."""
        if not self._unsent:
            return
        for _ in range(min(n, len(self._unsent) - self._first_is_rest)):
            self._unsent.pop()
        if not self._unsent:
            self._all_sent()

    def pause(self, seconds: float) -> None:
        """Read nothing for this time, so that several messages arrive together."""
        if self._open and not self._paused:
            self._paused = True
            self._loop.remove_reader(self._socket)
            self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._paused = False
        if self._open:
            self._loop.add_reader(self._socket, self._read)
            self._read()

    def end_input(self) -> None:
        """Close the sending side after all messages were sent."""
        if self._open and not self._ending:
            self._ending = True
            if not self._unsent:
                self._shut_down()

    def close(self) -> None:
        if self._open:
            self._open = False
            if not self._loop.is_closed():
                self._loop.remove_reader(self._socket)
                self._loop.remove_writer(self._socket)
            self._socket.close()
            self._unsent.clear()

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._on_data(data)
        elif self._open:
            self._loop.remove_reader(self._socket)
            self._on_closed()

    def _send_rest(self) -> None:
        try:
            sent = self._socket.sendmsg(list(islice(self._unsent, _TOGETHER)))
        except BlockingIOError:
            return
        except OSError:  # the other side is closed: reading shows it
            self._unsent.clear()
        else:
            self._drop(sent)
        if not self._unsent:
            self._all_sent()

    def _drop(self, sent: int) -> None:
        """Remove the bytes that the kernel has taken."""
        unsent = self._unsent
        while sent:
            first = unsent.popleft()
            self._first_is_rest = sent < len(first)
            if self._first_is_rest:
                unsent.appendleft(first[sent:])
                return
            sent -= len(first)

    def _all_sent(self) -> None:
        self._first_is_rest = False
        self._loop.remove_writer(self._socket)
        if self._ending:
            self._shut_down()

    def _shut_down(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:  # the other side is closed
            pass
