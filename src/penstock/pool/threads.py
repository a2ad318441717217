"""The queue and pool for threads: one lock, and a condition for each waiting thread."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Generic, ParamSpec, Self, TypeVar

from penstock.core.errors import ConfigError, QueueClosed
from penstock.pool.rules import (
    CancelToken,
    Rules,
    SharedMethods,
    Steps,
    Stopped,
    checked,
    checked_listener,
    deadline_of,
    is_async,
    refuse_lazy,
)

_log = logging.getLogger("penstock.pool")

J = TypeVar("J")
R = TypeVar("R")
P = ParamSpec("P")


def spawn_thread(work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> threading.Thread:
    """Run the call in a new thread whose error is logged. The process waits for it at its end.

    Sets no limit; use it if no queue is needed.
    """

    def run() -> None:
        try:
            work(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  # boundary: no caller waits for this thread, so its error is logged
            _log.exception("the spawned thread %s failed: %r", threading.current_thread().name, error)

    thread = threading.Thread(target=run, name=f"penstock-spawn-{getattr(work, '__name__', 'call')}")
    thread.start()
    return thread


class _ThreadWait:
    """The sleep of one thread inside one method; it releases the lock while it sleeps."""

    def __init__(self, lock: threading.RLock) -> None:
        self._condition = threading.Condition(lock)
        self.sleep = self._condition.wait
        self.wake = self._condition.notify


def _run_steps(steps: Steps[R], waiter: _ThreadWait) -> R:
    """Run the steps. The caller holds the lock."""
    try:
        while True:
            waiter.sleep(next(steps))
    except StopIteration as end:
        answer: R = end.value
        return answer
    finally:
        steps.close()  # a caller with a KeyboardInterrupt leaves the waiting line


class ThreadJobQueue(SharedMethods[J], Generic[J]):
    """A bounded queue for threads; `for job in queue` is a worker.

    `capacity` is the number of jobs that may wait. With 0, a job is accepted only if a thread waits in `get`.
    Any thread may call any method.
    """

    def __init__(self, capacity: int, *, name: str = "jobs", token: CancelToken | None = None) -> None:
        # re-entrant: a signal handler or a finalizer may run in the middle of another call of its thread
        self._lock = threading.RLock()
        self._guard = self._lock
        self._rules = self._make_rules(checked("capacity", capacity, least=0), name, token)
        self._rules.token._when_cancelled(self._wake_all)

    def _make_rules(self, capacity: int, name: str, token: CancelToken | None) -> Rules[J]:
        return Rules(capacity, name=name, parent=token)

    def put(self, job: J, timeout: float | None = None) -> None:
        """Add the job, blocking while there is no room; waiting callers are served in order.

        Raises QueueFull if there is no room within `timeout` seconds, and QueueClosed after `close` or
        `cancel`, also in callers that wait. A `put` that raised has added nothing.
        """
        waiter = _ThreadWait(self._lock)
        with self._lock:
            _run_steps(self._rules.put(job, waiter, timeout), waiter)

    def get(self) -> J:
        """Take the next job, blocking until there is one. Raises QueueClosed if none will come."""
        waiter = _ThreadWait(self._lock)
        with self._lock:
            return _run_steps(self._rules.get(waiter), waiter)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> J:
        try:
            return self.get()
        except QueueClosed:
            raise StopIteration from None

    def cancel(self) -> list[J]:
        """Close the queue and hand out no more jobs. Removes and returns the waiting jobs, in order."""
        return self._cancel()

    def _wake_all(self) -> None:
        """Wake all waiters. The lock makes `cancel` return after every start that is in progress."""
        with self._lock:
            self._rules.wake_all()


class ThreadPool(ThreadJobQueue[J]):
    """A bounded queue with `workers` threads that call `handler` with one job after the other.

    A worker is started when a job arrives and no worker is free. A failed job is counted and passed to
    `on_error` (in its thread), or logged; its worker continues. How jobs are spread over workers is not
    defined.

    Workers are daemon threads: use `stop` or `join` for work that must be finished before the process ends.
    `with ThreadPool(...)` drains at the end of the block; if the block fails, it cancels.
    """

    def __init__(
        self,
        handler: Callable[[J], object],
        *,
        workers: int,
        capacity: int,
        name: str = "pool",
        token: CancelToken | None = None,
        on_error: Callable[[J, BaseException], object] | None = None,
    ) -> None:
        if not callable(handler) or is_async(handler):
            raise ConfigError(
                f"handler={handler!r} is not a plain function of one job; for async functions use Pool"
            )
        checked_listener(on_error)
        self._workers = checked("workers", workers, least=1)
        self._handler = handler
        self._on_error = on_error
        self._workers_started = 0  # workers started so far, for their names
        self._threads: set[threading.Thread] = set()
        super().__init__(capacity, name=name, token=token)

    def _make_rules(self, capacity: int, name: str, token: CancelToken | None) -> Rules[J]:
        return Rules(
            capacity, name=name, parent=token, workers=self._workers, start_worker=self._start_worker
        )

    @property
    def running(self) -> int:
        """Number of jobs that a worker has, or that a free one is about to take."""
        with self._lock:
            return self._rules.running

    @property
    def done(self) -> int:
        """Number of jobs whose handler returned."""
        return self._rules.done

    @property
    def failed(self) -> int:
        """Number of jobs whose handler raised."""
        return self._rules.failed

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all workers have ended after `close` or `cancel`. False after `timeout` seconds.

        Waiting stops nothing: after False, the workers continue.
        """
        self._refuse_own_jobs()
        waiter = _ThreadWait(self._lock)
        with self._lock:
            if not _run_steps(self._rules.wait(waiter, timeout), waiter):
                return False
        for thread in self._threads:  # wait for their last steps
            thread.join()
        return True

    def join(self) -> None:
        """Wait without a limit."""
        self.wait()

    def cancel(self) -> list[J]:
        """Close the pool and start no more jobs: no worker takes another job.

        Removes and returns the jobs that have not started, in order. A job that a worker has taken ends by
        itself; it may check `token.cancelled`. Does not wait.
        """
        return self._cancel()

    def stop(self, *, drain: bool = True, timeout: float | None = None) -> Stopped[J]:
        """Close (or with `drain=False` cancel), wait, and at the timeout cancel jobs that have not started.

        Jobs that still run then continue, and are listed in the answer.
        """
        deadline_of(timeout)  # checked before anything is closed
        self._refuse_own_jobs()
        dropped: list[J] = []
        if drain:
            self.close()
        else:
            dropped = self.cancel()
        if not self.wait(timeout):
            dropped += self.cancel()
        with self._lock:
            return self._rules.report(dropped)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            dropped = self.cancel()
            if dropped:
                _log.warning("pool %s dropped %d job(s): %r", self._rules.name, len(dropped), error)
        self.join()

    def _refuse_own_jobs(self) -> None:
        if threading.current_thread() in self._threads:
            raise RuntimeError(f"a job of the pool {self._rules.name!r} would wait for its own end")

    # --- workers

    def _start_worker(self) -> None:
        if self._rules.alive >= self._workers:
            return
        thread = threading.Thread(
            target=self._work, name=f"penstock-{self._rules.name}-{self._workers_started + 1}", daemon=True
        )
        self._rules.alive += 1  # counted first, so that `wait` cannot miss it
        try:
            thread.start()
        except RuntimeError:  # no more threads: the error reaches the caller, and nothing was added
            self._rules.alive -= 1
            raise
        self._workers_started += 1
        self._threads.add(thread)

    def _work(self) -> None:
        worker, waiter = threading.current_thread(), _ThreadWait(self._lock)
        try:
            while True:
                with self._lock:
                    job = _run_steps(self._rules.begin(worker, waiter), waiter)
                failed = self._run(job)
                with self._lock:
                    self._rules.end(worker, failed=failed)
                del job  # not kept alive by an idle worker
        except QueueClosed:
            pass
        finally:
            with self._lock:
                self._rules.worker_ended()

    def _run(self, job: J) -> bool:
        """Run the job; returns whether it failed."""
        try:
            refuse_lazy(contextvars.Context().run(self._handler, job))
        except BaseException as error:  # noqa: BLE001  # boundary: not even SystemExit in a job ends its worker
            self._report_failure(job, error)
            return True
        return False

    def _report_failure(self, job: J, error: BaseException) -> None:
        if self._on_error is None:
            _log.error("pool %s: a job failed: %r", self._rules.name, error, exc_info=error)
            return
        try:
            self._on_error(job, error)
        except BaseException:  # noqa: BLE001  # boundary: a failing listener must not end a worker
            _log.exception("pool %s: on_error failed", self._rules.name)
