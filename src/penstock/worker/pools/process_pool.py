"""A pool of child processes, for tasks that must be killable or need a core of their own."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from penstock.app.attempt import Reported
from penstock.core import clock
from penstock.core.errors import ConfigError
from penstock.core.job import Job
from penstock.worker.pools.calls import (
    CallRefused,
    CallReports,
    CallWaiter,
    ChildBroken,
    ChildDied,
    EncodedResult,
    NoChild,
    PoolEvents,
    ProcessCall,
    epoch_of,
)
from penstock.worker.pools.child_group import ChildGroup, ChildOptions, resident
from penstock.worker.pools.child_process import ChildProcess, capacity
from penstock.worker.pools.fork_starter import ForkStarter
from penstock.worker.pools.host import refuse_while_importing
from penstock.worker.pools.starters import ChildStarter, SpawnStarter, StartFailures, can_fork, worker_hello

_log = logging.getLogger("penstock.worker")

#: Calls are taken back from behind a call that runs for this long (s), and wait this long for a child.
_STUCK = 0.03
#: Calls that have been ready for this long (s) are placed again; if a child is idle, those for _SHARED.
_LAIN, _SHARED = 0.04, 0.02
#: If at most this many calls fit into a child, each that ends is replaced at once.
_FEW = 8
_DEFAULTS = ChildOptions()


class ProcessPool:
    """Runs calls in up to `size` child processes, each one call at a time and many calls in its life.

    `app` is the app's "module:attribute", if known; else a job's function is looked up in its own module.
    `table` is the file descriptor of the worker's lease table, in which children mark the start of a call.
    Children start when they are needed. A ticket is the caller's key for a call, compared by identity. Use
    the pool on one event loop, in a thread that lives as long as the pool: on Linux a child dies with the
    thread that started it.
    """

    Encoded = EncodedResult

    def __init__(
        self,
        size: int,
        app: str | None = None,
        options: ChildOptions = _DEFAULTS,
        *,
        events: PoolEvents | None = None,
        table: int | None = None,
    ) -> None:
        if size < 1:
            raise ConfigError(f"size={size} must be 1 or more")
        if os.name != "posix":
            raise ConfigError("process tasks need a POSIX system; here, use run_in='thread'")
        refuse_while_importing()
        self.size = size
        self._app = app
        self._options, self._spares = options, options.spares
        self._limits = options.limits
        self._events = events or PoolEvents()
        self._table = table
        self._starter: ChildStarter = SpawnStarter()
        if options.start != "spawn" and can_fork():
            self._starter = ForkStarter(preload=options.start == "preload")
        self._group = ChildGroup(size)
        self._waiting: deque[ProcessCall] = deque()
        self._calls: dict[int, ProcessCall] = {}  # by the identity of the ticket
        self._reports = CallReports(self._events)
        self._starting: set[asyncio.Task[None]] = set()
        self._last_number = 0
        self._lead = 0.0  # how long (s) before its child's last call a successor is started
        self._failures = StartFailures(options.start_timeout)
        self._undispatched = False  # whether calls were submitted since the last dispatch
        self._dispatching = False  # whether a dispatch follows in this turn of the loop
        self._closed = False

    @property
    def busy(self) -> int:
        """Number of calls that were given to the pool and have not ended."""
        return len(self._calls)

    @property
    def lacks_resources(self) -> bool:
        """Whether no child could start just now, and none is left."""
        return not self._group.active and self._failures.reason_to_wait() is not None

    @property
    def pids(self) -> list[int]:
        """The pids of the child processes."""
        return [child.pid for child in self._group.active]

    # ── calls ────────────────────────────────────────────────────────────────────────────────────

    def room(self, expected: float | None, size: float = 0.0) -> int:
        """How many calls of this expected duration (s; None: unknown) and size (bytes) can be submitted now.

        A child gets further calls only while it has a few milliseconds of expected work.
        """
        children, missing = self._group.places()
        room = sum([child.room(expected, size) for child in children])
        return max(0, room + missing - len(self._waiting))

    def fetchable(self, expected: float, size: float = 0.0) -> int | None:
        """How many calls of this expected duration (s) and size (bytes) to fetch now.

        If many fit into each child, none are fetched while half of them are there.

        None if calls take longer than a child may have ready, or each child has a call that takes long.
        """
        children, flowing = self._group.places()
        calls = len(self._waiting)
        for child in children:
            if not child.stuck:
                calls += len(child.calls)
                flowing += 1
        each = capacity(expected, size)
        if each < 2 or not flowing:
            return None
        return self.room(expected, size) if each <= _FEW or 2 * calls <= each * flowing else 0

    def submit(self, call: ProcessCall) -> None:
        """Run this call; its end is reported to `events`, in batches. `dispatch` sends it."""
        self._calls[id(call.ticket)] = call
        self._waiting.append(call)
        self._undispatched = True

    async def run(
        self,
        ticket: Any,
        job: Job,
        reference: tuple[str, str],
        *,
        now: int | None = None,
        seconds: float | None = None,
        step: bool = False,
        on_start: Callable[[], object] | None = None,
        on_progress: Callable[[Reported], None] | None = None,
    ) -> EncodedResult:
        """Run the job in a child and wait for its end.

        `reference` is the module and qualified name of its function (`step`: that of a durable step, whose
        answer is the result), `now` the store's clock, and
        `current_job().remaining()` counts down from `seconds`. `on_start` is called when the function was
        seen running, at the latest at its end. Raises ChildFailed if the function raised, ChildDied if the
        child ended. If the caller is cancelled, the child is killed.
        """
        epoch = epoch_of(int(time.time() * 1000) if now is None else now)
        call = ProcessCall(ticket, job, reference, epoch, seconds, awaited=True, step=step)
        awaited = CallWaiter(asyncio.get_running_loop().create_future(), on_start, on_progress)
        self._reports.awaited[id(call)] = awaited
        try:
            self.submit(call)
            self.dispatch()
            return await awaited.end
        except asyncio.CancelledError:
            self._kill(call)
            raise
        finally:
            del self._reports.awaited[id(call)]
            if self._calls.get(id(ticket)) is call:
                del self._calls[id(ticket)]

    def kill(self, ticket: Any) -> bool:
        """Kill the call's process, or withdraw the call if it has not begun; it ends with ChildDied.

        False: the call has ended.
        """
        call = self._calls.get(id(ticket))
        return call is not None and self._kill(call)

    def withdraw(self, ticket: Any) -> bool:
        """End the call with ChildDied if no child has it yet; False if one has, or it has ended."""
        call = self._calls.get(id(ticket))
        return call is not None and call.child is None and self._kill(call)

    def started_at(self, ticket: Any) -> float | None:
        """When (`time.monotonic()`) the function started; None if it does not run now."""
        call = self._calls.get(id(ticket))
        if call is None:
            return None
        return call.child.started_at(call) if call.child is not None else call.started or None

    def dispatch(self) -> None:
        """Give waiting calls to children with room, the least loaded first, and start missing children."""
        self._dispatching = self._undispatched = False
        waiting, now, lease_now = self._waiting, time.monotonic(), clock.lease_seconds()
        touched: set[ChildProcess] = set()
        while waiting:
            call = waiting[0]
            call.until = self._events.lease_end(call)
            if call.until <= lease_now:
                self.ended(waiting.popleft(), None, CallRefused("its lease ended before it began"))
                continue
            child = self._group.least_loaded(call.expected)
            if child is None:
                break
            self._last_number += 1
            child.give(waiting.popleft(), self._last_number, now)
            touched.add(child)
        for child in touched:
            child.flush()
            if self._limits.jobs:
                self._prepare_successor(child)
        if self._spares and touched:
            self._keep_spares()
        if self._reports.ends:
            asyncio.get_running_loop().call_soon(self._reports.deliver)
        if waiting:
            self._start_missing()

    def watch(self, now: float) -> list[ProcessCall]:
        """Report calls that run, and take back those that lie ready for too long. Call it often.

        Returns submitted calls that no child can begin soon; they have left the pool.
        """
        back: list[ProcessCall] = []
        for child in (*self._group.active, *self._group.retired):
            if not child.calls:
                continue
            known = child.running()
            if known is not None and not known.seen:
                self._reports.started(known)
            if child.stuck:
                continue
            if now - child.last_end > _STUCK:
                back += child.take_back()
                child.stuck = bool(child.calls)  # else it has begun none of them: it is slow to come by
            elif child.lies_for(now) > _LAIN:
                back += _slow(child)
        self._wait_again(back)
        if back or self._dispatching or self._undispatched:
            self.dispatch()
        return self._withdraw(len(self._starting)) if self._waiting else []

    def take_back(self) -> list[ProcessCall]:
        """Remove and return all submitted calls that have not begun."""
        self._wait_again([call for child in self._group.active for call in child.take_back()])
        back = self._withdraw(0)
        self.dispatch()
        return back

    async def prestart(self, n: int = 1) -> int:
        """Start children until `n` are ready; returns how many there are then (at most `size`)."""
        for _ in range(min(n, self.size) - len(self._group.active)):
            self._start_child()
        if self._starting:
            await asyncio.wait(set(self._starting))
        return len(self._group.active)

    def close(self, timeout: float = 2.0) -> None:
        """Kill running jobs; give idle children `timeout` seconds to end, then kill them too."""
        self._closed = True
        for starting in self._starting:
            starting.cancel()
        for call in list(self._calls.values()):
            self._kill(call)
        until = time.monotonic() + timeout
        all_children = [*self._group.active, *self._group.retired]
        for child in all_children:
            child.close_input()
        for child in all_children:
            child.end(max(0.0, until - time.monotonic()))
        self._group.clear()
        self._starter.close()
        self._reports.deliver()

    def _wait_again(self, back: Iterable[ProcessCall]) -> None:
        """Put calls that were taken back before those that wait, in the order in which they were given."""
        self._waiting.extendleft(sorted(back, key=attrgetter("number"), reverse=True))

    def _share(self) -> None:
        """Give calls that lie ready behind others to the child that has become idle."""
        now = time.monotonic()
        back = [
            call for child in self._group.active if child.lies_for(now) > _SHARED for call in _slow(child)
        ]
        if back:
            self._wait_again(back)
            self.dispatch()

    def _withdraw(self, keep: int) -> list[ProcessCall]:
        """Remove waiting calls that nobody awaits, except the first ones, for which children start."""
        waiting = list(self._waiting)
        back = [call for call in waiting[keep:] if not call.awaited]
        if back:
            self._waiting = deque([*waiting[:keep], *(call for call in waiting[keep:] if call.awaited)])
            for call in back:
                del self._calls[id(call.ticket)]
        return back

    def _kill(self, call: ProcessCall) -> bool:
        child = call.child
        if call.over:
            return False
        if child is None:
            self._waiting.remove(call)
            self.ended(call, None, ChildDied("killed by its worker before it began", killed=True))
            self._reports.deliver()
            return True
        stopped, back = child.kill_call(call)
        self._wait_again(back)
        if call.child is None:
            self._kill(call)
        self._dispatch_soon()
        return stopped

    def _dispatch_soon(self) -> None:
        """Dispatch once in this turn of the loop, however many calls are killed in it."""
        if not self._closed and not self._dispatching:
            self._dispatching = True
            asyncio.get_running_loop().call_soon(self._dispatch_if_due)

    def _dispatch_if_due(self) -> None:
        if self._dispatching and not self._closed:
            self.dispatch()

    # ── children ─────────────────────────────────────────────────────────────────────────────────

    def _start_missing(self) -> None:
        """Start children for waiting calls, or refuse the calls if no child can start now."""
        missing = min(len(self._waiting) - len(self._starting), self.size - self._alive())
        if missing > 0 and (error := self._failures.reason_to_wait()) is not None:
            self._refuse(None, error)
            return
        for _ in range(missing):
            self._start_child()

    def _alive(self) -> int:
        return len(self._group.active) + len(self._starting)

    def _start_child(self) -> None:
        task = asyncio.get_running_loop().create_task(self._start(), name="penstock-child")
        self._starting.add(task)

    async def _start(self) -> None:
        child, options = ChildProcess(self, self._table, self._limits.jobs), self._options
        hello = worker_hello(self._app, options.config, options.nice, options.cpus)
        began = time.monotonic()
        try:
            async with asyncio.timeout(options.start_timeout):
                await child.open(hello, self._starter)
        except (ChildBroken, OSError, RuntimeError, MemoryError) as error:  # a TimeoutError is an OSError
            child.end(0.0)
            self._no_longer_starting()
            broken = self._failures.note(error)
            charged = None if isinstance(broken, NoChild) else broken
            self._refuse(charged, NoChild(broken.why, broken.traceback))
        except asyncio.CancelledError:
            child.end(0.0)
            self._no_longer_starting()
            raise
        else:
            self._no_longer_starting()
            self._failures.clear()
            self._lead = 2 * (time.monotonic() - began)
            self._group.active.append(child)
            self.dispatch()
            if not child.calls:
                self._share()
            if self._spares:
                self._keep_spares()

    def _no_longer_starting(self) -> None:
        """Remove the current start from `_starting` before its end is reported, so that it is not counted."""
        self._starting = {task for task in self._starting if task is not asyncio.current_task()}

    def _refuse(self, charged: ChildBroken | None, others: NoChild) -> None:
        """End waiting calls because no child can start now, unless a living child can take them.

        A failed start is charged to the call that it was for, and to no other. As many calls as there are
        children starting go on waiting; the others are released.
        """
        if self._group.active:
            return
        if charged is not None and self._waiting:
            self.ended(self._waiting.popleft(), None, charged)
        while len(self._waiting) > len(self._starting):
            self.ended(self._waiting.pop(), None, others)
        self._reports.deliver()

    # ── events of children ───────────────────────────────────────────────────────────────────────

    def ended(self, call: ProcessCall, result: EncodedResult | None, error: Exception | None) -> None:
        call.over = True
        if not call.awaited:
            self._calls.pop(id(call.ticket), None)
        self._reports.ends.append((call, result, error))

    def progressed(self, call: ProcessCall, progress: Reported) -> None:
        if not call.seen and call.child is not None:
            call.started = call.child.started_at(call) or time.monotonic()
            self._reports.started(call)
        self._reports.progressed(call, progress)

    def received(self, child: ChildProcess) -> None:
        """Report the calls that have ended, and give the child, and others, further ones."""
        if self._limits.any and child.jobs and child in self._group.active:
            size = self._limits.memory and resident(child.pid)
            if self._limits.is_reached(child.jobs, size):
                self._retire(child)
            else:
                self._prepare_successor(child, size)
        self._reports.deliver()
        self.dispatch()
        if not child.calls and child in self._group.active:
            self._share()

    def died(self, child: ChildProcess, error: ChildDied, unstarted: list[ProcessCall]) -> None:
        """Remove a child that has ended; its call, if any, has failed already."""
        self._wait_again(unstarted)
        if child in self._group.retired:
            self._group.retired.remove(child)
        elif child in self._group.active:
            self._group.active.remove(child)
            if not self._reports.ends:
                _log.warning("an idle child process (pid %d) died: %s", child.pid, error.cause)
        self._reports.deliver()
        if self._closed:
            return
        self.dispatch()
        if child.jobs and self._alive() < self.size and not self._starting and not self._group.has_idle():
            self._start_child()  # so that the next job need not wait for imports
        if self._spares:
            self._keep_spares()

    def _prepare_successor(self, child: ChildProcess, size: int = 0) -> None:
        """Start the successor of a child that is close to its limits, so that it is ready in time."""
        if child.has_successor or not self._limits.is_near(child, size, self._lead):
            return
        if self._may_add_child(child):
            child.has_successor = True
            self._start_child()

    def _may_add_child(self, beside: ChildProcess) -> bool:
        """Whether a child may start that has no call yet."""
        return not (self._closed or self._failures.any or self._starting or self._group.has_idle(beside))

    def _keep_spares(self) -> None:
        """Start a child if fewer are ready than `spares`."""
        busy = sum([1 for child in self._group.active if child.calls])
        if self._alive() < busy + self._spares and not (self._closed or self._failures.any or self._starting):
            self._start_child()

    def _retire(self, child: ChildProcess) -> None:
        """Let a child end, and start its successor if that has not started."""
        self._group.active.remove(child)
        self._group.retired.append(child)
        self._wait_again(child.take_back())
        child.close_input()
        self.dispatch()
        if self._alive() < self.size and self._may_add_child(child):
            self._start_child()


def _slow(child: ChildProcess) -> list[ProcessCall]:
    """Take back what the child has not begun; its last calls show how long these take."""
    back = child.take_back()
    for call in back:
        if call.expected is not None:
            call.expected = max(call.expected, child.pace)
    return back
