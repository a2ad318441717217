"""Where commands for developers listen, and how they are stopped."""

from __future__ import annotations

import contextlib
import errno
import signal
import socket
from collections.abc import Iterator
from typing import Any

from penstock.cli.faults import CommandError

__all__ = ["address_of", "interruptible", "listen_somewhere"]

#: Without --port: the first of these that is free.
_PORTS = range(8080, 8090)


def listen_somewhere(host: str, port: int | None) -> list[socket.socket]:
    """Listen on this port, or without one on the first of some that is free. Raises CommandError."""
    from penstock.web.sockets import bind_tcp

    ports = [port] if port is not None else [*_PORTS]
    why: str | None = None
    for one in ports:
        try:
            (sockets,) = bind_tcp(host, one)
            return sockets
        except OSError as error:
            why = error.strerror
            if error.errno != errno.EADDRINUSE:
                break
    tried = f"{host}:{ports[0]}" if len(ports) == 1 else f"{host}, ports {ports[0]} to {ports[-1]}"
    raise CommandError(f"cannot listen on {tried}: {why}; name another port, or --port 0 for a free one")


def address_of(host: str, listener: socket.socket) -> str:
    """The URL of what listens."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}/"


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Treat TERM like Ctrl-C: what was started ends."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
