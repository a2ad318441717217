"""A Redis server of our own, which may be killed, stopped, paused, run out of disk and started again."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, Self, TypeVar

import redis
from redis.backoff import ConstantBackoff, NoBackoff
from redis.exceptions import BusyLoadingError
from redis.retry import Retry

from penstock.verify.servers.programs import HOST, READY, ServerFailed, redis_program, start, until

__all__ = ["Fsync", "RedisNode", "all_ready", "data_node", "fill", "freeze", "in_turn"]

#: When a write is safe from a power cut: before it is acknowledged; a second later, about; some time.
Fsync = Literal["always", "everysec", "no"]


class _Harmed(Protocol):
    turn: threading.Lock


S = TypeVar("S", bound=_Harmed)
P = ParamSpec("P")
R = TypeVar("R")


def in_turn(harm: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """One harm at a time: who is stopped cannot be killed and started in the middle of it."""

    @wraps(harm)
    def waiting(server: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with server.turn:
            return harm(server, *args, **kwargs)

    return waiting


class RedisNode:
    """One server process on a port of this host, which may be stopped and started again over its data."""

    def __init__(
        self, program: str, folder: Path, settings: Sequence[str], *, port: int, arguments: Sequence[str] = ()
    ) -> None:
        self.port = port
        self.known_port = port  # the one that a cluster tells clients: a relay's, if there is one before it
        self.folder = folder
        self.log = folder / "log"
        config = folder / "redis.conf"  # a file, so that the server can write its new role into it
        lines = [f"bind {HOST}", f'dir "{folder}"', f'logfile "{self.log}"', "daemonize no", *settings]
        config.write_text("\n".join(lines) + "\n")
        self._command = [program, str(config), *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    # what it is

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}"

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
        return redis.Redis(HOST, self.port, **(given | options))

    @contextlib.contextmanager
    def asked(self) -> Iterator[redis.Redis]:
        """A client for a moment, which waits while the server loads data, its own or those of its master."""
        patient = Retry(ConstantBackoff(0.05), round(20 * READY), (BusyLoadingError,))
        with contextlib.closing(self.client(retry=patient, retry_on_error=[BusyLoadingError])) as client:
            yield client

    def info(self, section: str = "default") -> dict[str, Any]:
        with self.asked() as client:
            found: Any = client.info(section)
            return dict(found)

    def flush_scripts(self) -> None:
        """SCRIPT FLUSH."""
        with self.asked() as client:
            client.script_flush()

    @property
    def log_of_changes(self) -> Path:
        """The file that it appends to now."""
        parts = self.folder.glob("appendonlydir/*.incr.aof")
        return max(parts, key=_number, default=self.folder / "appendonly.aof")

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
        except ServerFailed as error:
            raise ServerFailed(f"{error}; {self._last_words()}") from None
        if not self.running:
            raise ServerFailed(f"waited for {what}, and it ended: {self._last_words()}")

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

    def may_grow(self, may: bool) -> None:
        """Whether it may write to a file. If not, its writes fail as on a full disk (EFBIG for ENOSPC)."""
        if sys.platform != "linux":
            raise ServerFailed("a full disk can only be had on Linux (prlimit)")
        _, hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (hard if may else 0, hard))

    def close(self) -> None:
        """For good."""
        self.kill()

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


def _number(path: Path) -> int:
    found = re.search(r"\.(\d+)\.incr\.aof$", path.name)
    return int(found[1]) if found else 0


# ── what is done to them ─────────────────────────────────────────────────────────────────────────


def data_node(folder: Path, port: int, fsync: Fsync, settings: Sequence[str] = ()) -> RedisNode:
    """One with an append-only file, which is to be launched yet; raises ConfigError without a program."""
    folder.mkdir(parents=True, exist_ok=True)
    usual = [
        f"port {port}",
        'save ""',
        "appendonly yes",
        f"appendfsync {fsync}",
        # a replica is fed at once and not after the 5 s in which others might come
        "repl-diskless-sync yes",
        "repl-diskless-sync-delay 0",
        "repl-ping-replica-period 1",
        "repl-timeout 5",  # a link that a relay has left half open is made anew soon
    ]
    return RedisNode(redis_program(), folder.resolve(), [*usual, *settings], port=port)


def all_ready(nodes: Sequence[RedisNode]) -> None:
    """Start them together; none is left behind if one cannot."""
    with contextlib.ExitStack() as started:
        for node in nodes:
            started.callback(node.close)
            node.launch()
        for node in nodes:
            node.wait_ready()
        started.pop_all()


def freeze(node: RedisNode, seconds: float) -> None:
    """SIGSTOP, and SIGCONT after so long."""
    node.pause()
    try:
        time.sleep(seconds)
    finally:
        node.resume()


def fill(node: RedisNode, seconds: float) -> str:
    """Let none of its files grow for so long; what came of it, in words. It may have ended itself."""
    node.may_grow(False)
    try:
        time.sleep(seconds)
        refused = node.running and not _writes(node)
    finally:
        with contextlib.suppress(ProcessLookupError):
            node.may_grow(True)
    if not node.running:
        return "it ended itself at the first write, as it does with appendfsync always"
    node.until(lambda: _writes(node), "its file to grow again")  # it tries every second
    return "it refused to write (MISCONF)" if refused else "nothing was written meanwhile"


def _writes(node: RedisNode) -> bool:
    return str(node.info("persistence")["aof_last_write_status"]) == "ok"
