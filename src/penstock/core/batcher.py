"""Group commit: items that arrive while a write is in flight are written together in the next one.

If no write is in flight, an item is sent at once, so batching adds no waiting; under load the batches grow.
Producers use it for concurrent enqueues, the worker for outcomes and heartbeats.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

__all__ = ["Batcher"]

T = TypeVar("T")
R = TypeVar("R")


class Batcher(Generic[T, R]):
    """Sends items in batches of at most `limit`, with one batch in flight; for one event loop.

    `send` takes a list and returns one answer per item, in order. An answer that is an exception is raised to
    its own caller only. If `send` raises, every caller of that batch gets the error.
    """

    def __init__(
        self,
        send: Callable[[list[T]], Awaitable[Sequence[R | BaseException]]],
        *,
        limit: int = 2_000,
    ) -> None:
        self._send = send
        self._limit = limit
        self._waiting: deque[tuple[T, asyncio.Future[R]]] = deque()
        self._flight: asyncio.Task[None] | None = None

    def put(self, item: T) -> asyncio.Future[R]:
        """Send the item with the next batch; the future returns its answer.

        Cancelling the waiting caller does not withdraw its item or any other.
        """
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._flight is None:
            self._flight = asyncio.create_task(self._fly(), name="penstock-batcher")
        return answer

    async def drained(self) -> None:
        """Wait until all items were answered."""
        while self._flight is not None:
            await asyncio.shield(self._flight)

    async def _fly(self) -> None:
        try:
            while self._waiting:
                n = min(len(self._waiting), self._limit)
                batch = [self._waiting.popleft() for _ in range(n)]
                await self._send_one([item for item, _ in batch], [answer for _, answer in batch])
        finally:
            self._flight = None

    async def _send_one(self, items: list[T], answers: list[asyncio.Future[R]]) -> None:
        try:
            results = await self._send(items)
        except asyncio.CancelledError:
            for answer in answers:
                answer.cancel()
            raise
        except Exception as error:  # noqa: BLE001  # boundary: any error of the write is raised to its callers
            for answer in answers:
                if not answer.done():
                    answer.set_exception(error)
            return
        for answer, result in zip(answers, results, strict=True):
            if answer.done():  # its caller was cancelled; the item is stored anyway
                continue
            if isinstance(result, BaseException):
                answer.set_exception(result)
            else:
                answer.set_result(result)
