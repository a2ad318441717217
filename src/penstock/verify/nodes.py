"""One Redis server of our own, which may be killed, stopped, paused, run out of disk and started again."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import ConstantBackoff, NoBackoff
from redis.exceptions import BusyLoadingError
from redis.retry import Retry

from penstock.verify.programs import HOST, READY, ServerFailed, start, until

__all__ = ["RedisNode"]


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
        with contextlib.closing(self.client(retry=patient)) as client:
            yield client

    def info(self, section: str = "default") -> dict[str, Any]:
        with self.asked() as client:
            found: Any = client.info(section)
            return dict(found)

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
