"""The async and the sync runner behind one interface, so that a test covers both."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from penstock.stores.redis.wire.address import Address
from penstock.stores.redis.wire.async_runner import AsyncRunner
from penstock.stores.redis.wire.calls import Call, Script
from penstock.stores.redis.wire.sync_runner import SyncRunner

PUSH = Script("push", "return redis.call('RPUSH', KEYS[1], ARGV[1])")
ECHO = Script("echo", "return {KEYS[1], ARGV[1]}")


class Asker:
    """`await ask(calls)`, whichever runner it is."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.runner: AsyncRunner | SyncRunner | None = None

    def to(self, address: Address | str, **options: Any) -> Asker:
        where = Address.from_url(address) if isinstance(address, str) else address
        self.runner = (AsyncRunner if self.kind == "async" else SyncRunner)(where, **options)
        return self

    async def __call__(self, calls: Sequence[Call], **options: Any) -> list[Any]:
        if isinstance(self.runner, AsyncRunner):
            return await self.runner.run(calls, **options)
        assert self.runner is not None
        return await asyncio.to_thread(self.runner.run, calls, **options)

    def close(self) -> None:
        if self.runner is not None:
            self.runner.close()


def push(key: str, value: str | int, **facts: Any) -> Call:
    return Call(PUSH, (key.encode(),), [value], **facts)


def plain(*command: str | int, key: str = "") -> Call:
    return Call(None, (key.encode(),) if key else (), [], ask=command)
