"""Removes one run's namespace from Redis, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from penstock.stores.redis.keys import LAYOUT
from penstock.stores.redis.wire.address import Address, Node
from penstock.stores.redis.wire.async_runner import AsyncRunner
from penstock.stores.redis.wire.calls import Call
from penstock.verify.wiping import refuse_others

__all__ = ["left_on_redis", "wipe_redis"]

_PAGE = 1_000


def wipe_redis(url: str, namespace: str) -> int:
    """Remove all keys of this namespace on each master. Returns their number."""
    refuse_others(namespace)
    return asyncio.run(_walk(url, namespace, _unlink))


def left_on_redis(url: str, namespace: str) -> int:
    """The number of keys of this namespace."""
    return asyncio.run(_walk(url, namespace, _number))


#: Acts on some keys of a master. Returns how many of them count.
_Act = Callable[[AsyncRunner, Node, Sequence[bytes]], Awaitable[int]]


async def _walk(url: str, namespace: str, act: _Act) -> int:
    """Apply `act` to the namespace's keys in pages, master by master, and return the sum."""
    address = Address.from_url(url)
    runner = AsyncRunner(address)
    pattern = f"{address.prefix}:{LAYOUT}:{{{namespace}/*"
    done = 0
    try:
        for node in await runner.everywhere([Call(None, ask=("PING",))]):
            cursor: Any = "0"
            while True:
                scan = Call(None, ask=("SCAN", cursor, "MATCH", pattern, "COUNT", _PAGE))
                ((cursor, keys),) = _raise_errors(await runner.at(node, [scan]))
                if keys:
                    done += await act(runner, node, keys)
                if int(cursor) == 0:
                    break
    finally:
        runner.close()
    return done


async def _unlink(runner: AsyncRunner, node: Node, redis_keys: Sequence[bytes]) -> int:
    # one command per key: in a cluster the keys of one command must be in the same slot
    return sum(_raise_errors(await runner.at(node, [Call(None, ask=("UNLINK", key)) for key in redis_keys])))


async def _number(runner: AsyncRunner, node: Node, redis_keys: Sequence[bytes]) -> int:
    return len(redis_keys)


def _raise_errors(answers: Sequence[Any]) -> Sequence[Any]:
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers
