"""lmstfy itself and `penstock serve --lmstfy` answer the same requests alike: status, headers and body.

lmstfy comes from the Go module proxy and runs on a real Redis. What differs on purpose is in docs/lmstfy.md;
the cases here have none of it.
"""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from benchmarks.http import LMSTFY_CONFIG
from tests.fuzz import FACTOR
from tests.interop.lmstfy_cases import (
    TOKEN,
    Case,
    admin_cases,
    fixed_cases,
    limited_cases,
    random_cases,
)
from tests.interop.test_lmstfy_clients import lmstfy, pytestmark, serving, url  # noqa: F401  (fixtures)
from tests.servers import redis_server, until
from tests.web.wire import Client, Reply

#: Headers that are different in each answer.
VARIABLE = {"Date", "X-Request-Id", "Content-Length"}
SEEDS = 8
#: Of each seed, on each store; `FUZZ=5` multiplies them.
REQUESTS = 500 * max(1, FACTOR)


@pytest.fixture
def original(
    lmstfy: Path,  # noqa: F811  (a fixture)
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[int, int]]:
    """The two ports of a running lmstfy."""
    home = tmp_path_factory.mktemp("original")
    ports = free_ports()
    with redis_server(appendonly=True) as redis:
        address = f"127.0.0.1:{redis.port}"
        config = home / "config.toml"
        config.write_text(LMSTFY_CONFIG.format(port=ports[0], admin_port=ports[1], redis=address))
        with subprocess.Popen([lmstfy / "lmstfy", "-c", config, "-p", home / "pid"], cwd=home) as server:
            try:
                until(lambda: answers(ports[0]) and answers(ports[1]), "lmstfy listens")
                yield ports
            finally:
                server.terminate()


def free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


class Side:
    """One of the two servers, with the ids that it has given."""

    def __init__(self, ports: tuple[int, int]) -> None:
        self.data, self.admin = Client(ports[0]), Client(ports[1])
        self.ids: dict[str, str] = {"none": "none"}

    async def ask(self, case: Case, *, admin: bool = False) -> tuple[object, ...]:
        """The answer without what is different by nature."""
        path = re.sub(r"{([\w-]+)}", lambda found: self.ids.get(found[1], "none"), case.path)
        client = self.admin if admin else self.data
        reply = await client.request(case.method, path, case.body, case.headers)
        if reply.headers.get("Connection") == "close":
            await client.close()
        if case.save and reply.status == 201:
            self.ids[case.save] = reply.json["job_id"]
        return self._comparable(reply)

    def _comparable(self, reply: Reply) -> tuple[object, ...]:
        names = {id: name for name, id in self.ids.items()}
        body = re.sub(
            rb'"(1?[0-9A-HJKMNP-TV-Z]{26})"',
            lambda found: b'"{%b}"' % names.get(found[1].decode(), "an id").encode(),
            reply.body,
        )
        body = re.sub(rb'"elapsed_ms":\d+', b'"elapsed_ms":0', body)
        body = re.sub(rb'"ttl":(\d+)', lambda found: b'"ttl":%d' % (-(-int(found[1]) // 300)), body)
        headers = sorted((name, value) for name, value in reply.headers.items() if name not in VARIABLE)
        return reply.status, headers, len(reply.headers.get("X-Request-Id", "")), body

    async def close(self) -> None:
        await self.data.close()
        await self.admin.close()


@asynccontextmanager
async def both(original: tuple[int, int], ours: tuple[int, int]) -> AsyncIterator[tuple[Side, Side]]:
    sides = Side(original), Side(ours)
    made = Case("POST", f"/token/ns?description=d&token={TOKEN}", b"", [])
    for side in sides:
        assert (await side.ask(made, admin=True))[0] in (201, 400)
    yield sides
    for side in sides:
        await side.close()


async def differences(sides: tuple[Side, Side], cases: Iterable[Case], *, admin: bool = False) -> list[str]:
    found = []
    for case in cases:
        one, other = await asyncio.gather(*(side.ask(case, admin=admin) for side in sides))
        if one != other:
            found.append(f"{case.method} {case.path[:100]} {case.body[:40]!r}:\n    {one}\n    {other}")
    return found


async def test_both_answer_alike(original: tuple[int, int], url: str, tmp_path: Path) -> None:  # noqa: F811
    """One after the other, then random work of several clients at the same time."""
    with serving(url, tmp_path) as ours:
        async with both(original, ours) as sides:
            assert await differences(sides, fixed_cases()) == []
            assert await differences(sides, admin_cases(), admin=True) == []
            for case, admin in limited_cases():
                assert await differences(sides, [case], admin=admin) == []

        async def compare(seed: int) -> list[str]:
            async with both(original, ours) as sides:
                return await differences(sides, random_cases(seed, REQUESTS))

        found = await asyncio.gather(*map(compare, range(SEEDS)))
        assert [one for some in found for one in some] == []


#: What lmstfy reports of its Redis and of its own loop, and one that it never counts.
NOT_SERVED = {
    *("max_mem_bytes", "used_mem_bytes", "connections", "blocking_connections", "total_keys"),
    *("total_ttl_keys", "latency", "qps", "timer_full_batches", "consume_jobs"),
}


def series(text: str) -> dict[str, set[str]]:
    """lmstfy's metrics, with the names of their labels, and with the bounds of histograms."""
    found: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^infra_(lmstfy_[a-z_]+)\{(.*)\} ", text, re.M):
        if re.sub(r"^lmstfy_redis_|_(bucket|sum|count)$", "", name) not in NOT_SERVED:
            names = found.setdefault(name, set())
            names.update(re.findall(r'(\w+)="', labels))
            names.update(f"le={float(bound):g}" for bound in re.findall(r'le="([^"]*)"', labels))
    return found


def read_series(port: int) -> dict[str, set[str]]:
    """The metrics of a server, when it has looked at the sizes of its queues: lmstfy does so by time."""
    found: dict[str, set[str]] = {}

    def has_sizes() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            found.update(series(answer.read().decode()))
        return "lmstfy_redis_queue_sizes" in found

    until(has_sizes, "the sizes of its queues are shown")
    return found


async def test_both_serve_the_same_metrics(original: tuple[int, int], url: str, tmp_path: Path) -> None:  # noqa: F811
    with serving(url, tmp_path) as ours:
        async with both(original, ours) as sides:
            for case in [
                Case("PUT", "/api/ns/m?delay=1&ttl=60", b"x"),
                Case("PUT", "/api/ns/m?ttl=60", b"x", save="m"),
                Case("GET", "/api/ns/m?ttr=60"),
                Case("DELETE", "/api/ns/m/job/{m}"),
                Case("GET", "/api/ns/m?ttr=60&timeout=10"),
            ]:
                assert await differences(sides, [case]) == []
            for case, admin in limited_cases():
                await differences(sides, [case], admin=admin)
        shown = [await asyncio.to_thread(read_series, port) for _, port in (original, ours)]
    theirs, here = shown
    here.pop("lmstfy_redis_deadletter_respawn_jobs")  # which counts nothing there
    assert here == theirs
