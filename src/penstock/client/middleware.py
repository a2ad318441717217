"""Middleware: functions that wrap an attempt or rewrite a new job; and callbacks for ends of jobs.

Both kinds of middleware are plain callables, registered globally, per queue or per task. The first registered
is the outermost; global ones are outside queue ones, and these are outside task ones.

- Around an attempt: `async def timing(job, call): ...; return await call()`. Its return value is the
  attempt's result, and its exception is the attempt's failure. It need not call `call`. It runs on the
  worker's event loop, also for thread and process tasks.
- Around an enqueue: `def stamp(new): return msgspec.structs.replace(new, headers={...})`. The job that it
  returns is stored; an exception is raised to the caller, and nothing is stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec

from penstock.client.job_checks import check_storable
from penstock.core.errors import ConfigError
from penstock.core.ids import check_id, check_queue
from penstock.core.job import AttemptError, Job, NewJob

AroundAttempt = Callable[[Job, Callable[[], Awaitable[Any]]], Awaitable[Any]]
AroundEnqueue = Callable[[NewJob], NewJob]


class Scoped(msgspec.Struct, frozen=True):
    """A function to call for all jobs, or only for those of a queue, of a task, or of both."""

    call: Any
    queue: str | None
    task: str | None

    def fits(self, queue: str, task: str, names: Mapping[str, str]) -> bool:
        """Whether it is for jobs of this task in this queue. `names`: new names by former."""
        if self.queue is not None and self.queue != queue:
            return False
        return self.task is None or names.get(self.task, self.task) == names.get(task, task)

    @property
    def depth(self) -> int:
        return 2 if self.task is not None else 1 if self.queue is not None else 0


class MiddlewareStack:
    """All middleware of an app, cached per (queue, task)."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._attempts: list[Scoped] = []
        self._enqueues: list[Scoped] = []
        self._cache: dict[tuple[str, str], tuple[AroundAttempt, ...]] = {}

    def add_attempt(self, call: AroundAttempt, *, queue: str | None = None, task: str | None = None) -> None:
        """Add middleware around attempts: of all jobs, of one queue, or of one task."""
        self._attempts.append(Scoped(call, queue, task))
        self._attempts.sort(key=lambda m: m.depth)  # stable: registration order within a depth
        self._cache.clear()

    def add_enqueue(self, call: AroundEnqueue, *, queue: str | None = None, task: str | None = None) -> None:
        """Add middleware around enqueues: of all jobs, of one queue, or of one task."""
        self._enqueues.append(Scoped(call, queue, task))
        self._enqueues.sort(key=lambda m: m.depth)

    def rename(self, former: Iterable[str], name: str) -> None:
        """Make these former names of a task mean the task, wherever they are given."""
        self._names.update(dict.fromkeys(former, name))
        self._cache.clear()

    def attempts(self, queue: str, task: str) -> tuple[AroundAttempt, ...]:
        """The middleware around attempts of this task in this queue, outermost first."""
        if not self._attempts:
            return ()
        key = (queue, task)
        found = self._cache.get(key)
        if found is None:
            found = tuple(m.call for m in self._attempts if m.fits(queue, task, self._names))
            if len(self._cache) < 10_000:  # raw jobs may carry any name: remember a bounded number
                self._cache[key] = found
        return found

    def rewrite(self, new: NewJob) -> NewJob:
        """Apply the enqueue middleware. Raises ConfigError if the resulting job cannot be stored."""
        rewritten = new
        for scoped in self._enqueues:
            if scoped.fits(rewritten.queue, rewritten.task, self._names):
                rewritten = scoped.call(rewritten)
                if not isinstance(rewritten, NewJob):
                    raise ConfigError(
                        f"a middleware around enqueues returned {rewritten!r:.100} instead of a NewJob"
                    )
        if rewritten is not new:
            check_id(rewritten.id)
            check_queue(rewritten.queue)
            check_storable(rewritten, "a middleware around enqueues")
        return rewritten


def wrap(
    around: tuple[AroundAttempt, ...], job: Job, call: Callable[[], Awaitable[Any]]
) -> Callable[[], Awaitable[Any]]:
    """`call` wrapped in all functions of `around`."""
    for one in reversed(around):
        call = _bind(one, job, call)
    return call


def _bind(one: AroundAttempt, job: Job, inner: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    return lambda: one(job, inner)


# ── callbacks ────────────────────────────────────────────────────────────────────────────────────

# Of an app for jobs that have succeeded, failed or died: per task, per queue, or for all jobs.


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
        self._cache: dict[tuple[str, str], Chosen] = {}
        self._names: dict[str, str] = {}
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
        self._cache.clear()
        self.active = True

    def rename(self, former: Iterable[str], name: str) -> None:
        """Make these former names of a task mean the task, wherever they are given."""
        self._names.update(dict.fromkeys(former, name))
        self._cache.clear()

    def of(self, queue: str, task: str) -> Chosen:
        """The callbacks for a task's jobs in a queue: the task's, then the queue's, then the app's."""
        found = self._cache.get((queue, task))
        if found is None:
            found = Chosen(*(self._fitting(moment, queue, task) for moment in Chosen.__struct_fields__))
            if len(self._cache) < 10_000:  # raw jobs may carry any name: remember a bounded number
                self._cache[queue, task] = found
        return found

    def _fitting(self, moment: Any, queue: str, task: str) -> tuple[Callable[..., object], ...]:
        return tuple(one.call for one in self._all[moment] if one.fits(queue, task, self._names))
