"""A pool of child processes, for tasks that must be killable or need a core of their own."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from penstock.config import Config
from penstock.core.errors import ConfigError
from penstock.core.job import Job, Progress
from penstock.core.text import number
from penstock.worker.logs import log_with_traceback
from penstock.worker.pools.call_events import CallEnd, CallWaiter, PoolEvents
from penstock.worker.pools.calls import (
    ChildBroken,
    ChildDied,
    EncodedResult,
    NoChild,
    ProcessCall,
    epoch_of,
)
from penstock.worker.pools.limits import ChildLimits
from penstock.worker.pools.messages import WorkerHello
from penstock.worker.pools.process import ChildProcess, capacity
from penstock.worker.pools.script import main_location, refuse_while_importing

__all__ = ["ProcessPool"]

_log = logging.getLogger("penstock.worker")

#: After a child that could not start, the next one waits this long, doubling (s).
_FIRST_BACKOFF = 0.5
_LAST_BACKOFF = 30.0
#: After a child for which the system had no resources, the next one waits this long (s).
RETRY_AFTER = 0.5
_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOBUFS}
#: Calls are taken back from behind a call that runs for this long (s), and wait this long for a child.
_STUCK = 0.03
#: If at most this many calls fit into a child, each that ends is replaced at once.
_FEW = 8


class ProcessPool:
    """Runs calls in up to `size` child processes, each one call at a time and many calls in its life.

    `app` is the app's "module:attribute", if known; else a job's function is looked up in its own module.
    `table` is the file descriptor of the worker's lease table, in which children mark the start of a call.
    Children start when they are needed. Children are replaced after `max_jobs_per_child` jobs, or when they
    are larger than `max_memory_per_child` bytes after a job (None or 0: no limit). A ticket is the caller's
    key for a call, compared by identity. `nice` is added to the niceness of children, and `cpus` are the
    processors that they may use (none: those of the worker). Use the pool on one event loop, in a thread that
    lives as long as the pool: on Linux a child dies with the thread that started it.
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
        events: PoolEvents | None = None,
        table: int | None = None,
        nice: int = 0,
        cpus: Sequence[int] = (),
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
        self._events = events or PoolEvents()
        self._table = table
        self._nice, self._cpus = nice, tuple(cpus)
        self._children: list[ChildProcess] = []
        self._retired: list[ChildProcess] = []  # asked to end
        self._waiting: deque[ProcessCall] = deque()
        self._calls: dict[int, ProcessCall] = {}  # by the identity of the ticket
        self._awaited: dict[int, CallWaiter] = {}  # by the identity of the call
        self._ends: list[CallEnd] = []
        self._starting: set[asyncio.Task[None]] = set()
        self._last_number = 0
        self._failures = 0
        self._broken: ChildBroken | None = None
        self._not_before = 0.0
        self._closed = False

    @property
    def busy(self) -> int:
        """Number of calls that were given to the pool and have not ended."""
        return len(self._calls)

    @property
    def lacks_resources(self) -> bool:
        """Whether the system had no resources for a child just now, and no child is left."""
        no_room = isinstance(self._broken, NoChild) and not self._children
        return no_room and time.monotonic() < self._not_before

    @property
    def pids(self) -> list[int]:
        """The pids of the child processes."""
        return [child.pid for child in self._children]

    # ── calls ────────────────────────────────────────────────────────────────────────────────────

    def room(self, expected: float | None) -> int:
        """How many calls of this expected duration (s; None: unknown) can be submitted now.

        A child gets further calls only while it has a few milliseconds of expected work.
        """
        room = sum([child.room(expected) for child in self._children])
        return max(0, room + self.size - len(self._children) - len(self._waiting))

    def fetchable(self, expected: float) -> int | None:
        """How many calls of this expected duration (s) to fetch now: if many fit, none while half are there.

        None if calls take longer than a child may have ready, or each child has a call that takes long.
        """
        calls, flowing = len(self._waiting), self.size - len(self._children)
        for child in self._children:
            if not child.stuck:
                calls += len(child.calls)
                flowing += 1
        each = capacity(expected)
        if each < 2 or not flowing:
            return None
        return self.room(expected) if each <= _FEW or 2 * calls <= each * flowing else 0

    def submit(self, call: ProcessCall) -> None:
        """Run this call; its end is reported to `events`, in batches. `dispatch` sends it."""
        self._calls[id(call.ticket)] = call
        self._waiting.append(call)

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
        `current_job().remaining()` counts down from `seconds`. `on_start` is called when the function was
        seen running, at the latest at its end. Raises ChildFailed if the function raised, ChildDied if the
        child ended. If the caller is cancelled, the child is killed.
        """
        epoch = epoch_of(int(time.time() * 1000) if now is None else now)
        call = ProcessCall(ticket, job, reference, epoch, seconds, awaited=True)
        awaited = CallWaiter(asyncio.get_running_loop().create_future(), on_start, on_progress)
        self._awaited[id(call)] = awaited
        try:
            self.submit(call)
            self.dispatch()
            return await awaited.end
        except asyncio.CancelledError:
            self._kill(call)
            raise
        finally:
            del self._awaited[id(call)]
            if self._calls.get(id(ticket)) is call:
                del self._calls[id(ticket)]

    def kill(self, ticket: Any) -> bool:
        """Kill the call's process, or withdraw the call if it has not begun; it ends with ChildDied.

        False: the call has ended.
        """
        call = self._calls.get(id(ticket))
        return call is not None and self._kill(call)

    def started_at(self, ticket: Any) -> float | None:
        """When (`time.monotonic()`) the function started; None if it does not run now."""
        call = self._calls.get(id(ticket))
        if call is None:
            return None
        return call.child.started_at(call) if call.child is not None else call.started or None

    def dispatch(self) -> None:
        """Give waiting calls to children with room, the least loaded first, and start missing children."""
        waiting = self._waiting
        touched: set[ChildProcess] = set()
        while waiting:
            child = self._child_for(waiting[0].expected)
            if child is None:
                break
            self._last_number += 1
            child.give(waiting.popleft(), self._last_number)
            touched.add(child)
        for child in touched:
            child.flush()
        if waiting:
            self._start_missing()

    def watch(self, now: float) -> list[ProcessCall]:
        """Report calls that run, and take back those that wait behind a long one. ProcessCall it often.

        Returns submitted calls that no child can begin soon; they have left the pool.
        """
        back: list[ProcessCall] = []
        for child in (*self._children, *self._retired):
            if not child.calls:
                continue
            known = child.running()
            if known is not None and not known.seen:
                self._report_start(known)
            if now - child.last_end > _STUCK and not child.stuck:
                back += child.take_back()
                child.stuck = bool(child.calls)  # else it has begun none of them: it is slow to come by
        if back:
            self._wait_again(back)
            self.dispatch()
        return self._withdraw(len(self._starting)) if self._waiting and self._children else []

    def take_back(self) -> list[ProcessCall]:
        """Remove and return all submitted calls that have not begun."""
        self._wait_again([call for child in self._children for call in child.take_back()])
        back = self._withdraw(0)
        self.dispatch()
        return back

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
        for call in list(self._calls.values()):
            self._kill(call)
        until = time.monotonic() + timeout
        all_children = self._children + self._retired
        for child in all_children:
            child.close_input()
        for child in all_children:
            child.end(max(0.0, until - time.monotonic()))
        self._children, self._retired = [], []
        self._deliver()

    def _wait_again(self, back: list[ProcessCall]) -> None:
        """Put calls that were taken back before those that wait, in the order in which they were given."""
        back.sort(key=attrgetter("number"))
        self._waiting.extendleft(reversed(back))

    def _withdraw(self, keep: int) -> list[ProcessCall]:
        """Remove waiting calls that nobody awaits, except the first ones, for which children start."""
        waiting = list(self._waiting)
        back = [call for call in waiting[keep:] if not call.awaited]
        if back:
            self._waiting = deque([*waiting[:keep], *(call for call in waiting[keep:] if call.awaited)])
            for call in back:
                del self._calls[id(call.ticket)]
        return back

    def _child_for(self, expected: float | None) -> ChildProcess | None:
        """The least loaded child with room for such a call."""
        best = None
        for child in self._children:
            if (best is None or child.work < best.work) and child.room(expected) > 0:
                best = child
        return best

    def _kill(self, call: ProcessCall) -> bool:
        child = call.child
        if call.over:
            return False
        if child is None:
            self._waiting.remove(call)
            self.ended(call, None, ChildDied("killed by its worker before it began", killed=True))
            self._deliver()
            return True
        stopped, back = child.kill_call(call)
        self._waiting.extendleft(reversed(back))
        if call.child is None:
            self._kill(call)
        if not self._closed:
            self.dispatch()
        return stopped

    # ── children ─────────────────────────────────────────────────────────────────────────────────

    def _start_missing(self) -> None:
        """Start children for waiting calls, or refuse the calls if no child can start now."""
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
        child = ChildProcess(self, self._table, self._limits.jobs)
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
            self.dispatch()

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
                self.ended(self._waiting.popleft(), None, error)
            self._deliver()

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
            nice=self._nice,
            cpus=self._cpus,
        )

    # ── events of children ───────────────────────────────────────────────────────────────────────

    def ended(self, call: ProcessCall, result: EncodedResult | None, error: Exception | None) -> None:
        call.over = True
        if not call.awaited:
            self._calls.pop(id(call.ticket), None)
        self._ends.append((call, result, error))

    def progressed(self, call: ProcessCall, progress: Progress) -> None:
        if not call.seen and call.child is not None:
            call.started = call.child.started_at(call) or time.monotonic()
            self._report_start(call)
        awaited = self._awaited.get(id(call)) if call.awaited else None
        if awaited is None:
            self._events.progressed(call, progress)
        elif awaited.on_progress is not None:
            awaited.on_progress(progress)

    def received(self, child: ChildProcess) -> None:
        """Report the calls that have ended, and give the child, and others, further ones."""
        if child in self._children and child.jobs and self._limits.is_reached(child.jobs, child.pid):
            self._retire(child)
        self._deliver()
        self.dispatch()

    def died(self, child: ChildProcess, error: ChildDied, unstarted: list[ProcessCall]) -> None:
        """Remove a child that has ended; its call, if any, has failed already."""
        self._waiting.extendleft(reversed(unstarted))
        if child in self._retired:
            self._retired.remove(child)
        elif child in self._children:
            self._children.remove(child)
            if not self._ends:
                _log.warning("an idle child process (pid %d) died: %s", child.pid, error.cause)
        self._deliver()
        if self._closed:
            return
        self.dispatch()
        if child.jobs and self._alive() < self.size and not self._starting and not self._has_idle():
            self._start_child()  # so that the next job need not wait for imports

    def _retire(self, child: ChildProcess) -> None:
        """Let a child end, and start its successor, so that the next job need not wait for imports."""
        self._children.remove(child)
        self._retired.append(child)
        self._waiting.extendleft(reversed(child.take_back()))
        child.close_input()
        self.dispatch()
        if not self._closed and self._broken is None and not self._starting and not self._has_idle():
            self._start_child()

    def _has_idle(self) -> bool:
        return any(not child.calls for child in self._children)

    def _report_start(self, call: ProcessCall) -> None:
        call.seen = True
        if not call.awaited:
            self._events.started(call)
        elif (awaited := self._awaited.get(id(call))) is not None and awaited.on_start is not None:
            awaited.on_start()

    def _deliver(self) -> None:
        """Report the calls that have ended since the last time."""
        ends, self._ends = self._ends, []
        batch = [end for end in ends if not end[0].awaited]
        if len(batch) < len(ends):
            for call, result, error in ends:
                if call.awaited:
                    self._end_awaited(call, result, error)
        if batch:
            self._events.ended(batch)

    def _end_awaited(self, call: ProcessCall, result: EncodedResult | None, error: Exception | None) -> None:
        awaited = self._awaited.get(id(call))
        if awaited is None or awaited.end.done():
            return
        if call.started and not call.seen:
            self._report_start(call)
        if error is not None:
            awaited.end.set_exception(error)
        else:
            assert result is not None
            awaited.end.set_result(result)
