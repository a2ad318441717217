"""One value per event loop, dropped when the loop is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

__all__ = ["PerLoop"]

T = TypeVar("T")


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
