"""The worker's end of the socket to a child: non-blocking, with a queue for what the kernel does not take."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

__all__ = ["Connection"]

_READ = 1 << 18


class Connection:
    """Calls `on_data` with each piece of data and `on_closed` once, when the other side is closed."""

    def __init__(
        self, end: socket.socket, on_data: Callable[[bytes], None], on_closed: Callable[[], None]
    ) -> None:
        end.setblocking(False)
        self._socket = end
        self._on_data = on_data
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._unsent = bytearray()
        self._open = True
        self._paused = False
        self._loop.add_reader(end, self._read)

    def send(self, data: bytes) -> None:
        """Send this data, now or when the other side has read what was sent before."""
        if not self._open:
            return
        if not self._unsent:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:  # the other side is closed: reading shows it
                return
            if sent == len(data):
                return
            data = data[sent:]
            self._loop.add_writer(self._socket, self._send_rest)
        self._unsent += data

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
        """Close the sending side, after what is still unsent was given to the kernel or dropped."""
        if self._open:
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:  # the other side is closed
                pass

    def close(self) -> None:
        if self._open:
            self._open = False
            if not self._loop.is_closed():
                self._loop.remove_reader(self._socket)
                self._loop.remove_writer(self._socket)
            self._socket.close()

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
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._unsent)
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._socket)
