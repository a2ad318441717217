"""Callbacks of an app for jobs that have succeeded, failed or died: per task, per queue, or for all jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from penstock.client.middleware import Scoped
from penstock.core.job import AttemptError, Job

__all__ = ["Callbacks", "Moment", "OnError", "OnSuccess"]

#: Called with (job, its result). A `def` or an `async def`; its return value is ignored.
OnSuccess = Callable[[Job, Any], object]
#: Called with (job, the error of its last attempt).
OnError = Callable[[Job, AttemptError], object]
Moment = Literal["on_success", "on_failure", "on_dead"]


class Chosen(msgspec.Struct, frozen=True):
    """The callbacks for the jobs of one task in one queue."""

    on_success: tuple[OnSuccess, ...]
    on_failure: tuple[OnError, ...]
    on_dead: tuple[OnError, ...]


class Callbacks:
    """All callbacks of an app, cached per (queue, task)."""

    def __init__(self) -> None:
        self._all: dict[Moment, list[Scoped]] = {"on_success": [], "on_failure": [], "on_dead": []}
        self._found: dict[tuple[str, str], Chosen] = {}
        #: Whether there is any callback; check it before calling `of`.
        self.active = False

    def add(
        self,
        moment: Moment,
        call: Callable[..., object],
        *,
        queue: str | None = None,
        task: str | None = None,
    ) -> None:
        """Register a callback for all jobs, those of one queue, or those of one task."""
        self._all[moment].append(Scoped(call, queue, task))
        self._all[moment].sort(key=lambda one: -one.depth)  # stable: registration order within a depth
        self._found.clear()
        self.active = True

    def of(self, queue: str, task: str) -> Chosen:
        """The callbacks for a task's jobs in a queue: the task's, then the queue's, then the app's."""
        found = self._found.get((queue, task))
        if found is None:
            found = Chosen(*(self._fitting(moment, queue, task) for moment in Chosen.__struct_fields__))
            if len(self._found) < 10_000:  # raw jobs may carry any name: remember a bounded number
                self._found[queue, task] = found
        return found

    def _fitting(self, moment: Any, queue: str, task: str) -> tuple[Callable[..., object], ...]:
        return tuple(one.call for one in self._all[moment] if one.fits(queue, task))
