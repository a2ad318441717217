"""Tools for event loops: tasks that begin in a later turn, one value per loop, and group commit.

Group commit: items that arrive while a write is in flight are written together in the next one. If no write
is in flight, an item is sent at once, so batching adds no waiting; under load the batches grow. Producers use
it for concurrent enqueues, the worker for outcomes and heartbeats.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
R = TypeVar("R")


def start_later(work: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
    """Start a task for work that resets its owner's reference to the task when it ends.

    `loop.create_task` may run the work before it returns (`asyncio.eager_task_factory`, from Python 3.12 on).
    Then the work would end before the owner refers to it, and the owner would take it for unfinished.
    """
    return asyncio.Task(work, loop=asyncio.get_running_loop(), name=name)


class PerLoop(Generic[T]):
    """Values by event loop, readable in any thread; only code that runs in a loop sets its value.

    A weak key alone does not free a loop whose value refers to it (a connection, a task, a timer). So values
    of closed loops are dropped whenever a value for a new loop is set, and by `drop_closed`.
    """

    # without a lock, which a fork could copy locked: each step is one atomic dict operation
    def __init__(self, on_drop: Callable[[T], None] = lambda _: None) -> None:
        self._on_drop = on_drop
        self._values: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()

    def get(self, loop: asyncio.AbstractEventLoop) -> T | None:
        return self._values.get(loop)

    def put(self, loop: asyncio.AbstractEventLoop, value: T) -> T:
        """Set and return the loop's value, unless it has one: then that is returned."""
        self.drop_closed()
        return self._values.setdefault(loop, value)

    def items(self) -> list[tuple[asyncio.AbstractEventLoop, T]]:
        found = [(loop, self._values.get(loop)) for loop in self._loops()]
        return [(loop, value) for loop, value in found if value is not None]

    def drop_closed(self) -> None:
        """Drop the values of closed loops, after calling `on_drop` with each."""
        for loop in self._loops():
            if loop.is_closed():
                self._drop(loop)

    def clear(self) -> None:
        self._values.clear()

    def _loops(self) -> list[asyncio.AbstractEventLoop]:
        return [loop for ref in self._values.keyrefs() if (loop := ref()) is not None]

    def _drop(self, closed: asyncio.AbstractEventLoop) -> None:
        value = self._values.pop(closed, None)
        if value is not None:
            self._on_drop(value)


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
            self._flight = start_later(self._fly(), name="penstock-batcher")
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
