"""A private Redis server, which can be killed, stopped, paused, put on a full disk and started again."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, Self

import redis
from redis.backoff import ConstantBackoff, NoBackoff
from redis.exceptions import BusyLoadingError
from redis.retry import Retry

from penstock.core.errors import ConfigError, PenstockError

# ── programs ─────────────────────────────────────────────────────────────────────────────────────


HOST = "127.0.0.1"
READY = 30.0  # timeout until a server answers (s), also on a busy machine


class ServerFailed(PenstockError):
    """A private server did not start or did not reach a state; the message includes the end of its log."""


def redis_program() -> str:
    """The path of redis-server or valkey-server. Raises ConfigError if neither is installed."""
    for name in ("redis-server", "valkey-server"):
        if (path := shutil.which(name)) is not None:
            return path
    raise ConfigError(
        "a private Redis needs redis-server or valkey-server on the PATH, and neither is installed: "
        "apt-get install redis-server (brew install redis)"
    )


# The kernel kills a server when its parent ends, and its parent is the *thread* that started it. So one
# thread, which lives as long as this process, starts all servers.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="servers")

# A launcher program, because a preexec_fn may deadlock in a process with threads. It ignores SIGXFSZ: a
# server at its file size limit gets an error from write(), as on a full disk, and is not killed.
_LAUNCHER = """
import ctypes, os, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the process that started this server has ended")
os.execv(sys.argv[2], sys.argv[2:])
"""


def start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start this program; it is killed when the current process ends."""
    return _starter.submit(_start, command).result()


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 (a program of ours, in words of ours)
        [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C goes to this process alone, which stops its servers in order
    )


_handed_out: set[int] = set()


def free_port() -> int:
    """A free port whose cluster bus port (10 000 above) is also free.

    Both are below the range of outgoing connections, so a restarted server finds its port free.
    """
    while True:
        port = 10_100 + secrets.randbelow(12_000)
        if port not in _handed_out and _is_free(port) and _is_free(port + 10_000):
            _handed_out.add(port)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def until(true: Callable[[], bool], what: str, *, timeout: float = READY) -> None:
    """Poll until the condition is true. Raises ServerFailed after the timeout."""
    began = time.monotonic()
    while not true():
        waited = time.monotonic() - began
        if waited > timeout:
            raise ServerFailed(f"waited {timeout:g} s for {what}")
        time.sleep(min(0.05, 0.01 + waited / 20))  # a look may cost several connections


# ── a server ─────────────────────────────────────────────────────────────────────────────────────


#: When a write is on disk: before it is acknowledged; about a second later; when the system decides.
Fsync = Literal["always", "everysec", "no"]


