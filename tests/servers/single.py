"""One Redis server, which a test may kill, stop, pause and start again."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers.certificates import Certificates
from tests.servers.programs import HOST, READY, free_port, redis_program, start, until

_open: list[RedisServer] = []


class RedisServer:
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
        self.port = port
        self.password = password
        self.tls = tls
        self._own_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="penstock-redis-"))
        self.unixsocket = self.folder / "redis.sock"
        self.log = self.folder / "log"
        config = self.folder / "redis.conf"  # a file, so that the server can write its new role into it
        lines = [f"bind {HOST}", f'dir "{self.folder}"', f'logfile "{self.log}"', "daemonize no", *settings]
        config.write_text("\n".join(lines) + "\n")
        self._command = [program, str(config), *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        _open.append(self)
        self.launch()

    # what it is

    @property
    def url(self) -> str:
        secret = f":{self.password}@" if self.password else ""
        return f"{'rediss' if self.tls else 'redis'}://{secret}{HOST}:{self.port}"

    @property
    def unix_url(self) -> str:
        """Needs a server made with unixsocket=True."""
        return f"unix://{f':{self.password}@' if self.password else ''}{self.unixsocket}"

    @property
    def pid(self) -> int:
        assert self._process is not None, f"the server on port {self.port} has not been started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def client(self, **options: Any) -> redis.Redis:
        """A plain client that does not retry; the caller closes it."""
        given: dict[str, Any] = {"socket_timeout": 5, "retry": Retry(NoBackoff(), 0)}
        if self.password:
            given["password"] = self.password
        if self.tls:
            given |= {"ssl": True, "ssl_ca_certs": str(self.tls.ca)}
            given |= {"ssl_certfile": str(self.tls.client), "ssl_keyfile": str(self.tls.client_key)}
        return redis.Redis(HOST, self.port, **(given | options))

    @contextlib.contextmanager
    def asked(self) -> Iterator[redis.Redis]:
        """A client for a moment."""
        with contextlib.closing(self.client()) as client:
            yield client

    def info(self, section: str = "default") -> dict[str, Any]:
        with self.asked() as client:
            found: dict[str, Any] = client.info(section)
            return found

    # its life

    def launch(self) -> None:
        """Start the process; `wait_ready` says when it answers."""
        assert not self.running, f"the server on port {self.port} is running"
        self._process = start(self._command)

    def wait_ready(self) -> Self:
        self.until(self._answers, "an answer")
        return self

    def wait_in_step(self) -> None:
        """For a replica: until it has all that its master has."""

        def in_step() -> bool:
            return self.info("replication").get("master_link_status") == "up"

        self.until(in_step, "the replica to be in step")

    def until(self, true: Callable[[], bool], what: str, *, timeout: float = READY) -> None:
        """Wait until it is true of this server. Its log says why it is not."""

        def true_or_over() -> bool:
            return true() or not self.running

        try:
            until(true_or_over, what, timeout=timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self._last_words()}") from None
        assert self.running, f"waited for {what}, and it ended: {self._last_words()}"

    def start_again(self) -> Self:
        """After stop() or kill(): the same port, the same folder."""
        self.launch()
        return self.wait_ready()

    def stop(self) -> None:
        """End it as an operator would; it may save what it has to."""
        if self._process is None or not self.running:
            return
        self.resume()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """kill -9: what was not written is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """It holds its connections and says nothing: what a stuck machine looks like."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """For good."""
        if os.getpid() != self._owner:  # a fork of the tests has the object, not the server
            return
        self.kill()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self in _open:
            _open.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answers(self) -> bool:
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError), self.asked() as client:
            return bool(client.ping())
        return False

    def _last_words(self) -> str:
        lines = self.log.read_text("utf-8", "replace").splitlines() if self.log.exists() else []
        return "\n".join([f"the log of the server on port {self.port} ends:", *lines[-15:]])


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
