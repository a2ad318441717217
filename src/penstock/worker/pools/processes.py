"""A pool of child processes, for tasks that must be killable or need a core of their own."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.config import Config
from penstock.core.errors import ConfigError
from penstock.core.job import Job, Progress
from penstock.core.text import number
from penstock.worker.logs import log_with_traceback
from penstock.worker.pools.limits import ChildLimits
from penstock.worker.pools.messages import RunJob, WorkerHello
from penstock.worker.pools.process import (
    ChildBroken,
    ChildDied,
    ChildFailed,
    ChildProcess,
    EncodedResult,
    NoChild,
    Work,
)
from penstock.worker.pools.script import main_location, refuse_while_importing

__all__ = ["ChildBroken", "ChildDied", "ChildFailed", "EncodedResult", "NoChild", "ProcessPool"]

_log = logging.getLogger("penstock.worker")

#: After a child that could not start, the next one waits this long, doubling (s).
_FIRST_BACKOFF = 0.5
_LAST_BACKOFF = 30.0
#: After a child for which the system had no resources, the next one waits this long (s).
RETRY_AFTER = 0.5
_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOBUFS}


class ProcessPool:
    """Runs jobs in up to `size` child processes, each one job at a time and many jobs in its life.

    `app` is the app's "module:attribute", if known; else a job's function is looked up in its own module.
    Children start when they are needed. Children are replaced after `max_jobs_per_child` jobs, or when they
    are larger than `max_memory_per_child` bytes after a job (None or 0: no limit). A ticket is the caller's
    key for a job, compared by identity. Use the pool on one event loop, in a thread that lives as long as the
    pool: on Linux a child dies with the thread that started it.
    """

    Encoded = EncodedResult

    def __init__(
        self,
        size: int,
        app: str | None = None,
        *,
        config: Config | None = None,
        max_jobs_per_child: int | None = None,
        max_memory_per_child: int | None = None,
        start_timeout: float = 120.0,
    ) -> None:
        if size < 1:
            raise ConfigError(f"size={size} must be 1 or more")
        if os.name != "posix":
            raise ConfigError("process tasks need a POSIX system; here, use run_in='thread'")
        refuse_while_importing()
        self.size = size
        self._app = app
        self._config = config
        self._limits = ChildLimits(max_jobs_per_child or 0, max_memory_per_child or 0)
        self._start_timeout = start_timeout
        self._children: list[ChildProcess] = []
        self._idle: list[ChildProcess] = []
        self._retired: list[ChildProcess] = []  # asked to end
        self._waiting: deque[Work] = deque()
        self._works: list[Work] = []
        self._starting: set[asyncio.Task[None]] = set()
        self._last_number = 0
        self._failures = 0
        self._broken: ChildBroken | None = None
        self._not_before = 0.0
        self._closed = False

    @property
    def busy(self) -> int:
        """Number of jobs that were given to the pool and have not ended."""
        return len(self._works)

    @property
    def lacks_resources(self) -> bool:
        """Whether the system had no resources for a child just now, and no child is left."""
        no_room = isinstance(self._broken, NoChild) and not self._children
        return no_room and time.monotonic() < self._not_before

    @property
    def pids(self) -> list[int]:
        """The pids of the child processes."""
        return [child.pid for child in self._children]

    async def run(
        self,
        ticket: Any,
        job: Job,
        reference: tuple[str, str],
        *,
        now: int | None = None,
        seconds: float | None = None,
        on_start: Callable[[], None] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> EncodedResult:
        """Run the job in a child and wait for its end.

        `reference` is the module and qualified name of its function, `now` the store's clock, and
        `current_job().remaining()` counts down from `seconds`. `on_start` is called when the function
        starts. Raises ChildFailed if the function raised, ChildDied if the child ended. If the caller is
        cancelled, the child is killed.
        """
        self._last_number += 1
        clock = int(time.time() * 1000) if now is None else now
        order = RunJob(self._last_number, job, *reference, clock, seconds)
        work = Work(ticket, order, asyncio.get_running_loop().create_future(), on_start, on_progress)
        self._works.append(work)
        self._waiting.append(work)
        try:
            self._dispatch()
            return await work.end
        except asyncio.CancelledError:
            self._kill(work)
            raise
        finally:
            self._works.remove(work)

    def kill(self, ticket: Any) -> bool:
        """Kill the job's process; `run` raises ChildDied when it has ended. False: the job has ended."""
        work = self._work_of(ticket)
        if work is None:
            return False
        self._kill(work)
        return True

    def started_at(self, ticket: Any) -> float | None:
        """When (`time.monotonic()`) the function started; None while it waits for its child."""
        work = self._work_of(ticket)
        return None if work is None else work.started

    async def prestart(self, n: int = 1) -> int:
        """Start children until `n` are ready; returns how many there are then (at most `size`)."""
        for _ in range(min(n, self.size) - len(self._children)):
            self._start_child()
        if self._starting:
            await asyncio.wait(set(self._starting))
        return len(self._children)

    def close(self, timeout: float = 2.0) -> None:
        """Kill running jobs; give idle children `timeout` seconds to end, then kill them too."""
        self._closed = True
        for starting in self._starting:
            starting.cancel()
        for work in list(self._works):
            self._kill(work)
        until = time.monotonic() + timeout
        all_children = self._children + self._retired
        for child in all_children:
            child.close_input()
        for child in all_children:
            child.end(max(0.0, until - time.monotonic()))
        self._children, self._idle, self._retired = [], [], []

    # ── dispatch ─────────────────────────────────────────────────────────────────────────────────

    def _dispatch(self) -> None:
        """Give waiting jobs to idle children; start children for the other jobs."""
        while self._waiting and self._idle:
            self._idle.pop().take(self._waiting.popleft())
        missing = min(len(self._waiting) - len(self._starting), self.size - self._alive())
        if missing > 0 and self._broken is not None and time.monotonic() < self._not_before:
            self._refuse(self._broken)
            return
        for _ in range(missing):
            self._start_child()

    def _alive(self) -> int:
        return len(self._children) + len(self._starting)

    def _start_child(self) -> None:
        task = asyncio.get_running_loop().create_task(self._start(), name="penstock-child")
        self._starting.add(task)

    async def _start(self) -> None:
        child = ChildProcess(self._freed, self._died)
        try:
            async with asyncio.timeout(self._start_timeout):
                await child.open(self._hello())
        except (ChildBroken, OSError, RuntimeError, MemoryError) as error:  # a TimeoutError is an OSError
            child.end(0.0)
            self._no_longer_starting()
            self._could_not_start(error if isinstance(error, ChildBroken) else self._as_broken(error))
        except asyncio.CancelledError:
            child.end(0.0)
            raise
        else:
            self._no_longer_starting()
            self._failures, self._broken = 0, None
            self._children.append(child)
            self._freed(child)

    def _as_broken(self, error: OSError | RuntimeError | MemoryError) -> ChildBroken:
        if not isinstance(error, OSError) or error.errno in _NO_ROOM:
            return NoChild(str(error) or type(error).__name__)
        if isinstance(error, TimeoutError):
            return ChildBroken(
                f"its imports and start-up hooks took more than {number(self._start_timeout)} s"
            )
        return ChildBroken(str(error))

    def _no_longer_starting(self) -> None:
        """Remove the current start from `_starting` before its end is reported, so that it is not counted."""
        self._starting = {task for task in self._starting if task is not asyncio.current_task()}

    def _could_not_start(self, error: ChildBroken) -> None:
        if isinstance(error, NoChild):
            if not isinstance(self._broken, NoChild):
                _log.error("a child process %s; its jobs are released, and the start is retried", error.cause)
            self._broken, self._not_before = error, time.monotonic() + RETRY_AFTER
            self._refuse(error)
            return
        wait = min(_LAST_BACKOFF, _FIRST_BACKOFF * 2**self._failures)
        self._failures += 1
        self._broken, self._not_before = error, time.monotonic() + wait
        says = "a child process %s; the next one waits %.3g s"
        log_with_traceback(_log, logging.ERROR, error.traceback, says, error.cause, wait)
        self._refuse(error)

    def _refuse(self, error: ChildBroken) -> None:
        """Fail the waiting jobs because no child can start, unless a living child can take them."""
        if not self._children:
            while self._waiting:
                self._waiting.popleft().fail(error)

    def _hello(self) -> WorkerHello:
        main_module, main_file = main_location()
        return WorkerHello(
            parent=os.getpid(),
            path=list(sys.path),
            argv=list(sys.argv),
            main_module=main_module,
            main_file=main_file,
            app=self._app,
            config=self._config,
        )

    def _kill(self, work: Work) -> None:
        if work in self._waiting:
            self._waiting.remove(work)
            work.fail(ChildDied("killed by its worker before it began", killed=True))
        elif work.child is not None and work.child.work is work:
            work.child.kill()

    def _work_of(self, ticket: Any) -> Work | None:
        return next((work for work in self._works if work.ticket is ticket and not work.end.done()), None)

    # ── events of children ───────────────────────────────────────────────────────────────────────

    def _freed(self, child: ChildProcess) -> None:
        """Give a child that is ready for a job the next one, or retire it at its limits."""
        if child.jobs and self._limits.is_reached(child.jobs, child.pid):
            self._retire(child)
        else:
            self._idle.append(child)
            self._dispatch()

    def _retire(self, child: ChildProcess) -> None:
        """End an idle child, and start its successor, so that the next job need not wait for imports."""
        self._children.remove(child)
        self._retired.append(child)
        child.close_input()
        self._dispatch()
        if not self._closed and self._broken is None and not self._starting and not self._idle:
            self._start_child()

    def _died(self, child: ChildProcess, error: ChildDied) -> None:
        """Remove a child that has ended; its job, if any, has failed already."""
        if child in self._retired:
            self._retired.remove(child)
        if child not in self._children:
            return
        self._children.remove(child)
        if child in self._idle:
            self._idle.remove(child)
            _log.warning("an idle child process (pid %d) died: %s", child.pid, error.cause)
        if self._closed:
            return
        self._dispatch()
        if child.jobs and self._alive() < self.size and not self._starting and not self._idle:
            self._start_child()  # so that the next job need not wait for imports
