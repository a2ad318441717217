"""A Redis server for one measurement: started for it, queried for statistics, and removed afterwards."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import redis

__all__ = ["Left", "Server", "describe_redis", "redis_program"]

_HERE = Path(__file__).resolve().parent
_HOST = "127.0.0.1"
_READY = 10.0


def redis_program() -> str | None:
    """The path of the server's program; None if it is not installed."""
    return shutil.which("redis-server") or shutil.which("valkey-server")


def describe_redis() -> str:
    """The versions that the figures depend on."""
    program = redis_program()
    assert program is not None
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    server = next((word[2:] for word in said.split() if word.startswith("v=")), "?")
    name = "Valkey" if "valkey" in said.lower() else "Redis"
    return f"{name} {server}, redis-py {version('redis')}, hiredis {version('hiredis')}"


class Left(msgspec.Struct, frozen=True):
    """A key, its memory, and its remaining time to live (ms; negative: unlimited)."""

    name: str
    kind: str
    bytes: int
    expires: int

    def __str__(self) -> str:
        over = f", gone in {self.expires / 1000:.0f} s" if self.expires >= 0 else ""
        return f"{self.name} ({self.kind}, {self.bytes} B{over})"


class Server:
    """One server on a free port: without persistence, or with an append-only file synced every second.

    `delay_ms`: extra time of each round trip through a proxy (0: the proxy alone). `port` is then the proxy's
    port; statistics are still read from the server directly.
    """

    def __init__(self, folder: Path, *, appendonly: bool = False, delay_ms: float | None = None) -> None:
        # the servers of the tests end with this process in any case
        from tests.servers.programs import free_port
        from tests.servers.programs import start as start_process
        from tests.servers.single import redis_server

        self._start, self._free_port = start_process, free_port
        self._server = redis_server(folder=folder, appendonly=appendonly)
        self.port = self._server.port
        self._proxy: subprocess.Popen[bytes] | None = None
        if delay_ms is not None:
            self._proxy, self.port = self._proxied(delay_ms)

    def _proxied(self, delay_ms: float) -> tuple[subprocess.Popen[bytes], int]:
        port = self._free_port()
        program = [sys.executable, str(_HERE / "delay_proxy.py")]
        proxy = self._start([*program, str(port), str(self._server.port), str(delay_ms)])
        _until_open(port)
        return proxy, port

    @property
    def url(self) -> str:
        return f"redis://{_HOST}:{self.port}/0"

    def client(self) -> redis.Redis:
        """A plain client on the same connection as the workers (through the proxy, if there is one)."""
        import redis

        return redis.Redis(_HOST, self.port)

    @contextlib.contextmanager
    def bare_consumer(self) -> Iterator[None]:
        """Run `bare.py` on the same connection during the block."""
        process = self._start([sys.executable, str(_HERE / "bare.py"), str(self.port)])
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def cpu(self) -> float:
        """CPU seconds used by the server."""
        said = self._info("cpu")
        return float(said["used_cpu_user"]) + float(said["used_cpu_sys"])

    def memory(self) -> int:
        """Bytes in use when no other client is connected, because connections have buffers."""
        deadline = time.monotonic() + _READY
        while self._info("clients")["connected_clients"] > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.used()

    def used(self) -> int:
        """Bytes in use, including the buffers of connections."""
        return int(self._info("memory")["used_memory"])

    def keys(self) -> list[Left]:
        """All keys, by name."""
        with self._server.patient_client() as client:
            return [
                Left(
                    key.decode("utf-8", "replace"),
                    bytes(client.execute_command("TYPE", key)).decode(),
                    client.memory_usage(key, samples=0) or 0,
                    client.pttl(key),
                )
                for key in sorted(client.scan_iter(count=1000))
            ]

    def commands(self, seconds: float) -> int:
        """Number of client commands within this time, without the commands that scripts call."""
        with socket.create_connection((_HOST, self._server.port)) as connection:
            connection.sendall(b"MONITOR\r\n")
            ends, received = time.monotonic() + seconds, b""
            while (left := ends - time.monotonic()) > 0:
                connection.settimeout(left)
                with contextlib.suppress(TimeoutError):
                    received += connection.recv(1 << 16)
        lines = received.splitlines()[1:]  # the first line is OK
        return sum(b" lua] " not in line for line in lines)

    def close(self) -> None:
        if self._proxy is not None:
            self._proxy.kill()
            self._proxy.wait()
        self._server.close()

    def _info(self, section: str) -> dict[str, Any]:
        return self._server.info(section)


def _until_open(port: int) -> None:
    deadline = time.monotonic() + _READY
    while True:
        try:
            socket.create_connection((_HOST, port), 1).close()
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return
