"""Calls an app's callbacks: an `async def` on the event loop, a `def` in a thread pool for callbacks."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

from penstock.core.errors import AttemptTimeout
from penstock.worker.pools import CallThreadPool

__all__ = ["CallbackExecutor"]

_log = logging.getLogger("penstock.worker")


class CallbackExecutor:
    """Calls callbacks and logs their exceptions; `call` never raises them.

    A callback has `limit` seconds. After that a coroutine is cancelled; in a thread an exception is raised,
    and `call` waits until the thread is free.
    """

    def __init__(self, threads: int, *, limit: float = 30.0) -> None:
        self._threads = threads
        self._limit = limit
        self._pool: CallThreadPool | None = None

    async def call(self, function: Callable[..., object], *args: Any, about: str) -> None:
        """Call `function(*args)`. Errors are logged with the prefix `about`."""
        limit = asyncio.timeout(None)
        try:
            returned: Any = None
            if not _is_async(function):
                returned = await self._in_thread(functools.partial(function, *args), about)
            async with limit:
                limit.reschedule(asyncio.get_running_loop().time() + self._limit)
                if _is_async(function):
                    returned = function(*args)
                if inspect.isawaitable(returned):
                    await returned
        except BaseException as error:  # boundary: a callback must not end the worker
            this_task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and this_task is not None and this_task.cancelling():
                raise
            if limit.expired():
                _log.error("%s: callback %r took longer than %g s", about, function, self._limit)
            else:
                _log.error("%s: callback %r failed", about, function, exc_info=error)

    async def _in_thread(self, call: Callable[[], object], about: str) -> object:
        if self._pool is None:
            self._pool = CallThreadPool(self._threads, lambda _: None, name="penstock-callback")
            self._pool.start()
        ticket = object()
        future = self._pool.run(ticket, call)
        done, _ = await asyncio.wait({future}, timeout=self._limit)
        if not done:
            _log.error("%s: callback still running after %g s", about, self._limit)
            self._pool.interrupt(ticket, AttemptTimeout)
            await asyncio.wait({future})  # the next callback needs this thread
        return future.result()

    def close(self) -> None:
        """Close the thread pool. A thread that still runs a callback ends with the process."""
        if self._pool is not None:
            self._pool.close(0.1)


def _is_async(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 (its `__call__` is inspected, not called)
    )
