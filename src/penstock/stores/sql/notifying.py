"""Notifiers: they say that something was committed, to waiting threads and to coroutines of event loops."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

WORK, ENDED = "work", "ended"


class Notifier(Protocol):
    """Says that something was committed."""

    def notify(self, queues: Collection[str] | None = None) -> None:
        """Wake the waiters for these queues, and perhaps others; None: all waiters."""
        ...

    def listening(self) -> AbstractContextManager[ThreadListener]:
        """Listen from a thread. No notification is missed after the block is entered."""
        ...

    def loop_listener(self) -> LoopListener:
        """Make a listener for the running event loop."""
        ...


class ThreadListener:
    """Listens to one notifier for one thread."""

    __slots__ = ("notified",)

    def __init__(self) -> None:
        self.notified = threading.Event()

    def wait(self, seconds: float) -> bool:
        """Whether a notification came since the last wait, or comes within this time."""
        notified = self.notified.wait(max(0.0, seconds))
        self.notified.clear()
        return notified


class LoopListener:
    """Listens to one notifier for the coroutines of one event loop; inactive while none of them waits."""

    def __init__(self) -> None:
        self._calls: dict[object, tuple[Callable[[], None], frozenset[str] | None]] = {}
        self._listening = contextlib.ExitStack()  # not empty while there are calls

    @contextlib.contextmanager
    def listening(self, queues: Iterable[str] | None = None) -> Iterator[LoopWaiter]:
        """Listen from a coroutine. No notification is missed after the block is entered.

        With `queues`, one that concerns other queues alone may be left out.
        """
        event = asyncio.Event()
        with self.calling(event.set, queues):
            yield LoopWaiter(event)

    @contextlib.contextmanager
    def calling(self, call: Callable[[], None], queues: Iterable[str] | None = None) -> Iterator[None]:
        """Call `call` at every notification (`queues`: as in `listening`), until the end of the block."""
        key = object()
        if not self._calls:
            self._begin()
        self._calls[key] = call, None if queues is None else frozenset(queues)
        try:
            yield
        finally:
            del self._calls[key]
            if not self._calls:
                self._listening.close()

    @abstractmethod
    def _begin(self) -> None:
        """Call `_notified` at each notification, until `_listening` is closed."""

    def _notified(self, queues: Collection[str] | None = None) -> None:
        for call, wanted in list(self._calls.values()):
            if queues is None or wanted is None or not wanted.isdisjoint(queues):
                call()


class LoopWaiter:
    """One waiting coroutine."""

    __slots__ = ("_event",)

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    async def wait(self, seconds: float) -> bool:
        """Whether a notification came since the last wait, or comes within this time."""
        if not self._event.is_set():
            try:
                async with asyncio.timeout(max(0.0, seconds)):
                    await self._event.wait()
            except TimeoutError:
                return False
        self._event.clear()
        return True
