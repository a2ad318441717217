"""Waits with a timeout that continue through outages of the store, and refuse to block an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator
from contextlib import aclosing, closing
from typing import TypeVar

from penstock.core.errors import ConfigError, StoreUnavailable
from penstock.core.formats import Duration, format_ms, milliseconds
from penstock.core.job import Job, Ref
from penstock.core.running import waits_for
from penstock.stores.contract import Store

R = TypeVar("R")

#: Length of one wait without a limit (ms), repeated; the store reports ends at once in any case.
_LONGEST_WAIT = 86_400_000
#: Pause before the store is asked again during an outage (s).
_PAUSE = 0.2


class WaitLimit:
    """A timeout that starts now; None: no limit."""

    __slots__ = ("_ms", "_until")

    def __init__(self, timeout: Duration | None) -> None:
        self._ms = None if timeout is None else milliseconds(timeout, what="timeout")
        self._until = None if self._ms is None else time.monotonic() + self._ms / 1000

    def restarted(self) -> WaitLimit:
        """The same timeout, starting now."""
        return WaitLimit(None if self._ms is None else self._ms / 1000)

    @property
    def left(self) -> int:
        """Remaining time in ms."""
        return (
            _LONGEST_WAIT if self._until is None else max(0, round((self._until - time.monotonic()) * 1000))
        )

    @property
    def over(self) -> bool:
        return self.left == 0

    def pause(self, error: StoreUnavailable) -> float:
        """Seconds until the store is asked again. Raises the error if the timeout ends before that."""
        if self.left <= _PAUSE * 1000:
            raise error
        return _PAUSE

    def __str__(self) -> str:
        return "any time" if self._ms is None else format_ms(self._ms)


# ── waits that continue through an outage of the store ───────────────────────────────────────────


def call_through_outage(wait_limit: WaitLimit, call: Callable[[], R]) -> R:
    """Return the store's answer, asking again during an outage. Raises StoreUnavailable at the timeout."""
    while True:
        try:
            return call()
        except StoreUnavailable as error:
            time.sleep(wait_limit.pause(error))


async def acall_through_outage(wait_limit: WaitLimit, call: Callable[[], Awaitable[R]]) -> R:
    """Like `call_through_outage`, without blocking the event loop."""
    while True:
        try:
            return await call()
        except StoreUnavailable as error:
            await asyncio.sleep(wait_limit.pause(error))


def wait_for_end(store: Store, ref: Ref, wait_limit: WaitLimit, most: int | None = None) -> Job | None:
    """Wait until the job has ended, for at most `most` ms or the rest of the timeout."""
    with waits_for([ref.queue]):
        jobs = call_through_outage(
            wait_limit, lambda: store.sync.wait_for_end([ref], timeout=_at_most(most, wait_limit))
        )
    return jobs[0]


async def await_end(store: Store, ref: Ref, wait_limit: WaitLimit, most: int | None = None) -> Job | None:
    """Like `wait_for_end`, without blocking the event loop."""
    with waits_for([ref.queue]):
        jobs = await acall_through_outage(
            wait_limit, lambda: store.wait_for_end([ref], timeout=_at_most(most, wait_limit))
        )
    return jobs[0]


def _at_most(most: int | None, wait_limit: WaitLimit) -> int:
    return wait_limit.left if most is None else min(most, wait_limit.left)


def stream_ends(
    store: Store, open: Collection[Ref], wait_limit: WaitLimit
) -> Generator[dict[Ref, Job | None], None, None]:
    """Yield the jobs of `open` that end, until `open` is empty or the timeout. The caller removes them."""
    while open:
        try:
            refs = list(open)
            with (
                waits_for({ref.queue for ref in refs}),
                closing(store.sync.stream_ends(refs, timeout=wait_limit.left)) as ended_jobs,
            ):
                yield from ended_jobs
        except StoreUnavailable as error:
            time.sleep(wait_limit.pause(error))
            continue
        if wait_limit.over:
            return


async def astream_ends(
    store: Store, open: Collection[Ref], wait_limit: WaitLimit
) -> AsyncGenerator[dict[Ref, Job | None], None]:
    """Like `stream_ends`, without blocking the event loop."""
    while open:
        try:
            with waits_for({ref.queue for ref in open}):
                async with aclosing(store.stream_ends(list(open), timeout=wait_limit.left)) as ended_jobs:
                    async for some in ended_jobs:
                        yield some
        except StoreUnavailable as error:
            await asyncio.sleep(wait_limit.pause(error))
            continue
        if wait_limit.over:
            return


def refuse_in_loop(what: str, instead: str) -> None:
    """Raise ConfigError if an event loop runs in this thread: blocking it could wait for its own work."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigError(f"{what} would block the event loop that runs in this thread: use `{instead}`")
