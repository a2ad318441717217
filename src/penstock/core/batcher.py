"""Group commit: what arrives while a write is in flight goes out together in the next one.

When nothing is in flight an item goes at once, so batching never adds waiting; under load the batches
grow by themselves. Producers use it for concurrent enqueues, the worker for outcomes and heartbeats.
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
    """Sends items in batches of at most `limit`, one batch in flight; of one event loop.

    `send` gets a list and returns one answer per item, in order; an answer that is an exception is
    raised to its own caller only. If `send` itself raises, every caller of that batch gets it.
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
        """Send the item with the next batch; the future is its answer.

        A caller that is cancelled while waiting does not take its item, or anybody else's, back.
        """
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._flight is None:
            self._flight = asyncio.create_task(self._fly(), name="penstock-batcher")
        return answer

    async def drained(self) -> None:
        """Wait until everything that was put has been answered."""
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
        except Exception as error:  # noqa: BLE001  # boundary: whatever the write failed with belongs to its callers
            for answer in answers:
                if not answer.done():
                    answer.set_exception(error)
            return
        for answer, result in zip(answers, results, strict=True):
            if answer.done():  # its caller was cancelled; the item is stored all the same
                continue
            if isinstance(result, BaseException):
                answer.set_exception(result)
            else:
                answer.set_result(result)
