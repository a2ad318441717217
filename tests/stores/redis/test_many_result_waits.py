"""Many waits for results cost the server almost nothing."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from penstock import App, Handle
from penstock.core.job import Ref
from tests.servers import Cluster, RedisServer

#: Longer than the time after which whoever waits looks for himself (s).
IDLE = 11.0


def answer(n: int) -> int:
    return n


def commands(clients: list[Any]) -> Counter[str]:
    """All commands that the servers have done so far, those inside of scripts too."""
    done: Counter[str] = Counter()
    for client in clients:
        done.update({name: stat["calls"] for name, stat in client.info("commandstats").items()})
    return done


async def until_quiet(clients: list[Any]) -> None:
    """Wait until the servers have done next to nothing for a second and a half: all waits have begun."""
    quiet = 0
    before = commands(clients)
    async with asyncio.timeout(60):
        while quiet < 3:
            await asyncio.sleep(0.5)
            now = commands(clients)
            quiet = quiet + 1 if (now - before).total() < 100 else 0
            before = now


async def while_idle(
    app: App, servers: list[RedisServer], waits: Callable[[App, list[Handle[int]]], Any]
) -> Counter[str]:
    """How many commands of each kind there are while 1 000 handles of 10 queues are awaited; then all end."""
    task = app.task(name="answer")(answer)
    handles = await app.aenqueue_many([task.using(queue=f"q{n % 10}").job(n) for n in range(1_000)])
    clients = [server.client() for server in servers]
    waiting = asyncio.ensure_future(waits(app, handles))
    try:
        await until_quiet(clients)
        before = commands(clients)
        await asyncio.sleep(IDLE)
        done = commands(clients) - before
        assert not waiting.done()
        refs = [Ref(handle.queue, handle.id) for handle in handles]
        await app.store.cancel(refs)
        async with asyncio.timeout(60):
            await waiting
    finally:
        waiting.cancel()
        for client in clients:
            client.close()
    return done


async def _each_alone(app: App, handles: list[Handle[int]]) -> None:
    await asyncio.gather(*(handle.aresult() for handle in handles), return_exceptions=True)


async def _at_once(app: App, handles: list[Handle[int]]) -> None:
    await app.aresults(handles, return_errors=True)


async def _at_once_in_a_thread(app: App, handles: list[Handle[int]]) -> None:
    await asyncio.to_thread(app.results, handles, return_errors=True)


@pytest.mark.slow
async def test_a_thousand_awaited_handles_cost_no_ten_commands_a_second(
    new_redis: Callable[..., RedisServer], new_cluster: Callable[..., Cluster]
) -> None:
    """Each kind of wait on a server of its own, all of them in the same seconds."""
    cluster = new_cluster()
    ways = [
        ("one by one", _each_alone, [new_redis()]),
        ("at once", _at_once, [new_redis()]),
        ("at once, in a thread", _at_once_in_a_thread, [new_redis()]),
        ("one by one, on a cluster", _each_alone, list(cluster.servers)),
    ]
    apps = [App(cluster.url if len(servers) > 1 else servers[0].url) for _, _, servers in ways]
    idle = [while_idle(app, servers, wait) for app, (_, wait, servers) in zip(apps, ways, strict=True)]
    for (name, _, servers), done in zip(ways, await asyncio.gather(*idle), strict=True):
        if len(servers) > 1:  # the nodes' among each other, and ours
            for own in ("cmdstat_ping", "cmdstat_replconf", "cmdstat_info"):
                del done[own]
        assert done.total() <= 10 * IDLE, (name, done)
    for app in apps:
        app.close()


async def test_a_thousand_waits_begin_with_a_few_questions(new_redis: Callable[..., RedisServer]) -> None:
    server = new_redis()
    app = App(server.url)
    task = app.task(name="answer")(answer)
    handles = await app.aenqueue_many([task.job(n) for n in range(1_000)])
    waiting = [asyncio.create_task(handle.aresult()) for handle in handles]
    with server.patient_client() as client:
        deadline = time.monotonic() + 60
        while (
            time.monotonic() < deadline
            and client.hlen(app.store._context.redis_keys.queue("default") + b":watchers") < 1_000
        ):
            await asyncio.sleep(0.01)
        scripts = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    await app.store.cancel([handle.ref for handle in handles])
    await asyncio.wait(waiting)
    assert scripts <= 10, "one for all who came together, not one for each"
    app.close()
