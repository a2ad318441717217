"""Iterates over a job's progress from the producer's side, until the job ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator

from penstock.client.timeouts import WaitLimit, acall_through_outage, call_through_outage, refuse_in_loop
from penstock.core.duration import Duration, milliseconds
from penstock.core.errors import ConfigError, JobNotFound, ResultTimeout
from penstock.core.job import Job, Progress, Ref
from penstock.stores.contract import Store

__all__ = ["ProgressStream"]

#: Minimum interval of questions to the store (ms); workers store progress less often.
_MIN_INTERVAL = 50


class ProgressStream:
    """A job's progress: `for` in a thread, `async for` in an event loop. Ends when the job ends."""

    def __init__(
        self,
        store: Store,
        ref: Ref,
        name: str,
        missing: JobNotFound | None,
        every: Duration,
        timeout: Duration | None,
    ) -> None:
        self._store = store
        self._ref = ref
        self._name = name
        self._missing = missing  # the error to raise if the job does not exist at the start
        self._every = milliseconds(every, what="every")
        self._wait_limit = WaitLimit(timeout)
        if self._every < _MIN_INTERVAL:
            raise ConfigError(
                f"follow_progress(every={every!r}) asks the store too often: use {_MIN_INTERVAL}ms or more"
            )

    def __iter__(self) -> Generator[Progress, None, None]:
        refuse_in_loop("for … in handle.follow_progress()", "async for … in handle.follow_progress()")
        wait_limit, last_shown = self._wait_limit.restarted(), None
        (job,) = call_through_outage(wait_limit, lambda: self._store.sync.get([self._ref]))
        self._refuse_missing(job)
        while job is not None:
            if job.progress not in (None, last_shown):
                yield job.progress
            last_shown = job.progress  # None: a new attempt has started without progress
            if job.ended:
                return
            self._refuse_late(job, wait_limit)
            (job,) = call_through_outage(
                wait_limit,
                lambda: self._store.sync.wait_for_end([self._ref], timeout=min(self._every, wait_limit.left)),
            )

    async def __aiter__(self) -> AsyncGenerator[Progress, None]:
        wait_limit, last_shown = self._wait_limit.restarted(), None
        (job,) = await acall_through_outage(wait_limit, lambda: self._store.get([self._ref]))
        self._refuse_missing(job)
        while job is not None:
            if job.progress not in (None, last_shown):
                yield job.progress
            last_shown = job.progress
            if job.ended:
                return
            self._refuse_late(job, wait_limit)
            (job,) = await acall_through_outage(
                wait_limit,
                lambda: self._store.wait_for_end([self._ref], timeout=min(self._every, wait_limit.left)),
            )

    def _refuse_missing(self, job: Job | None) -> None:
        if job is None and self._missing is not None:
            raise self._missing

    def _refuse_late(self, job: Job, wait_limit: WaitLimit) -> None:
        if wait_limit.over:
            raise ResultTimeout(f"{self._name} has not ended within {wait_limit}: it is {job.state.value}")
