"""Group commit across connections: what arrives in one turn of the event loop is one call of the store."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from penstock.core.loops import start_later

_log = logging.getLogger("penstock.web")

T = TypeVar("T")
R = TypeVar("R")


class GroupCommit(Generic[T, R]):
    """Sends items in groups with one group in flight, and calls back with each answer.

    As `core.loops.Batcher`, with a callback in the place of a future per item. `send` takes a list and
    returns one answer per item, in order; an error of `send` is the answer for every item of its group. A
    group ends before `limit` items if they weigh more than `most` together.
    """

    def __init__(
        self,
        send: Callable[[list[T]], Awaitable[Sequence[R | BaseException]]],
        *,
        limit: int = 1_000,
        most: int = 16 * 1024 * 1024,
    ) -> None:
        self._send = send
        self._limit = limit
        self._most = most
        self._waiting: deque[tuple[T, int, Callable[[R | BaseException], None]]] = deque()
        self._flight: asyncio.Task[None] | None = None

    def put(self, item: T, done: Callable[[R | BaseException], None], *, weight: int = 0) -> None:
        """Send the item with the next group, then call `done` with its answer or error."""
        self._waiting.append((item, weight, done))
        if self._flight is None:
            self._flight = start_later(self._fly())

    async def ask(self, item: T) -> R:
        """Send the item with the next group; returns its answer, or raises its error."""
        found: asyncio.Future[R] = asyncio.get_running_loop().create_future()

        def take(answer: R | BaseException) -> None:
            if found.done():  # the caller was cancelled
                return
            if isinstance(answer, BaseException):
                found.set_exception(answer)
            else:
                found.set_result(answer)

        self.put(item, take)
        return await found

    async def drained(self) -> None:
        """Wait until all items were answered."""
        while self._flight is not None:
            await asyncio.shield(self._flight)

    async def _fly(self) -> None:
        try:
            while self._waiting:
                items, calls = self._next_group()
                await self._send_one(items, calls)
        finally:
            self._flight = None

    def _next_group(self) -> tuple[list[T], list[Callable[[R | BaseException], None]]]:
        items: list[T] = []
        calls: list[Callable[[R | BaseException], None]] = []
        weight = 0
        while self._waiting and len(items) < self._limit and weight < self._most:
            item, heavy, done = self._waiting.popleft()
            items.append(item)
            calls.append(done)
            weight += heavy
        return items, calls

    async def _send_one(self, items: list[T], calls: list[Callable[[R | BaseException], None]]) -> None:
        answers: Sequence[R | BaseException]
        try:
            answers = await self._send(items)
        except Exception as error:  # noqa: BLE001  # boundary: any error of the call is the answer of its items
            answers = [error] * len(items)
        for done, answer in zip(calls, answers, strict=True):
            try:
                done(answer)
            except Exception:  # noqa: BLE001  # boundary: an error in one answer must not keep others waiting
                _log.exception("an answer could not be sent")
