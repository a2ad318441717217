"""Redis that restarts under many clients, 10 000 connections, and clients that send slowly or without end."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.servers import redis_server
from tests.web.test_server_kills import started
from tests.web.wire import Client, request_bytes

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

CLIENTS = 64
CONNECTIONS = 10_000


@asynccontextmanager
async def serving(url: str, home: Path) -> AsyncIterator[tuple[int, int]]:
    """Run `penstock serve --lmstfy`; yields its port and its pid."""
    server, port = await started(url, home)
    try:
        yield port, server.pid
    finally:
        server.send_signal(signal.SIGTERM)
        assert await server.wait() == 0


# --- Redis restarts -----------------------------------------------------------------------------


@dataclass
class Told:
    """What the clients were told: ids of 201, and the statuses of each phase."""

    published: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    statuses: dict[int, int] = field(default_factory=dict)
    stop: bool = False

    def note(self, status: int, body: bytes) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1
        assert status < 500 or body, "an error has a body"


async def publish(port: int, told: Told) -> None:
    async with Client(port) as client:
        while not told.stop:
            answer = await client.put("/api/ns/q?tries=1000&ttl=0", b"x")
            told.note(answer.status, answer.body)
            if answer.status == 201:
                told.published.add(answer.json["job_id"])


async def consume(port: int, told: Told) -> None:
    async with Client(port) as client:
        while not told.stop:
            found = await client.get("/api/ns/q?count=5&ttr=2&timeout=1")
            told.note(found.status, found.body)
            for job in found.json if found.status == 200 else []:
                answer = await client.delete(f"/api/ns/q/job/{job['job_id']}")
                told.note(answer.status, answer.body)
                if answer.status == 204:
                    told.removed.add(job["job_id"])


async def more(told: Told, status: int, number: int) -> None:
    """Wait until this status was answered so many times more."""
    wanted = told.statuses.get(status, 0) + number
    async with asyncio.timeout(60):
        while told.statuses.get(status, 0) < wanted:
            await asyncio.sleep(0.01)


@pytest.mark.server
async def test_redis_restarts_under_64_connections(home: Path) -> None:
    told = Told()
    with redis_server(appendonly=True) as redis:
        async with serving(redis.url, home) as (port, _), asyncio.TaskGroup() as group:
            for n in range(CLIENTS):
                group.create_task((publish if n % 2 else consume)(port, told))
            for _ in range(2):
                await more(told, 201, 200)
                redis.kill()
                await more(told, 500, 20)
                await asyncio.to_thread(redis.start_again)
                await more(told, 201, 200)
                await more(told, 204, 200)
            told.stop = True
        async with serving(redis.url, home) as (port, _), Client(port) as client:
            while (found := await client.get("/api/ns/q?count=100&ttr=60&timeout=3")).status == 200:
                for job in found.json:
                    assert (await client.delete(f"/api/ns/q/job/{job['job_id']}")).status == 204
                    told.removed.add(job["job_id"])
            assert (await client.get("/api/ns/q/deadletter/size")).json["size"] == 0
    assert set(told.statuses) <= {200, 201, 204, 404, 500, 503}
    assert told.published <= told.removed, "a job is lost after its 201"


# --- connections --------------------------------------------------------------------------------


def memory_of(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize()


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
async def test_ten_thousand_connections_take_little_memory(home: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < CONNECTIONS + 500:
        pytest.skip(f"needs {CONNECTIONS + 500} open files, and the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    loop = asyncio.get_running_loop()
    sockets: list[socket.socket] = []
    try:
        async with serving(f"sqlite:///{home}/jobs.db", home) as (port, pid):
            async with Client(port) as client:
                assert (await client.put("/api/ns/q", b"x")).status == 201
            before = memory_of(pid)
            for n in range(CONNECTIONS + 100):
                one = socket.socket()
                one.setblocking(False)
                sockets.append(one)
                await loop.sock_connect(one, ("127.0.0.1", port))
                if n % 10 == 0:  # a tenth waits for a job
                    await loop.sock_sendall(one, request_bytes("GET", "/api/ns/empty?timeout=600"))
            async with Client(port) as client:
                assert (await client.get("/api/ns/q?ttr=60")).status == 200
            assert (memory_of(pid) - before) / CONNECTIONS < 12_000
            closed = 0
            for n, one in enumerate(sockets[:1_000]):  # the longest idle ones were closed
                try:
                    closed += n % 10 != 0 and one.recv(1) == b""
                except BlockingIOError:
                    pass
            assert 100 <= closed <= 103
            for one in sockets:
                one.close()
    finally:
        for one in sockets:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_endless_heads_are_cut_off_and_others_are_served(home: Path) -> None:
    async with serving(f"sqlite:///{home}/jobs.db", home) as (port, pid), Client(port) as client:
        assert (await client.put("/api/ns/q", b"x")).status == 201
        before = memory_of(pid)

        async def flood(line: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /api/ns/q HTTP/1.1\r\nHost: localhost\r\n")
            try:
                while not reader.at_eof() and not writer.is_closing():
                    writer.write(line)
                    await writer.drain()
                    await asyncio.sleep(0)
                    if (head := reader._buffer[:12]) and len(head) == 12:  # type: ignore[attr-defined]
                        return bytes(head[9:12])
            except ConnectionError:
                pass
            finally:
                writer.close()
            return b""

        lines = [b"A: b\r\n" * 20, b"X" * 4_096, b"A: " + b"x" * 30_000 + b"\r\n"]
        found = await asyncio.gather(*(flood(lines[n % 3]) for n in range(150)))
        assert set(found) <= {b"431", b"400", b""}
        assert (await client.get("/api/ns/q?ttr=60")).status == 200
        assert memory_of(pid) - before < 64 * 1024 * 1024