class RedisNode:
    """One Redis process on a port of this host, which can be stopped and started again on its data."""

    def __init__(
        self, program: str, folder: Path, settings: Sequence[str], *, port: int, arguments: Sequence[str] = ()
    ) -> None:
        self.port = port
        self.announced_port = port  # the port that a cluster gives to clients: its own or its proxy's
        self.folder = folder
        self.log = folder / "log"
        config = folder / "redis.conf"  # a file, because the server writes a new role into it
        lines = [f"bind {HOST}", f'dir "{folder}"', f'logfile "{self.log}"', "daemonize no", *settings]
        config.write_text("\n".join(lines) + "\n")
        self._command = [program, str(config), *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    # facts

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
    def patient_client(self) -> Iterator[redis.Redis]:
        """A short-lived client that retries while the server loads data from disk or from its master."""
        patient = Retry(ConstantBackoff(0.05), round(20 * READY), (BusyLoadingError,))
        with contextlib.closing(self.client(retry=patient, retry_on_error=[BusyLoadingError])) as client:
            yield client

    def info(self, section: str = "default") -> dict[str, Any]:
        with self.patient_client() as client:
            found: Any = client.info(section)
            return dict(found)

    def flush_scripts(self) -> None:
        """Send SCRIPT FLUSH."""
        with self.patient_client() as client:
            client.script_flush()

    @property
    def append_only_file(self) -> Path:
        """The append-only file that the server currently writes."""
        parts = self.folder.glob("appendonlydir/*.incr.aof")
        return max(parts, key=_number, default=self.folder / "appendonly.aof")

    # start and stop

    def launch(self) -> None:
        """Start the process; `wait_ready` waits until it answers."""
        assert not self.running, f"the server on port {self.port} is running"
        self._process = start(self._command)

    def wait_ready(self) -> Self:
        self.until(self._answers, "an answer")
        return self

    def wait_synced(self) -> None:
        """Wait until this replica is in sync with its master."""

        def synced() -> bool:
            return self.info("replication").get("master_link_status") == "up"

        self.until(synced, "the replica to be in sync")

    def until(self, true: Callable[[], bool], what: str, *, timeout: float = READY) -> None:
        """Wait until the condition is true. Raises ServerFailed, with the end of the server's log."""

        def true_or_over() -> bool:
            return true() or not self.running

        try:
            until(true_or_over, what, timeout=timeout)
        except ServerFailed as error:
            raise ServerFailed(f"{error}; {self._log_tail()}") from None
        if not self.running:
            raise ServerFailed(f"waited for {what}, and it ended: {self._log_tail()}")

    def start_again(self) -> Self:
        """Start again after stop() or kill(), on the same port and folder."""
        self.launch()
        return self.wait_ready()

    def stop(self) -> None:
        """Stop the server in order, with time to save its data."""
        if self._process is None or not self.running:
            return
        self.resume()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill the server with SIGKILL: unwritten data is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Pause the process: connections stay open and nothing is answered, as on a stuck machine."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def allow_file_growth(self, may: bool) -> None:
        """Allow or forbid the server to write files; forbidden writes fail as on a full disk (with EFBIG)."""
        if sys.platform != "linux":
            raise ServerFailed("a full disk can only be simulated on Linux (prlimit)")
        _, hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (hard if may else 0, hard))

    def close(self) -> None:
        """Kill the server; it is not started again."""
        self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answers(self) -> bool:
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError), self.patient_client() as client:
            return bool(client.ping())
        return False

    def _log_tail(self) -> str:
        lines = self.log.read_text("utf-8", "replace").splitlines() if self.log.exists() else []
        return "\n".join([f"the log of the server on port {self.port} ends:", *lines[-15:]])


def _number(path: Path) -> int:
    found = re.search(r"\.(\d+)\.incr\.aof$", path.name)
    return int(found[1]) if found else 0


# ── acts on servers ──────────────────────────────────────────────────────────────────────────────


def data_node(folder: Path, port: int, fsync: Fsync, settings: Sequence[str] = ()) -> RedisNode:
    """A server with an append-only file, not yet launched. Raises ConfigError if no program is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    usual = [
        f"port {port}",
        'save ""',
        "appendonly yes",
        f"appendfsync {fsync}",
        # sync a replica at once, not after the default 5 s of waiting for other replicas
        "repl-diskless-sync yes",
        "repl-diskless-sync-delay 0",
        "repl-ping-replica-period 1",
        "repl-timeout 5",  # reconnect soon after a half-open fault
    ]
    return RedisNode(redis_program(), folder.resolve(), [*usual, *settings], port=port)


def start_all(nodes: Sequence[RedisNode]) -> None:
    """Start these servers together; if one fails, close all."""
    with contextlib.ExitStack() as started:
        for node in nodes:
            started.callback(node.close)
            node.launch()
        for node in nodes:
            node.wait_ready()
        started.pop_all()


def freeze(node: RedisNode, seconds: float) -> None:
    """Pause a server (SIGSTOP) for this many seconds."""
    node.pause()
    try:
        time.sleep(seconds)
    finally:
        node.resume()


def fill(node: RedisNode, seconds: float) -> str:
    """Forbid a server to write files for this many seconds. Returns what happened, in words.

    The server may have exited.
    """
    node.allow_file_growth(False)
    try:
        time.sleep(seconds)
        refused = node.running and not _writes(node)
    finally:
        with contextlib.suppress(ProcessLookupError):
            node.allow_file_growth(True)
    if not node.running:
        return "the server exited at its first write, as it does with appendfsync always"
    node.until(lambda: _writes(node), "its file to grow again")  # the server retries every second
    return "the server refused writes (MISCONF)" if refused else "nothing was written meanwhile"


def _writes(node: RedisNode) -> bool:
    return str(node.info("persistence")["aof_last_write_status"]) == "ok"
