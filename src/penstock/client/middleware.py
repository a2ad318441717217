"""Middleware: functions that wrap an attempt or rewrite a new job.

Both kinds are plain callables, registered globally, per queue or per task. The first registered is the
outermost; global ones are outside queue ones, and these are outside task ones.

- Around an attempt: `async def timing(job, call): ...; return await call()`. Its return value is the
  attempt's result, and its exception is the attempt's failure. It need not call `call`. It runs on the
  worker's event loop, also for thread and process tasks.
- Around an enqueue: `def stamp(new): return msgspec.structs.replace(new, headers={...})`. The job that it
  returns is stored; an exception is raised to the caller, and nothing is stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from penstock.client.job_checks import check_storable
from penstock.core.errors import ConfigError
from penstock.core.ids import check_id, check_queue
from penstock.core.job import Job, NewJob

__all__ = ["AroundAttempt", "AroundEnqueue", "MiddlewareStack", "Scoped"]

AroundAttempt = Callable[[Job, Callable[[], Awaitable[Any]]], Awaitable[Any]]
AroundEnqueue = Callable[[NewJob], NewJob]


class Scoped(msgspec.Struct, frozen=True):
    """A function to call for all jobs, or only for those of a queue, of a task, or of both."""

    call: Any
    queue: str | None
    task: str | None

    def fits(self, queue: str, task: str) -> bool:
        return (self.queue is None or self.queue == queue) and (self.task is None or self.task == task)

    @property
    def depth(self) -> int:
        return 2 if self.task is not None else 1 if self.queue is not None else 0


class MiddlewareStack:
    """All middleware of an app, cached per (queue, task)."""

    def __init__(self) -> None:
        self._attempts: list[Scoped] = []
        self._enqueues: list[Scoped] = []
        self._found: dict[tuple[str, str], tuple[AroundAttempt, ...]] = {}

    def add_attempt(self, call: AroundAttempt, *, queue: str | None = None, task: str | None = None) -> None:
        """Add middleware around attempts: of all jobs, of one queue, or of one task."""
        self._attempts.append(Scoped(call, queue, task))
        self._attempts.sort(key=lambda m: m.depth)  # stable: registration order within a depth
        self._found.clear()

    def add_enqueue(self, call: AroundEnqueue, *, queue: str | None = None, task: str | None = None) -> None:
        """Add middleware around enqueues: of all jobs, of one queue, or of one task."""
        self._enqueues.append(Scoped(call, queue, task))
        self._enqueues.sort(key=lambda m: m.depth)

    def attempts(self, queue: str, task: str) -> tuple[AroundAttempt, ...]:
        """The middleware around attempts of this task in this queue, outermost first."""
        if not self._attempts:
            return ()
        key = (queue, task)
        found = self._found.get(key)
        if found is None:
            found = tuple(m.call for m in self._attempts if m.fits(queue, task))
            if len(self._found) < 10_000:  # raw jobs may carry any name: remember a bounded number
                self._found[key] = found
        return found

    def rewrite(self, new: NewJob) -> NewJob:
        """Apply the enqueue middleware. Raises ConfigError if the resulting job cannot be stored."""
        rewritten = new
        for scoped in self._enqueues:
            if scoped.fits(rewritten.queue, rewritten.task):
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
