"""Wrap an attempt; rewrite a new job.

Two kinds, both plain callables, registered globally, per queue or per task; the first registered is
the outermost, global ones outside queue ones outside task ones:

- around an attempt: `async def timing(job, call): ...; return await call()`. What it returns is the
  attempt's result, what it raises is the attempt's failure, and it may do so without calling on.
  It runs on the worker's event loop, also for thread and process tasks.
- around an enqueue: `def stamp(new): return msgspec.structs.replace(new, headers={...})`. What it
  returns is stored; what it raises goes to the caller and nothing is stored.
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
    """Something to call for all jobs, for those of a queue, of a task, or of both."""

    call: Any
    queue: str | None
    task: str | None

    def fits(self, queue: str, task: str) -> bool:
        return (self.queue is None or self.queue == queue) and (self.task is None or self.task == task)

    @property
    def depth(self) -> int:
        return 2 if self.task is not None else 1 if self.queue is not None else 0


class MiddlewareStack:
    """All middleware of an app, looked up per (queue, task) and remembered."""

    def __init__(self) -> None:
        self._attempts: list[Scoped] = []
        self._enqueues: list[Scoped] = []
        self._found: dict[tuple[str, str], tuple[AroundAttempt, ...]] = {}

    def add_attempt(self, call: AroundAttempt, *, queue: str | None = None, task: str | None = None) -> None:
        """Wrap attempts: all, those of one queue, or those of one task."""
        self._attempts.append(Scoped(call, queue, task))
        self._attempts.sort(key=lambda m: m.depth)  # stable: registration order within a depth
        self._found.clear()

    def add_enqueue(self, call: AroundEnqueue, *, queue: str | None = None, task: str | None = None) -> None:
        """Rewrite new jobs: all, those of one queue, or those of one task."""
        self._enqueues.append(Scoped(call, queue, task))
        self._enqueues.sort(key=lambda m: m.depth)

    def attempts(self, queue: str, task: str) -> tuple[AroundAttempt, ...]:
        """What wraps attempts of this task from this queue, outermost first."""
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
        """The job as the enqueue middleware leaves it; ConfigError if that cannot be stored."""
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
    """`call` with all of `around` about it."""
    for one in reversed(around):
        call = _bind(one, job, call)
    return call


def _bind(one: AroundAttempt, job: Job, inner: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    return lambda: one(job, inner)
