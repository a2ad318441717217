"""Fixtures of the tests of the Redis store."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from penstock.core.clock import ManualClock
from penstock.stores.redis.store import RedisStore
from tests.servers import RedisServer
from tests.store.redis_corruptor import RedisCorruptor
from tests.stores.redis.both_runners import Asker


@pytest.fixture(params=["async", "sync"])
def ask(request: pytest.FixtureRequest) -> Iterator[Asker]:
    """One of the runners; `ask.to(url)` first."""
    asker = Asker(request.param)
    yield asker
    asker.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def prefix() -> str:
    """Of the keys of this test alone."""
    return f"penstock-test-{uuid.uuid4().hex}"


@pytest.fixture
def store(redis: RedisServer, clock: ManualClock, prefix: str) -> Iterator[RedisStore]:
    """A store over these keys, by the test's clock."""
    made = RedisStore(f"{redis.url}?prefix={prefix}", clock=clock)
    yield made
    made.close()


@pytest.fixture
def corruptor(redis: RedisServer, prefix: str) -> RedisCorruptor:
    """Writes over the keys of that store."""
    return RedisCorruptor(redis.client, prefix)
