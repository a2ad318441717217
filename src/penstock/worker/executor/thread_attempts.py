"""Runs attempts in threads: plain calls, some of them ahead of the slots, and those inside of middleware."""

from __future__ import annotations

import asyncio
import time
from contextvars import copy_context
from typing import Any

from penstock.app.attempt import Attempt, running
from penstock.app.outcome import checked, result_of
from penstock.core import clock
from penstock.core.errors import Interrupted
from penstock.core.lifecycle import starts_on_record
from penstock.worker.executor.attempt import Attempts, LeaseRevoked
from penstock.worker.executor.slots import Slots
from penstock.worker.leased_jobs import LeasedJob
from penstock.worker.pools import CallThreadPool, Done
from penstock.worker.process_identity import end_fork, stray


class ThreadAttempts:
    """Runs attempts of thread tasks. The thread pool is made for the first attempt."""

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        #: How many plain calls are started ahead of the slots.
        self.prefetch = ThreadPrefetch(attempts.slots)
        self._pool: CallThreadPool | None = None

    def submit(self, leased: LeasedJob) -> None:
        """Run a plain call, without an asyncio task or a future."""
        pool = self._pool or self._open()
        pool.submit(leased, ThreadCall(self._attempts, leased))

    def run(self, leased: LeasedJob, attempt: Attempt) -> asyncio.Future[Any]:
        """Run a call that middleware awaits, in a copy of the middleware's context."""
        pool = self._pool or self._open()
        return pool.run(leased, ThreadCall(self._attempts, leased, attempt), copy_context())

    def is_in_thread(self, leased: LeasedJob) -> bool:
        """Whether a thread runs this attempt now."""
        return self._pool is not None and self._pool.started_at(leased) is not None

    def thread_of(self, leased: LeasedJob) -> int | None:
        """The ident of the thread that runs this attempt now; None if no thread does."""
        return None if self._pool is None else self._pool.thread_of(leased)

    def interrupt(self, leased: LeasedJob, why: type[Interrupted]) -> None:
        """Raise `why` inside the attempt's thread, if it runs in one and was not interrupted before."""
        if self._pool is not None:
            self._pool.interrupt(leased, why if leased.attempt is None else _noted_by(leased.attempt, why))

    def abandon(self, leased: LeasedJob) -> bool:
        """Give up the attempt's thread; False if the attempt has just ended."""
        return self._pool is not None and self._pool.abandon(leased)

    def take_back(self) -> list[LeasedJob]:
        """Remove and return plain calls that no thread has started, in order."""
        self.prefetch.depth = 0
        return [] if self._pool is None else self._pool.take_back()

    def close(self) -> None:
        """End the threads, waiting for at most half a second."""
        if self._pool is not None:
            self._pool.close(0.5)

    def _open(self) -> CallThreadPool:
        self._pool = pool = CallThreadPool(self._attempts.slots.concurrency, self._ended)
        pool.start()
        return pool

    def _ended(self, batch: list[Done]) -> None:
        """End plain calls, on the event loop."""
        slots, end = self._attempts.slots, self._attempts.end
        spent, ends = slots.busy_seconds, slots.ends
        for leased, value, error in batch:
            if error is None and leased.plan.encode is not None:
                end(leased, None, value)
            else:
                end(leased, error)
        self.prefetch.measure(slots.busy_seconds - spent, slots.ends - ends)
        self._attempts.start_next()


def _noted_by(attempt: Attempt, why: type[Interrupted]) -> type[Interrupted]:
    """A class like `why` that tells the attempt when it is raised: a call of C code may delay that."""

    def note(self: Interrupted, *args: object) -> None:
        attempt.notice()

    own = {"__init__": note, "__module__": why.__module__, "__qualname__": why.__qualname__}
    return type(why.__name__, (why,), own)


class ThreadCall:
    """One attempt as a callable for a thread: start, decode, run and encode, all off the event loop."""

    __slots__ = ("attempt", "attempts", "leased")

    def __init__(self, attempts: Attempts, leased: LeasedJob, attempt: Attempt | None = None) -> None:
        self.attempts = attempts
        self.leased = leased
        self.attempt = attempt  # None: the attempt starts when a thread takes the call

    def __call__(self) -> Any:
        leased = self.leased
        plan = leased.plan
        attempt = self.attempt or self._begin()
        token = running.set(attempt)
        try:
            args, kwargs = plan.decode(leased.job)
            try:
                value = plan.function(*args, **kwargs)
            finally:
                if stray.here:
                    end_fork()
            if attempt.flow is not None:
                attempt.flow.finish()
            if plan.around:  # the runner encodes the result of the middleware
                return checked(value, leased.job)
            if value is None and plan.encode is None:
                return None
            return result_of(value, plan.encode, leased.job)
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
        if leased.over or clock.lease_seconds() - leased.fetched > self.attempts.lease:
            raise LeaseRevoked
        return self.attempts.begin(leased)


# ── calls ahead of the slots ─────────────────────────────────────────────────────────────────────

#: Maximum number of queued calls per thread, while calls take less than _SHORT on average (s).
_PER_THREAD, _SHORT = 6, 0.0002
#: Prefetched calls are returned when no call has ended for this long (s).
_STUCK = 0.02


class ThreadPrefetch:
    """Number of thread calls to start ahead of the slots, by the duration of the last calls.

    A thread whose call has ended takes the next queued call at once. Without prefetch, an iteration of the
    event loop for every twenty calls cost 5 of 18 us per job. Prefetched calls are returned if no call has
    ended for 20 ms. Prefetching is used only while every slot runs a plain thread call.
    """

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        #: Maximum number of queued calls; 0 while calls are long.
        self.depth = 0

    def allows(self, leased: LeasedJob) -> bool:
        """Whether the job would wait behind other calls. If not, an idle thread would start it at once, and
        one attempt too many would run."""
        slots = self._slots
        plain = leased.plan.in_thread and not starts_on_record(leased.job)
        return plain and not slots.not_plain and not slots.lost

    def measure(self, seconds: float, ended: int) -> None:
        """Adapt to the last batch: `ended` calls, which took `seconds` in total."""
        self.depth = _PER_THREAD * self._slots.concurrency if seconds < _SHORT * ended else 0

    def is_stuck(self, now: float) -> bool:
        """Whether prefetched calls wait although no call ends. `now` is monotonic."""
        return self._slots.room() < 0 and now - self._slots.last_end > _STUCK
