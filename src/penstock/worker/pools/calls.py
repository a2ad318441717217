"""A call of a process task, from its submission to its end: what it is, how it can end, who learns of it.

A `ChildProcess` reports to its pool (`ChildEvents`), and the pool reports to its owner in batches, or to the
one who awaits a call (`CallReports`).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec

from penstock.app.attempt import Reported
from penstock.core.job import Job
from penstock.core.outcomes import Outcome, Raised


class EncodedResult(msgspec.Struct, frozen=True):
    """The encoded result of a process task; None if the task keeps no result."""

    result: bytes | None


class ChildFailed(Exception):
    """The function raised in its child; `outcome` is the attempt's outcome."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(_describe(outcome))
        self.outcome = outcome


class CallRefused(Exception):
    """The function was not called: the lease is revoked or no longer certain, or it is too late for it."""


class ChildDied(Exception):
    """The child's process ended during the job. `cause` says how; `killed`: by the worker.

    `stderr` has the last lines that the child wrote there.
    """

    def __init__(self, cause: str, *, killed: bool = False, stderr: str = "") -> None:
        super().__init__(cause)
        self.stderr = stderr
        self.cause = cause
        self.killed = killed


class ChildBroken(ChildDied):
    """The child could not start: its app cannot be imported, or a start-up hook fails."""

    def __init__(self, why: str, traceback: str = "") -> None:
        super().__init__(f"could not start: {why}")
        self.why = why
        self.traceback = traceback


class NoChild(ChildBroken):
    """The system has no descriptors, processes, threads or memory for a child, or none was forked in time.

    The job is not to blame.
    """


class CallHolder(Protocol):
    """The child process that has a call."""

    def started_at(self, call: ProcessCall) -> float | None:
        """When the call's function started; None if it does not run now."""

    def kill_call(self, call: ProcessCall) -> tuple[bool, list[ProcessCall]]:
        """Stop this call; returns whether it is stopped, and the calls that were taken back for that."""
        ...


class ProcessCall(msgspec.Struct, eq=False, gc=False):
    """One call given to the pool, until its end.

    The garbage collector does not track it, because thousands are made each second: the pool drops the
    references to its child and its ticket when it ends.
    """

    ticket: Any
    job: Job
    reference: tuple[str, str]
    epoch: int  #: the store's clock (ms) when `time.monotonic()` was 0
    seconds: float | None = None
    until: float = math.inf  #: `clock.lease_seconds()` until which it may start
    entry: tuple[int, int] | None = None  #: slot and number in the worker's lease table
    expected: float | None = None  #: seconds that it is expected to take; None: unknown
    awaited: bool = False  #: `ProcessPool.run` waits for it: it does not leave the pool before its end
    number: int = 0  #: of its last dispatch
    given: float = 0.0  #: monotonic: when that was
    cost: float = 0.0  #: seconds that it counts for in its child's load
    child: CallHolder | None = None
    started: float = 0.0  #: monotonic: when its function started; 0: not yet, as far as known
    took: float = 0.0  #: seconds that the function ran
    spent: float = 0.0  #: seconds that it kept its child busy; 0: unknown
    seen: bool = False  #: its start was reported
    over: bool = False
    was_claimed: bool = False  #: a child had claimed it and died before it began
    step: bool = False  #: of a durable step of the job, whose function it is
    large: tuple[int, int] | None = None  #: the place of its arguments in its child's arena


def epoch_of(now: int) -> int:
    """The store's clock (ms) at the monotonic instant 0, if it is `now` at present."""
    return now - int(time.monotonic() * 1000)


def _describe(outcome: Outcome) -> str:
    if isinstance(outcome, Raised):
        return f"{outcome.error.kind}: {outcome.error.message}"
    return str(outcome)


# ── what a pool reports of its calls ─────────────────────────────────────────────────────────────

#: A call that has ended: the call, its result, its error.
CallEnd = tuple[ProcessCall, EncodedResult | None, Exception | None]


class PoolEvents:
    """Receives the events of submitted calls; this one ignores them."""

    def started(self, call: ProcessCall) -> None:
        """A call was seen running; `call.started` is set. A short call may be reported as ended only."""

    def progressed(self, call: ProcessCall, progress: Reported) -> None:
        """A call has reported progress, or logged a line."""

    def lease_end(self, call: ProcessCall) -> float:
        """`clock.lease_seconds()` until which the call may start, now that it is dispatched."""
        return call.until

    def ended(self, batch: list[CallEnd]) -> None:
        """These calls have ended."""


class CallWaiter:
    """What `run` waits for."""

    __slots__ = ("end", "on_progress", "on_start")

    def __init__(
        self,
        end: asyncio.Future[EncodedResult],
        on_start: Callable[[], object] | None,
        on_progress: Callable[[Reported], None] | None,
    ) -> None:
        self.end = end
        self.on_start = on_start
        self.on_progress = on_progress


class CallReports:
    """Passes events on: to `events`, or to the waiter of an awaited call."""

    def __init__(self, events: PoolEvents) -> None:
        self._events = events
        #: The waiters, by the identity of the call.
        self.awaited: dict[int, CallWaiter] = {}
        #: Calls that have ended since the last `deliver`.
        self.ends: list[CallEnd] = []

    def started(self, call: ProcessCall) -> None:
        """Report that the call was seen running."""
        call.seen = True
        if not call.awaited:
            self._events.started(call)
        elif (waiter := self.awaited.get(id(call))) is not None and waiter.on_start is not None:
            waiter.on_start()

    def progressed(self, call: ProcessCall, progress: Reported) -> None:
        """Report the call's progress, or a line of its log."""
        waiter = self.awaited.get(id(call)) if call.awaited else None
        if waiter is None:
            self._events.progressed(call, progress)
        elif waiter.on_progress is not None:
            waiter.on_progress(progress)

    def deliver(self) -> None:
        """Report the calls that have ended since the last time."""
        ends, self.ends = self.ends, []
        batch = [end for end in ends if not end[0].awaited]
        if len(batch) < len(ends):
            for call, result, error in ends:
                if call.awaited:
                    self._end_awaited(call, result, error)
        if batch:
            self._events.ended(batch)

    def _end_awaited(self, call: ProcessCall, result: EncodedResult | None, error: Exception | None) -> None:
        waiter = self.awaited.get(id(call))
        if waiter is None or waiter.end.done():
            return
        if call.started and not call.seen:
            self.started(call)
        if error is not None:
            waiter.end.set_exception(error)
        else:
            assert result is not None
            waiter.end.set_result(result)


# ── what a child process reports to its pool ─────────────────────────────────────────────────────

_Child = TypeVar("_Child", contravariant=True)


class ChildEvents(Protocol[_Child]):
    """Receives the events of child processes."""

    def ended(self, call: ProcessCall, result: EncodedResult | None, error: Exception | None) -> None:
        """A call has ended."""

    def progressed(self, call: ProcessCall, progress: Reported) -> None:
        """A call has reported progress, or logged a line."""

    def received(self, child: _Child) -> None:
        """All messages that had arrived from this child have been handled."""

    def died(self, child: _Child, error: ChildDied, unstarted: list[ProcessCall]) -> None:
        """The process has ended; these calls never began. The call that ran has ended before."""
