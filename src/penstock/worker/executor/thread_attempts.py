"""Runs attempts in threads: plain thread calls, and calls of tasks with middleware."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from penstock.app.attempt import Attempt, running
from penstock.core import clock
from penstock.core.errors import Interrupted
from penstock.worker.executor.attempt_start import LeaseRevoked, Starter
from penstock.worker.leased_jobs import LeasedJob
from penstock.worker.pools import CallThreadPool, Done

__all__ = ["ThreadAttempts", "ThreadCall"]


class ThreadAttempts:
    """Runs attempts of thread tasks. The thread pool is made for the first attempt.

    `on_done` is called on the event loop with each batch of plain calls that have ended.
    """

    def __init__(self, starter: Starter, size: int, on_done: Callable[[list[Done]], None]) -> None:
        self._starter = starter
        self._size = size
        self._on_done = on_done
        self._pool: CallThreadPool | None = None

    def submit(self, leased: LeasedJob) -> None:
        """Run a plain call, without an asyncio task or a future."""
        pool = self._pool or self._open()
        pool.submit(leased, ThreadCall(self._starter, leased))

    def run(self, leased: LeasedJob, attempt: Attempt) -> asyncio.Future[Any]:
        """Run a call that middleware awaits, in a copy of the middleware's context."""
        pool = self._pool or self._open()
        return pool.run(leased, ThreadCall(self._starter, leased, attempt), copy_context())

    def is_in_thread(self, leased: LeasedJob) -> bool:
        """Whether a thread runs this attempt now."""
        return self._pool is not None and self._pool.started_at(leased) is not None

    def thread_of(self, leased: LeasedJob) -> int | None:
        """The ident of the thread that runs this attempt now; None if no thread does."""
        return None if self._pool is None else self._pool.thread_of(leased)

    def interrupt(self, leased: LeasedJob, why: type[Interrupted]) -> None:
        """Raise `why` inside the attempt's thread, if it runs in one and was not interrupted before."""
        if self._pool is not None:
            self._pool.interrupt(leased, why)

    def abandon(self, leased: LeasedJob) -> bool:
        """Give up the attempt's thread; False if the attempt has just ended."""
        return self._pool is not None and self._pool.abandon(leased)

    def take_back(self) -> list[LeasedJob]:
        """Remove and return plain calls that no thread has started, in order."""
        return [] if self._pool is None else self._pool.take_back()

    def close(self) -> None:
        """End the threads, waiting for at most half a second."""
        if self._pool is not None:
            self._pool.close(0.5)

    def _open(self) -> CallThreadPool:
        self._pool = pool = CallThreadPool(self._size, self._on_done)
        pool.start()
        return pool


class ThreadCall:
    """One attempt as a callable for a thread: start, decode, run and encode, all off the event loop."""

    __slots__ = ("attempt", "leased", "starter")

    def __init__(self, starter: Starter, leased: LeasedJob, attempt: Attempt | None = None) -> None:
        self.starter = starter
        self.leased = leased
        self.attempt = attempt  # None: the attempt starts when a thread takes the call

    def __call__(self) -> Any:
        leased = self.leased
        plan = leased.plan
        attempt = self.attempt or self._begin()
        token = running.set(attempt)
        try:
            args, kwargs = plan.decode(leased.job)
            value = plan.function(*args, **kwargs)
            if attempt.flow is not None:
                attempt.flow.finish()
            if plan.encode is None or plan.around:  # with middleware the runner encodes the result
                return value
            return plan.encode(value)
        except BaseException as error:  # boundary: any error of user code is its outcome
            if attempt.flow is None:
                raise
            raise attempt.flow.failed(error) from None
        finally:
            running.reset(token)
            if self.attempt is None:  # with middleware the attempt is not over yet
                leased.took = time.monotonic() - leased.started

    def _begin(self) -> Attempt:
        leased = self.leased
        if leased.interrupt is not None:
            raise leased.interrupt
        if leased.over or clock.lease_seconds() - leased.fetched > self.starter.lease:
            raise LeaseRevoked
        return self.starter.begin(leased)
