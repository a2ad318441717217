"""A master that sentinels choose: found, lost, and found again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest
import redis.asyncio.sentinel
import redis.sentinel

from penstock.errors import StoreError, StoreUnavailable
from penstock.stores.redis.wire.address import Address, Node
from penstock.stores.redis.wire.async_runner import AsyncRunner
from penstock.stores.redis.wire.faults import ReplyLost
from tests.servers import RedisServer, Sentinels
from tests.stores.redis.both_runners import Asker, plain, push

NewSentinels = Callable[..., Sentinels]


async def test_the_master_is_found(ask: Asker, new_sentinels: NewSentinels) -> None:
    fleet = new_sentinels(password="s3cret")
    fleet.sentinels[0].stop()  # the first that is asked
    ask.to(fleet.url)
    assert await ask([push("list", 1)]) == [1]
    with fleet.master().patient_client() as client:
        assert client.llen("list") == 1


@pytest.mark.slow
async def test_a_killed_master_is_followed_by_the_next_within_the_deadline(
    ask: Asker, new_sentinels: NewSentinels
) -> None:
    fleet = new_sentinels()
    ask.to(fleet.url + "?timeout=30s")
    assert await ask([push("list", 0, replicas=1)])
    fleet.master().kill()
    answers = await asyncio.gather(*(ask([push("list", n)]) for n in range(1, 20)))
    assert all(isinstance(answer, int) for (answer,) in answers)
    with fleet.master().patient_client() as client:
        assert {int(n) for n in client.lrange("list", 0, -1)} == set(range(20))


@pytest.mark.slow
async def test_a_master_that_hangs_is_followed_by_the_next(ask: Asker, new_sentinels: NewSentinels) -> None:
    fleet = new_sentinels()
    ask.to(fleet.url + "?timeout=8s")
    assert await ask([push("list", 0)]) == [1]
    old = fleet.master()
    old.pause()
    try:
        (answer,) = await ask([push("list", 1)], within=30_000)
        assert isinstance(answer, int)
    finally:
        old.resume()


@pytest.mark.slow
async def test_a_failover_by_hand_is_hardly_noticed(ask: Asker, new_sentinels: NewSentinels) -> None:
    fleet = new_sentinels()
    ask.to(fleet.url + "?timeout=30s")
    old = fleet.master()
    assert await ask([push("list", 0)]) == [1]
    with fleet.sentinels[0].patient_client() as client:
        client.execute_command("SENTINEL", "FAILOVER", "mymaster")
    lost = 0
    for n in range(100):
        (answer,) = await ask([push("list", n, repeatable=False)])
        lost += isinstance(answer, ReplyLost)
        assert isinstance(answer, int | ReplyLost)
        await asyncio.sleep(0.05)
    assert lost <= 3
    assert fleet.wait_failover(old) is not old


async def test_an_unknown_name_is_said_at_once(ask: Asker, new_sentinels: NewSentinels) -> None:
    url = new_sentinels().url.replace("mymaster", "other")
    (answer,) = await ask.to(url)([plain("PING")])
    assert isinstance(answer, StoreError)
    assert not isinstance(answer, StoreUnavailable)
    assert "know no master called 'other'" in str(answer)


async def test_sentinels_that_are_away_are_said(ask: Asker) -> None:
    (answer,) = await ask.to("redis+sentinel://127.0.0.1:1/main?timeout=300ms")([plain("PING")])
    assert isinstance(answer, StoreUnavailable)
    assert "the sentinel 127.0.0.1:1 does not answer (connection refused)" in str(answer)


async def test_a_server_that_is_no_sentinel_is_said(ask: Asker, redis: RedisServer) -> None:
    (answer,) = await ask.to(f"redis+sentinel://127.0.0.1:{redis.port}/main")([plain("PING")])
    assert isinstance(answer, StoreError)
    assert f"is not a sentinel but a Redis server: use redis://127.0.0.1:{redis.port}" in str(answer)


async def test_a_sentinel_behind_redis_gets_the_right_url(ask: Asker, new_sentinels: NewSentinels) -> None:
    port = new_sentinels().sentinels[0].port
    (answer,) = await ask.to(f"redis://127.0.0.1:{port}")([plain("PING")])
    assert isinstance(answer, StoreError)
    assert f"use redis+sentinel://127.0.0.1:{port}/MASTER_NAME" in str(answer)


async def test_a_sentinel_client_is_taken_for_what_it_is(ask: Asker, new_sentinels: NewSentinels) -> None:
    fleet = new_sentinels(password="s3cret")
    nodes = [("127.0.0.1", sentinel.port) for sentinel in fleet.sentinels]
    sentinels = redis.sentinel.Sentinel(nodes)
    with contextlib.ExitStack() as opened:
        for one in sentinels.sentinels:  # nobody else closes these
            opened.enter_context(contextlib.closing(one))
        client = opened.enter_context(contextlib.closing(sentinels.master_for("mymaster", password="s3cret")))
        address = Address.of(client)
        assert (address.mode, address.master) == ("sentinel", "mymaster")
        assert address.nodes == tuple(Node(*node) for node in nodes)
        assert await ask.to(address)([push("list", 1)]) == [1]
        assert client.llen("list") == 1


@pytest.mark.slow
async def test_a_listener_follows_the_master(new_sentinels: NewSentinels) -> None:
    fleet = new_sentinels()
    runner = AsyncRunner(Address.from_url(fleet.url + "?timeout=30s"))
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    await runner.listen(b"news", heard.put_nowait, lambda: heard.put_nowait(b"LOST"))
    fleet.master().kill()
    async with asyncio.timeout(60):
        assert await heard.get() == b"LOST"
        await runner.run([plain("PUBLISH", "news", "1")])
        assert await heard.get() == b"1"
    runner.close()
