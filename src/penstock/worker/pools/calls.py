"""A call of a process task, from its submission to its end, and the errors that it can end with."""

from __future__ import annotations

import math
import time
from typing import Any, Protocol

import msgspec

from penstock.core.job import Job
from penstock.core.outcomes import Outcome, Raised

__all__ = [
    "CallRefused",
    "ChildBroken",
    "ChildDied",
    "ChildFailed",
    "EncodedResult",
    "NoChild",
    "ProcessCall",
]


class EncodedResult(msgspec.Struct, frozen=True):
    """The encoded result of a process task; None if the task keeps no result."""

    result: bytes | None


class ChildFailed(Exception):
    """The function raised in its child; `outcome` is the attempt's outcome."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(_describe(outcome))
        self.outcome = outcome


class CallRefused(Exception):
    """The function was not called, because its job's lease was revoked or is no longer certain."""


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
    large: tuple[int, int] | None = None  #: the place of its arguments in its child's arena


def epoch_of(now: int) -> int:
    """The store's clock (ms) at the monotonic instant 0, if it is `now` at present."""
    return now - int(time.monotonic() * 1000)


def _describe(outcome: Outcome) -> str:
    if isinstance(outcome, Raised):
        return f"{outcome.error.kind}: {outcome.error.message}"
    return str(outcome)
