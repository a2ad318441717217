"""The rules of the in-process queues: puts, gets, order and end, shared by both kinds of queue.

Nothing here waits, locks or knows event loops. A method that may have to wait is a generator: it yields the
maximum seconds to sleep (None: until woken) and is resumed after that. Its driver ensures that only one
caller is inside at a time: a thread by a lock, an event loop by not awaiting in between.

A sleeping caller is never handed a job or a place. A woken caller checks again and takes it itself, so a
cancelled `put` has added nothing, a cancelled `get` has taken nothing, and `cancel` finds every job that has
not started.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar
from weakref import WeakSet

from penstock.core import lazy
from penstock.core.errors import ConfigError, QueueClosed, QueueFull

J = TypeVar("J")
R = TypeVar("R")

#: A method in progress: yields the maximum seconds to sleep, returns the method's result.
Steps = Generator[float | None, None, R]

#: Longer sleeps are split (s): a thread's wait has a maximum.
_LONGEST_SLEEP = 86_400.0


class CancelToken:
    """A signal that is given once. Cancelling a parent cancels its children, not the other way round.

    All methods may be called from any thread. `cancel` returns when every pool that uses the token was
    notified.
    """

    def __init__(self, parent: CancelToken | None = None) -> None:
        if not isinstance(parent, CancelToken | None):
            raise ConfigError(f"{parent!r} is not a CancelToken")
        self._cancelled = threading.Event()
        # re-entrant: a signal handler may cancel in the middle of another call of the same thread
        self._lock = threading.RLock()
        self._children: WeakSet[CancelToken] = WeakSet()  # weak: a parent outlives thousands of children
        self._calls: list[Callable[[], object]] = []
        if parent is not None:
            parent._adopt(self)

    @property
    def cancelled(self) -> bool:
        """Whether this token or a parent was cancelled."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Cancel the token. A second call has no effect."""
        with self._lock:
            if self._cancelled.is_set():
                return
            self._cancelled.set()  # set first: callers that are woken must see it
            children = list(self._children)
        for child in children:
            child.cancel()
        for call in self._calls:
            call()

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until the token is cancelled. False after `timeout` seconds."""
        deadline = deadline_of(timeout)
        while not self._cancelled.wait(left_until(deadline)):
            if deadline is not None and time.monotonic() >= deadline:
                return False
        return True

    def _adopt(self, child: CancelToken) -> None:
        with self._lock:
            if not self._cancelled.is_set():
                self._children.add(child)
                return
        child.cancel()

    def _when_cancelled(self, call: Callable[[], object]) -> None:
        """Register a call. Only for the owner of a token that no other code has yet."""
        self._calls.append(call)


@dataclass(frozen=True)
class Stopped(Generic[J]):
    """The end of a pool: how many jobs returned and failed in its whole life, and which were left.

    `dropped` jobs never started. `still_running` jobs had not ended when `stop` returned.
    """

    done: int
    failed: int
    dropped: tuple[J, ...]
    still_running: tuple[J, ...]


class Wakeable(Protocol):
    """A sleeping caller that can be woken."""

    def wake(self) -> None: ...


class Rules(Generic[J]):
    """The state of one queue, and of its workers, if any.

    `start_worker` is called before a job is added for which no started worker is free; it may start one.
    """

    def __init__(
        self,
        capacity: int,
        *,
        name: str,
        parent: CancelToken | None,
        workers: int = 0,
        start_worker: Callable[[], None] = lambda: None,
    ) -> None:
        self.capacity = capacity
        self.name = name
        self.token = CancelToken(parent)
        self.done = 0
        self.failed = 0
        #: Workers that have started, or are about to, and have not ended.
        self.alive = 0
        #: The job of each worker.
        self.running_jobs: dict[Hashable, J] = {}
        self._jobs: deque[J] = deque()
        #: Takers that could take a job at once: workers without a job (not started ones too), and callers in
        #: `get`.
        self._idle = workers
        self._start_worker = start_worker
        self._closed = False
        self._putters: OrderedDict[Wakeable, None] = OrderedDict()  # waiting in `put`, oldest first
        self._takers: OrderedDict[Wakeable, None] = OrderedDict()  # waiting for a job
        self._waiters: OrderedDict[Wakeable, None] = OrderedDict()  # waiting until all workers have ended

    # --- numbers: a job for which a taker is free no longer counts as waiting, even before it starts

    @property
    def waiting(self) -> int:
        return len(self._jobs) - self._assigned

    @property
    def running(self) -> int:
        return len(self.running_jobs) + self._assigned

    @property
    def _assigned(self) -> int:
        return 0 if self.token.cancelled else min(len(self._jobs), self._idle)

    @property
    def closed(self) -> bool:
        return self._closed or self.token.cancelled

    @property
    def _over(self) -> bool:
        """Whether no job will be handed out any more."""
        return self.token.cancelled or (self._closed and not self._jobs)

    # --- putting in

    def try_put(self, job: J) -> bool:
        self._refuse_if_closed()
        if self._putters or not self._has_room():
            return False
        self._add(job)
        return True

    def put(self, job: J, waiter: Wakeable, timeout: float | None) -> Steps[None]:
        deadline = deadline_of(timeout)
        if self.try_put(job):
            return
        self._putters[waiter] = None
        try:
            while next(iter(self._putters)) is not waiter or not self._has_room():
                left = left_until(deadline)
                if left is not None and left <= 0:
                    raise QueueFull(self.name)
                yield left
                self._refuse_if_closed()
            self._add(job)
        finally:
            del self._putters[waiter]
            self._wake_putter()

    def _refuse_if_closed(self) -> None:
        if self.closed:
            raise QueueClosed(self.name, "it takes no new jobs")

    def _has_room(self) -> bool:
        return len(self._jobs) < self.capacity + self._idle

    def _add(self, job: J) -> None:
        # the free workers are already needed for older jobs
        if self.alive - len(self.running_jobs) <= len(self._jobs):
            self._start_worker()
        self._jobs.append(job)
        self._wake_taker()

    def _wake_putter(self) -> None:
        # wake one at a time, which wakes the next: woken threads resume in any order
        if self._putters and self._has_room():
            next(iter(self._putters)).wake()

    # --- taking out

    def get(self, waiter: Wakeable) -> Steps[J]:
        self._idle += 1
        self._wake_putter()  # a `put` may have waited for a taker
        try:
            return (yield from self._next_job(waiter))
        finally:
            self._idle -= 1

    def begin(self, worker: Hashable, waiter: Wakeable) -> Steps[J]:
        """Take the worker's next job, which is counted as running until `end`."""
        job = yield from self._next_job(waiter)
        self._idle -= 1
        self.running_jobs[worker] = job
        return job

    def end(self, worker: Hashable, *, failed: bool) -> None:
        del self.running_jobs[worker]
        self._idle += 1
        self.failed += failed
        self.done += not failed
        self._wake_putter()

    def _next_job(self, waiter: Wakeable) -> Steps[J]:
        try:
            while not self._over:
                if self._jobs:
                    return self._jobs.popleft()
                self._takers[waiter] = None
                yield None
            raise QueueClosed(self.name, "it is empty, and nothing more will come")
        finally:
            self._takers.pop(waiter, None)
            if self._jobs:  # one wake-up may stand for several jobs
                self._wake_taker()

    def _wake_taker(self) -> None:
        if self._takers:
            self._takers.popitem(last=False)[0].wake()

    # --- ending

    def close(self) -> None:
        self._closed = True
        self.wake_all()

    def drop(self) -> list[J]:
        dropped = list(self._jobs)
        self._jobs.clear()
        return dropped

    def worker_ended(self) -> None:
        """Note that a worker has ended."""
        self.alive -= 1
        if self.alive == 0:
            self.wake_all()

    def wait(self, waiter: Wakeable, timeout: float | None) -> Steps[bool]:
        deadline = deadline_of(timeout)
        self._waiters[waiter] = None
        try:
            while not self._over or self.alive:
                left = left_until(deadline)
                if left is not None and left <= 0:
                    return False
                yield left
            return True
        finally:
            del self._waiters[waiter]

    def wake_all(self) -> None:
        for waiter in [*self._putters, *self._takers, *self._waiters]:
            waiter.wake()

    def report(self, dropped: list[J]) -> Stopped[J]:
        return Stopped(self.done, self.failed, (*dropped, *self.drop()), tuple(self.running_jobs.values()))


