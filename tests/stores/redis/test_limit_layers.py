"""Limits that were stored before it was known who set them count as an operator's."""

from __future__ import annotations

import pytest
from redis import Redis

from penstock.core.limits import LimitChange, QueueLimits, Rate, limits_by_code
from penstock.stores.redis.store import RedisStore
from tests.servers import RedisServer


@pytest.mark.parametrize("stored", [None, b"too short"])
async def test_limits_without_layers_are_an_operators(
    store: RedisStore, redis: RedisServer, prefix: str, stored: bytes | None
) -> None:
    await store.settings("q", limits=LimitChange.of(max_running=7))
    with Redis.from_url(redis.url) as server:
        (key,) = [key for key in server.scan_iter(f"*{prefix}*") if key.endswith(b":meta")]
        assert server.hdel(key, "limits_by_operator") == 1
        if stored is not None:
            server.hset(key, "limits_by_operator", stored)
    (info,) = await store.queues()
    assert (info.limits, info.layers.source("max_running")) == (QueueLimits(max_running=7), "operator")
    info = await store.settings("q", limits=limits_by_code(max_running=3, rate="5/s"))
    assert info.limits == QueueLimits(max_running=7, rate=Rate.of("5/s"))
    assert [info.layers.source(name) for name in ("max_running", "rate")] == ["operator", "code"]
