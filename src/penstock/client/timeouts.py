"""Waiting for results: how long, through outages of the store, and where it must not be done by blocking."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator
from contextlib import aclosing, closing
from typing import TypeVar

from penstock.core.duration import Duration, format_ms, milliseconds
from penstock.core.errors import ConfigError, StoreUnavailable
from penstock.core.job import Job, Ref
from penstock.stores.contract import Store

__all__ = ["Patience", "aask", "ask", "astream_ends", "refuse_in_loop", "stream_ends"]

R = TypeVar("R")

#: How long a wait without a limit is (ms), until it begins anew; the store tells at once all the same.
_LONG = 86_400_000
#: During an outage the store is asked again after this (seconds).
_PAUSE = 0.2


class Patience:
    """How long somebody is ready to wait, from now on; None: for as long as it takes."""

    __slots__ = ("_ms", "_until")

    def __init__(self, timeout: Duration | None) -> None:
        self._ms = None if timeout is None else milliseconds(timeout, what="timeout")
        self._until = None if self._ms is None else time.monotonic() + self._ms / 1000

    def again(self) -> Patience:
        """The same, from now on."""
        return Patience(None if self._ms is None else self._ms / 1000)

    @property
    def left(self) -> int:
        """For how many ms to wait now."""
        return _LONG if self._until is None else max(0, round((self._until - time.monotonic()) * 1000))

    @property
    def over(self) -> bool:
        return self.left == 0

    def pause(self, error: StoreUnavailable) -> float:
        """The seconds until the store is asked again; raises the error if the wait is over by then."""
        if self.left <= _PAUSE * 1000:
            raise error
        return _PAUSE

    def __str__(self) -> str:
        return "any time" if self._ms is None else format_ms(self._ms)


# ── waits that outlive an outage of the store, as long as they may take ──────────────────────────


def ask(patience: Patience, question: Callable[[], R]) -> R:
    """The answer of the store. During an outage it is asked again; raises StoreUnavailable at the end."""
    while True:
        try:
            return question()
        except StoreUnavailable as error:
            time.sleep(patience.pause(error))


async def aask(patience: Patience, question: Callable[[], Awaitable[R]]) -> R:
    """The same, without blocking the event loop."""
    while True:
        try:
            return await question()
        except StoreUnavailable as error:
            await asyncio.sleep(patience.pause(error))


def stream_ends(
    store: Store, open: Collection[Ref], patience: Patience
) -> Generator[dict[Ref, Job | None], None, None]:
    """Stream the ended jobs of `open` until it is empty or the wait is over; the caller removes them."""
    while open:
        try:
            with closing(store.sync.stream_ends(list(open), timeout=patience.left)) as told:
                yield from told
        except StoreUnavailable as error:
            time.sleep(patience.pause(error))
            continue
        if patience.over:
            return


async def astream_ends(
    store: Store, open: Collection[Ref], patience: Patience
) -> AsyncGenerator[dict[Ref, Job | None], None]:
    """The same, without blocking the event loop."""
    while open:
        try:
            async with aclosing(store.stream_ends(list(open), timeout=patience.left)) as told:
                async for some in told:
                    yield some
        except StoreUnavailable as error:
            await asyncio.sleep(patience.pause(error))
            continue
        if patience.over:
            return


def refuse_in_loop(what: str, instead: str) -> None:
    """Raise ConfigError where an event loop runs in this thread: blocking it may wait for itself."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigError(f"{what} would block the event loop that runs in this thread: use `{instead}`")
