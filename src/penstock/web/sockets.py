"""Listening sockets: of an address and port, or of a path; made before the processes that accept on them."""

from __future__ import annotations

import os
import socket
import stat
import sys
from contextlib import suppress
from pathlib import Path

from penstock.core.errors import ConfigError

#: Connections that wait to be accepted, per socket.
BACKLOG = 2_048


def bind_tcp(host: str, port: int, copies: int = 1) -> list[list[socket.socket]]:
    """Listen at an address: for each of `copies` processes, its sockets (one per address of the host's name).

    On Linux each process has sockets of its own, and the kernel divides the connections among them. Elsewhere
    all processes share the same ones. Port 0: a free port, the same for all. Raises OSError.
    """
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    own = copies > 1 and sys.platform == "linux"
    made: list[list[socket.socket]] = [[] for _ in range(copies)]
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            where = (address[0], port, *address[2:])
            first = _listener(family, where, shared=False)  # fails if another server has the port
            port = first.getsockname()[1]
            if not own:
                for sockets in made:
                    sockets.append(first)
                continue
            first.close()
            where = (address[0], port, *address[2:])
            for sockets in made:
                sockets.append(_listener(family, where, shared=True))
    except OSError:
        for sockets in made:
            for one in sockets:
                one.close()
        raise
    return made


def _listener(family: int, where: tuple[object, ...], *, shared: bool) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(where)
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise OSError(error.errno, error.strerror, f"{where[0]}:{where[1]}") from error
    return made


class UnixSocket:
    """A listening socket at a path. `mode`: the permissions of the file, which say who may connect.

    Raises ConfigError if the path is in use, and OSError if it cannot be made.
    """

    def __init__(self, path: Path, mode: int = 0o600) -> None:
        self.path = path
        _remove_left_over(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)  # no moment at which others could connect
        try:
            self.socket.bind(os.fspath(path))
        except OSError as error:
            self.socket.close()
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        finally:
            os.umask(before)
        path.chmod(mode)
        self._inode = path.stat().st_ino
        self.socket.listen(BACKLOG)
        self.socket.setblocking(False)

    def remove(self) -> None:
        """Remove the file, unless another server has replaced it."""
        with suppress(OSError):
            if self.path.lstat().st_ino == self._inode:
                self.path.unlink()


def _remove_left_over(path: Path) -> None:
    """Remove the socket of a server that was killed."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"{path} exists and is no socket: name another path")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise ConfigError(f"{path} cannot be used: {error.strerror or error}") from error
    raise ConfigError(f"another server listens at {path}")
