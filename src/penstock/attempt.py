"""The attempt that is running here: what a task may know and say of itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import MappingProxyType

from penstock.errors import AttemptCancelled, PenstockError
from penstock.job import Job, Progress

__all__ = ["Attempt", "NoCurrentJob", "current_job", "running"]

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class NoCurrentJob(PenstockError, LookupError):
    """`current_job()` was called where no attempt runs."""


class Attempt:
    """One try of a job, as its function sees it through `current_job()`."""

    __slots__ = ("_cancelled", "_ends", "_report", "job")

    def __init__(
        self,
        job: Job,
        report: Callable[[Job, Progress], None] | None = None,
        ends: float | None = None,
    ) -> None:
        self.job = job
        self._report = report
        self._ends = ends  # time.monotonic() at which this attempt times out
        self._cancelled = False

    @property
    def id(self) -> str:
        """The job's id: the same in every attempt, so it serves as an idempotency key."""
        return self.job.spec.id

    @property
    def task(self) -> str:
        return self.job.spec.task

    @property
    def queue(self) -> str:
        return self.job.spec.queue

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.job.attempt

    @property
    def max_attempts(self) -> int:
        return self.job.spec.max_attempts

    @property
    def group(self) -> str:
        """The key of the group that the running batch was collected in; "" for any other job."""
        group = self.job.spec.group
        return "" if group is None else group.key

    @property
    def members(self) -> tuple[str, ...]:
        """The ids of the jobs in the running batch, as their elements stand in the list."""
        return self.job.members

    @property
    def headers(self) -> Mapping[str, str]:
        return self.job.spec.headers or _NO_HEADERS

    @property
    def cancelled(self) -> bool:
        """Whether somebody has asked this attempt to stop; look at it now and then in long loops."""
        return self._cancelled

    def raise_if_cancelled(self) -> None:
        """Stop here, if somebody has asked for it."""
        if self._cancelled:
            raise AttemptCancelled("the job was cancelled")

    def ask_to_stop(self) -> None:
        """From now on it is `cancelled`. For the worker."""
        self._cancelled = True

    def remaining(self) -> float | None:
        """Seconds until this attempt times out; None without a timeout or deadline."""
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())

    def progress(self, done: float, of: float | None = None, note: str = "") -> None:
        """Say how far it is; shown by `handle.job()` and the command line after the next heartbeat."""
        if self._report is not None:
            self._report(self.job, Progress(done, of, note[:200]))

    def __repr__(self) -> str:
        return f"<Attempt {self.attempt} of {self.task} {self.id}>"


#: The running attempt of this task, thread or process; set by the executor around the function.
running: ContextVar[Attempt] = ContextVar("penstock_attempt")


def current_job() -> Attempt:
    """The attempt that is running here. Raises NoCurrentJob outside of one."""
    try:
        return running.get()
    except LookupError:
        raise NoCurrentJob(
            "current_job() works inside a running task only; outside, keep the handle of the enqueue"
        ) from None
