"""One Redis server, which a test may kill, stop, pause and start again."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import redis

from penstock.verify.servers.nodes import RedisNode
from tests.servers.certificates import Certificates
from tests.servers.programs import HOST, free_port, redis_program

_open: list[RedisServer] = []


class RedisServer(RedisNode):
    """One server process, which may be stopped and started again over its data."""

    def __init__(
        self,
        settings: Sequence[str],
        *,
        port: int,
        folder: Path | None = None,
        arguments: Sequence[str] = (),
        password: str = "",
        tls: Certificates | None = None,
    ) -> None:
        program = redis_program()
        self.password = password
        self.tls = tls
        self._own_folder = folder is None
        folder = folder or Path(tempfile.mkdtemp(prefix="penstock-redis-"))
        super().__init__(program, folder, settings, port=port, arguments=arguments)
        self.unixsocket = self.folder / "redis.sock"
        self._owner = os.getpid()
        _open.append(self)
        self.launch()

    @property
    def url(self) -> str:
        secret = f":{self.password}@" if self.password else ""
        return f"{'rediss' if self.tls else 'redis'}://{secret}{HOST}:{self.port}"

    @property
    def unix_url(self) -> str:
        """Needs a server made with unixsocket=True."""
        return f"unix://{f':{self.password}@' if self.password else ''}{self.unixsocket}"

    def client(self, **options: Any) -> redis.Redis:
        """A plain client that does not retry; the caller closes it."""
        given: dict[str, Any] = {}
        if self.password:
            given["password"] = self.password
        if self.tls:
            given |= {"ssl": True, "ssl_ca_certs": str(self.tls.ca)}
            given |= {"ssl_certfile": str(self.tls.client), "ssl_keyfile": str(self.tls.client_key)}
        return super().client(**(given | options))

    def close(self) -> None:
        """For good."""
        if os.getpid() != self._owner:  # a fork of the tests has the object, not the server
            return
        super().close()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self in _open:
            _open.remove(self)


def redis_server(
    *settings: str,
    port: int | None = None,
    folder: Path | None = None,
    appendonly: bool = False,
    unixsocket: bool = False,
    password: str = "",
) -> RedisServer:
    """One plain server. `settings` are lines of redis.conf: "maxmemory 2mb", "maxmemory-policy noeviction".

    A folder that is given stays when the server is closed.
    """
    made = data_server(
        *settings, port=port, folder=folder, appendonly=appendonly, unixsocket=unixsocket, password=password
    )
    return made.wait_ready()


def data_server(
    *settings: str,
    port: int | None = None,
    folder: Path | None = None,
    appendonly: bool = False,
    unixsocket: bool = False,
    password: str = "",
    tls: Certificates | None = None,
) -> RedisServer:
    """One that is only launched: several start together."""
    port = port or free_port()
    usual = [
        'save ""',
        f"appendonly {'yes' if appendonly else 'no'}",
        f"port {0 if tls else port}",
        # a replica is fed at once and not after the 5 s in which others might come
        "repl-diskless-sync yes",
        "repl-diskless-sync-delay 0",
        "repl-ping-replica-period 1",
    ]
    if tls:
        usual += [f"tls-port {port}", f'tls-ca-cert-file "{tls.ca}"']
        usual += [f'tls-cert-file "{tls.server}"', f'tls-key-file "{tls.server_key}"']
    if password:
        usual += [f"requirepass {password}", f"masterauth {password}"]
    if unixsocket:
        usual.append("unixsocket redis.sock")  # from its folder
    return RedisServer([*usual, *settings], port=port, folder=folder, password=password, tls=tls)


@contextlib.contextmanager
def all_or_none() -> Iterator[None]:
    """If what is begun here fails, its servers are closed."""
    before = list(_open)
    try:
        yield
    except BaseException:
        for server in [server for server in _open if server not in before]:
            server.close()
        raise


@atexit.register
def _close_all() -> None:
    for server in list(_open):
        server.close()
