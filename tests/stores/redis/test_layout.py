"""Versions of the layout: a namespace of an earlier version is refused, and not changed."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import redis as redis_py

from penstock.errors import StoreTooOld
from penstock.stores.redis.layout import LAYOUT
from penstock.stores.redis.store import RedisStore
from tests.servers import RedisServer
from tests.store.facts import new

#: What an earlier version left of one enqueued job in the namespace "old" (layout 1).
LAYOUT_1 = {
    b"penstock:{old/}:queues": {"SADD": [b"mail"]},
    b"penstock:{old/mail}:meta": {"HSET": [b"generation", b"889192448000001", b"enqueued", b"1"]},
    b"penstock:{old/mail}:jobs": {"HSET": [b"\0job", b"\x01\0\0\0\0\0\0\x01\x80\x93\x12\x8a\x01[]"]},
}
LAYOUT_2 = {key.replace(b"penstock:{", b"penstock:2:{"): value for key, value in LAYOUT_1.items()}
LAYOUT_3 = {key.replace(b"penstock:{", b"penstock:3:{"): value for key, value in LAYOUT_1.items()}
EARLIER = {1: LAYOUT_1, 2: LAYOUT_2, 3: LAYOUT_3}


@pytest.fixture(params=EARLIER)
def earlier(request: pytest.FixtureRequest) -> int:
    """An earlier layout's number."""
    return int(request.param)


@pytest.fixture
def client(redis: RedisServer, earlier: int) -> Iterator[redis_py.Redis]:
    """The server with a namespace of an earlier layout."""
    client = redis_py.Redis.from_url(redis.url)
    for key, words in EARLIER[earlier].items():
        for word, values in words.items():
            client.execute_command(word, key, *values)
    yield client
    client.delete(*EARLIER[earlier])
    client.close()


def test_an_old_layout_is_refused_with_one_line_and_a_way_out(
    redis: RedisServer, client: redis_py.Redis, earlier: int
) -> None:
    before = {key: client.dump(key) for key in EARLIER[earlier]}
    store = RedisStore(redis.url, namespace="old")
    with pytest.raises(StoreTooOld) as caught:
        store.sync.enqueue([new(queue="mail")])
    store.close()
    line = str(caught.value)
    assert "\n" not in line
    assert re.search(
        rf"the namespace 'old' .*key layout {earlier}.* {LAYOUT}\): finish its jobs .* another namespace",
        line,
    )
    assert {key: client.dump(key) for key in EARLIER[earlier]} == before
    assert not list(client.scan_iter(f"penstock:{LAYOUT}:{{old/*"))


async def test_it_is_refused_in_an_event_loop_too_and_at_each_call(
    redis: RedisServer, client: redis_py.Redis
) -> None:
    store = RedisStore(redis.url, namespace="old")
    for _ in range(2):
        with pytest.raises(StoreTooOld):
            await store.queues()
    store.close()


def test_once_its_queues_are_deleted_the_namespace_can_be_used(
    redis: RedisServer, client: redis_py.Redis, earlier: int
) -> None:
    store = RedisStore(redis.url, namespace="old")
    with pytest.raises(StoreTooOld):
        store.sync.enqueue([new(queue="mail")])
    client.delete(*EARLIER[earlier])
    assert store.sync.enqueue([new(queue="mail")])[0].id
    store.close()


def test_other_namespaces_of_the_server_are_used_as_ever(redis: RedisServer, client: redis_py.Redis) -> None:
    store = RedisStore(redis.url, namespace="other")
    assert store.sync.enqueue([new(queue="mail")])[0].id
    store.close()