class SharedMethods(Generic[J]):
    """The methods that both kinds of queue share; `_guard` protects the rules."""

    _rules: Rules[J]
    _guard: AbstractContextManager[object]

    def __len__(self) -> int:
        """Number of jobs that wait for a free worker."""
        with self._guard:
            return self._rules.waiting

    @property
    def capacity(self) -> int:
        """How many jobs may wait. 0: a job is accepted only if a taker is free."""
        return self._rules.capacity

    @property
    def token(self) -> CancelToken:
        """Cancelled with the queue, and by the token passed in; long-running code should check it."""
        return self._rules.token

    def try_put(self, job: J) -> bool:
        """Add the job if there is room now. False: nothing was added.

        Callers that wait in `put` go first. Raises QueueClosed after `close` or `cancel`.
        """
        self._check_caller()
        with self._guard:
            return self._rules.try_put(job)

    def close(self) -> None:
        """Accept no new jobs; jobs in the queue are still run. Returns at once; a second call has no effect.

        Callers that wait in `put` get QueueClosed.
        """
        self._check_caller_or_idle()
        with self._guard:
            self._rules.close()

    def _cancel(self) -> list[J]:
        self._check_caller_or_idle()
        self._rules.token.cancel()
        with self._guard:
            return self._rules.drop()

    def _check_caller(self) -> None:
        """Raise if the caller is in the wrong thread or event loop."""

    def _check_caller_or_idle(self) -> None:
        """Like `_check_caller`, but allowed from anywhere while no loop runs."""


def deadline_of(timeout: float | None) -> float | None:
    """The monotonic time of the timeout; None: none."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
        raise ConfigError(f"timeout={timeout!r} is not a number of seconds: give 0 or more, or None")
    return time.monotonic() + timeout


def left_until(deadline: float | None) -> float | None:
    return None if deadline is None else min(deadline - time.monotonic(), _LONGEST_SLEEP)


def checked(what: str, number: int, *, least: int) -> int:
    """Return the number if it is whole and large enough. Raises ConfigError otherwise."""
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise ConfigError(f"{what}={number!r} must be a whole number, {least} or more")
    return number


def is_async(call: Callable[..., object]) -> bool:
    """Whether calling it returns a coroutine."""
    return lazy.returned_by(call) == lazy.ASYNC


def refuse_lazy(returned: object) -> None:
    """Raise TypeError if what a handler has returned stands for work that was not done."""
    if (why := lazy.refused(returned)) is not None:
        raise TypeError(f"the handler did not do its work: {why}")


def checked_listener(on_error: Callable[[J, BaseException], object] | None) -> None:
    if on_error is not None and (not callable(on_error) or is_async(on_error)):
        raise ConfigError(f"on_error={on_error!r} must be a plain function of the job and the exception")
