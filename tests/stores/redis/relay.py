"""A wire between a client and a server that a test may cut, or let go dead."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

from penstock.stores.redis.address import Address, Node


class Relay:
    """Passes bytes on, until told otherwise."""

    def __init__(self, port: int) -> None:
        self._to = ("127.0.0.1", port)
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self.connections = 0
        #: Bytes of a request: what is behind them is passed on, the reply is not, and the wire is cut.
        self.lose_reply_to = b""
        self.dead = False  # what comes is swallowed, on the wires of now and later
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> Address:
        return Address(mode="single", nodes=(Node("127.0.0.1", self.port),))

    def cut(self) -> None:
        """All wires of now."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._door.close()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._door.accept()
            except OSError:
                return
            self.connections += 1
            try:
                server = socket.create_connection(self._to)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._pairs.append((client, server))
            muted = threading.Event()
            threading.Thread(target=self._there, args=(client, server, muted), daemon=True).start()
            threading.Thread(target=self._back, args=(server, client, muted), daemon=True).start()

    def _there(self, client: socket.socket, server: socket.socket, muted: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65_536):
                if self.lose_reply_to and self.lose_reply_to in data:
                    self.lose_reply_to = b""
                    muted.set()
                if not self.dead:
                    server.sendall(data)
        _hang_up(server)

    def _back(self, server: socket.socket, client: socket.socket, muted: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65_536):
                if muted.is_set():
                    break
                if not self.dead:
                    client.sendall(data)
        _hang_up(client)
        client.close()
        server.close()


def _hang_up(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
