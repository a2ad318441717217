"""kill -9 of `penstock serve --lmstfy` between publish and consume: what was acknowledged holds."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests import servers
from tests.store.facts import TEST_FOLDER, key_prefix
from tests.web.wire import Client

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

SRC = Path(__file__).parents[2] / "src"
ROUNDS, PUBLISHERS, CONSUMERS = 5, 6, 4


@dataclass
class Ledger:
    """What clients know: the ids of jobs by the answers that they got."""

    published: set[str] = field(default_factory=set)  # 201
    delivered: set[str] = field(default_factory=set)  # 200
    removed: set[str] = field(default_factory=set)  # 204
    changed: asyncio.Event = field(default_factory=asyncio.Event)


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, home: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{home}/jobs.db"
        return
    yield f"{servers.SHARED_REDIS.get().url}?prefix={key_prefix(home)}"
    servers.remove_keys([servers.SHARED_REDIS.started], having=TEST_FOLDER)


async def started(url: str, home: Path) -> tuple[Process, int]:
    """A server and the port of its data listener."""
    command = ["-m", "penstock", "serve", "--lmstfy", "--no-tokens", "--url", url, "--json"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        *(*command, "--port", "0", "--admin-port", "0"),
        cwd=home,
        env={**env, "PYTHONPATH": str(SRC)},
        stdout=PIPE,
    )
    assert server.stdout is not None
    return server, json.loads(await server.stdout.readline())["port"]


async def publish(port: int, ledger: Ledger, drawn: random.Random) -> None:
    """Publish until the server is gone."""
    async with Client(port) as client:
        while True:
            path, body = drawn.choice([("q", b"x"), ("q/bulk", b"[1,2,3]"), ("other?delay=1", b"y")])
            made = await client.put(f"/api/ns/{path}{'&' if '?' in path else '?'}tries=1000", body)
            assert made.status == 201
            ledger.published.update(made.json.get("job_ids") or [made.json["job_id"]])
            ledger.changed.set()


async def consume(port: int, ledger: Ledger, *, until_empty: int = 0) -> None:
    """Consume and acknowledge until the server is gone, or until no job comes in so many seconds."""
    async with Client(port) as client:
        while True:
            before = set(ledger.removed)
            found = await client.get(f"/api/ns/q,other?count=20&ttr=2&timeout={until_empty or 1}")
            if found.status == 404:
                if until_empty:
                    return
                continue
            ids = {job["job_id"]: job["queue"] for job in found.json}
            assert not before.intersection(ids), "an acknowledged job came again"
            ledger.delivered.update(ids)
            for id, queue in ids.items():
                assert (await client.delete(f"/api/ns/{queue}/job/{id}")).status == 204
                ledger.removed.add(id)
                ledger.changed.set()


async def killed_once(url: str, home: Path, ledger: Ledger, drawn: random.Random) -> None:
    """Work with a server, and kill it after some answers."""
    server, port = await started(url, home)
    published = len(ledger.published) + drawn.randint(20, 300)
    removed = len(ledger.removed) + drawn.randint(5, 50)
    work = [publish(port, ledger, random.Random(drawn.random())) for _ in range(PUBLISHERS)]
    work += [consume(port, ledger) for _ in range(CONSUMERS)]
    tasks = [asyncio.ensure_future(one) for one in work]
    for task in tasks:
        task.add_done_callback(lambda _: ledger.changed.set())
    while len(ledger.published) < published or len(ledger.removed) < removed:
        ledger.changed.clear()
        await ledger.changed.wait()
        if any(task.done() for task in tasks):  # with an error, which is raised below
            break
    server.send_signal(signal.SIGKILL)
    await server.wait()
    for task in tasks:
        with suppress(OSError, EOFError):  # the connection ended
            await task


async def test_no_acknowledged_publish_is_lost(url: str, home: Path) -> None:
    ledger, drawn = Ledger(), random.Random(19)
    for _ in range(ROUNDS):
        await killed_once(url, home, ledger, drawn)
    server, port = await started(url, home)
    try:
        await consume(port, ledger, until_empty=5)  # more than the longest TTR and delay
        assert ledger.published - ledger.delivered == set()
        async with Client(port) as client:
            for queue in ("q", "other"):
                for path in ("size", "deadletter/size"):
                    assert (await client.get(f"/api/ns/{queue}/{path}")).json["size"] == 0
    finally:
        server.terminate()
        assert await server.wait() == 0
    assert len(ledger.published) > 100
