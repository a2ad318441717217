"""One run of a flow: its operations and what ends them, and whether the run waits, goes on or is suspended.

Each operation is compared with what earlier runs have stored of it in the flow's memory.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn, TypeVar

from penstock.app.attempt import Attempt, StepAccess, running
from penstock.core.errors import (
    AttemptLost,
    FlowError,
    FlowMismatch,
    FlowSuspended,
    FlowVersionMismatch,
)
from penstock.core.step_names import VERSION, Identity, split_value
from penstock.core.text import text_of
from penstock.workflows.asked import differ
from penstock.workflows.failures import CutOff, Failures
from penstock.workflows.scopes import GivenUp, Scope, Scopes, Use, this_runner
from penstock.workflows.step_calls import StepCalls
from penstock.workflows.step_memory import LONGEST_WAIT, OLDER_VERSION, Pause, StepMemory, StepPlan

T = TypeVar("T")

#: A wait of at most this (ms) keeps the slot.
SHORT_WAIT = 500
#: Delay (ms) before a run begins again that a timeout has cut off at a point which an earlier run had passed.
_AGAIN = 1_000
#: Turns of the event loop before a flow is suspended, in which new branches can begin.
_TURNS = 5


class StepsFailed(BaseException):
    """Ends the function of a flow that is being undone, when it reaches the point at which it failed."""


#: The flow whose step or undo runs here, and which of the two it is.
within: ContextVar[tuple[StepRun, str] | None] = ContextVar("penstock_within_step", default=None)


class StepRun:
    """One run of a flow. Its methods that wait, or ask the store, are plans, as those of its memory."""

    def __init__(self, attempt: Attempt, access: StepAccess) -> None:
        assert attempt.owner is not None
        self.attempt = attempt
        self.access = access
        self.memory = StepMemory(attempt, access)
        self.scopes = Scopes()
        self.failures = Failures(self.memory, self.scopes)
        self._owner = attempt.owner
        self._version: str | None = None
        self._checked_version: str | None = None
        self._opening = False
        self._used: set[str] = set()  # operations that this run has used
        self._waiting: set[str] = set()  # waits for signals that are open in this run
        #: Coroutines of operations that nobody has awaited yet: each with its name.
        self._unawaited: dict[object, tuple[Coroutine[Any, Any, Any], str]] = {}
        self.active: set[str] = set()  # names of steps that run now
        self.calls = StepCalls(attempt, access)
        self.plans = 0  # operations of the flow that have begun and not ended
        #: Branches of threads that run code of the user now: the flow is not suspended before they wait, too.
        self.occupied: set[Scope] = set()
        self._waits: dict[object, int] = {}  # those of `plans` that wait, each with its delay (ms)
        #: What ends this run, whatever the function or middleware raises.
        self.ending: FlowError | FlowSuspended | None = None
        self.over = False  # the attempt has ended, or its function has

    @property
    def undoes(self) -> str | None:
        """Why this run only undoes, if it was begun for that."""
        return self._owner.undoes

    @property
    def interrupted(self) -> bool:
        """Whether the worker has interrupted this attempt."""
        return self._owner.interrupt is not None

    @property
    def busy(self) -> bool:
        """Whether functions of steps run, including those for which no caller waits any more."""
        return bool(self.active or self.calls.running)

    # ── operations ───────────────────────────────────────────────────────────────────────────────

    def operate(
        self, operation: Identity, body: Callable[[Use], StepPlan[T]], asked: str = ""
    ) -> StepPlan[T]:
        """Run an operation: identify it, compare it with what earlier runs have stored, then run `body`.

        `asked`: its request line (`asked.py`); "" if nothing is to be compared.
        """
        self.check_use(operation)
        use = self.scopes.use(operation)
        begun = False
        try:
            yield from self.read()
            self.check()
            self._begin(use)
            begun = True
            yield from self.failures.store_cuts()
            yield from self._meet(use, asked)
            return (yield from body(use))
        except asyncio.CancelledError as error:
            if type(error) is not CutOff:
                yield from self.cut_off(use, error, asked)
            raise
        finally:
            if begun:
                self.scopes.end(use)

    def check_use(self, what: Identity) -> None:
        """Raise what `check` raises, and FlowError inside a step or outside of the job's context."""
        inside = within.get()
        if inside is not None and inside[0] is self:
            raise FlowError(f"a flow cannot be used inside {inside[1]}: call it in the task's function")
        if running.get(None) is not self.attempt:
            raise FlowError(
                f"{what} is called in a thread or task that does not belong to the job: start threads with "
                "`contextvars.copy_context().run`, or use flow.branches(a=..., b=...)"
            )
        self.check()

    def read(self) -> StepPlan[None]:
        """Read the steps, once, and check the version of the flow."""
        while self._opening:  # another task of the flow reads them
            yield Pause(0.001)
        if self.memory.is_read and self._version == self._checked_version:
            return
        self._opening = True
        try:
            if not self.memory.is_read:
                yield from self.memory.read()
            if self._version is not None:
                yield from self._check_version(self._version)
            self._checked_version = self._version
        finally:
            self._opening = False

    def set_version(self, version: str | None) -> None:
        """Note the version of the code; it is compared before the next operation."""
        if version is None or version == self._version:
            return
        if self._version is not None:
            raise FlowError(f"current_flow(version={version!r}): this run has said {self._version!r} before")
        self._version = version

    def _check_version(self, version: str) -> StepPlan[None]:
        name, given = OLDER_VERSION if self.memory.older else VERSION, version.encode()
        step = self.memory.stored(name)
        if step is None and not self._goes_beyond():
            step = yield from self.memory.record(name, given)
        if step is None or step.value != given:
            began = "without a version" if step is None else f"with version {_text(step.value)!r}"
            self.end_with(FlowVersionMismatch(f"the flow began {began}, and this release has {version!r}"))

    def _goes_beyond(self) -> bool:
        """Whether more is stored than what this run has used: an earlier run has begun the flow."""
        return any(name not in self._used for name in self.memory.operations())

    def _begin(self, use: Use) -> None:
        if self.memory.older:
            use.key = use.older
            if use.operation.kind == "step" and any(
                key.partition("#")[0] == use.operation.name for key in self.active
            ):
                raise FlowError(f"{use.operation} runs already: steps that run at once need their own names")
            return
        try:
            self.scopes.begin(use)
        except FlowError as error:
            self.end_with(error)

    def _meet(self, use: Use, asked: str) -> StepPlan[None]:
        """Compare what is asked with what is stored, and raise a failure or a cut that is stored."""
        memory = self.memory
        self._used.add(use.key)
        if use.key not in memory.touched:
            return
        if (
            memory.older
            or use.operation.kind == "branch"
            or (use.operation.kind == "first" and memory.undoing)
        ):
            return
        for suffix in ("", "!failed", "!cut", "!1") if asked else ():
            step = memory.stored(f"{use.key}{suffix}")
            if step is not None and (suffix != "!1" or use.operation.kind == "gather"):
                self._compare(use, split_value(step.value or b"")[0], asked)
        yield from self.failures.raise_stored(use)

    def _compare(self, use: Use, stored: str, asked: str) -> None:
        why = differ(stored, asked)
        if why is not None:
            self.end_with(
                FlowMismatch(
                    f"the code no longer asks what is stored: {use.operation} ({use.key}): {why}. Give a "
                    'key, say changing=True, or start a version: current_flow(version="2")'
                )
            )

    def cut_off(self, use: Use, error: BaseException, asked: str = "") -> StepPlan[None]:
        """Store that a timeout or cancellation of the code has cut off an operation, for all later runs."""
        if self.interrupted or self.ending is not None or self.over:
            return
        if use.scope.is_given_up or use.scope.is_closed:
            return
        yield from self.read()
        if self.memory.older:
            return
        key = use.key
        if self._has_ended(use) or self.memory.stored(f"{key}!failed") is not None:
            # in an earlier run it was not cut off: this run, which was slower, cannot be continued
            self.end_with(FlowSuspended(_AGAIN))
        yield from self.failures.record_cut(use, error, asked)

    def _has_ended(self, use: Use) -> bool:
        """Whether the answer of an operation is stored; that of a sleep is its end."""
        found = self.memory.stored(use.key)
        if found is None or use.operation.kind != "sleep":
            return found is not None
        return int(self.memory.answer(found) or b"0") <= self.memory.now()

    # ── whether the run may go on ────────────────────────────────────────────────────────────────

    def check(self) -> None:
        """Raise again what ends this run, if something does: the code may have swallowed it."""
        if self.ending is not None:
            raise self.ending
        if self.over:
            raise AttemptLost(
                f"this attempt of job {self.attempt.id} has ended: its flow does nothing more. Await what "
                "the function starts before it returns, in an asyncio.TaskGroup, say"
            )

    def end_with(self, error: FlowError | FlowSuspended) -> NoReturn:
        """End this run with an error that the code cannot swallow. Raises it."""
        self.ending = self.ending or error
        raise self.ending

    def end_unreadable(self, use: Use, error: Exception) -> NoReturn:
        """End this run because this release cannot read a stored value. Raises FlowMismatch."""
        self.end_with(
            FlowMismatch(
                f"the stored value of {use.operation} ({use.key}) no longer fits the code: "
                f"{text_of(error)[:300]}. Drop or replace it: `penstock jobs steps`"
            )
        )

    def reach(self) -> StepPlan[None]:
        """Note that the function goes beyond what is stored; a flow that is being undone ends there.

        Such a flow first waits until its other branches have come as far: their steps are undone, too.
        """
        scope = self.scopes.current()
        if scope.is_closed or (scope.is_given_up and isinstance(this_runner(), threading.Thread)):
            raise GivenUp
        if self.memory.undoing:
            yield from self._await_others(0)
            raise StepsFailed

    def unreached(self, scope: Scope | None = None) -> bool:
        """Whether steps are stored, perhaps those in a scope, that the function has not used in this run."""
        inside = ("",) if scope is None else (f"!step/{scope.path}", "!step/~")  # "~": of a long name
        return any(name not in self._used and name.startswith(inside) for name in self.memory.steps())

    # ── waits ────────────────────────────────────────────────────────────────────────────────────

    def wait_until(self, due: int) -> StepPlan[None]:
        """Wait until this instant: a moment in the slot, or suspended."""
        left = due - self.memory.now()
        if left > SHORT_WAIT:
            yield from self.suspend(left)
        if left > 0:
            yield Pause(left / 1000)

    def suspend(self, delay: int) -> StepPlan[None]:
        """End this run until the flow is resumed. Raises FlowSuspended."""
        yield from self.reach()  # a flow that is being undone does not wait for what it had begun
        yield from self._await_others(delay, and_then=self._withdraw_left)
        raise AssertionError("a suspended run has ended")

    def _withdraw_left(self) -> StepPlan[None]:
        """Withdraw the waits that this run has not reached, and end it."""
        while left := self._left_waits():
            yield from self.memory.forget(left, waiting=True)
            self._check_wait()
        self.end_with(FlowSuspended(min(self._waits.values())))

    def _left_waits(self) -> list[str]:
        """Waits for signals of earlier runs that this run has not reached: their signals go to others."""
        if self.memory.older:
            return []
        return [name for name in self.memory.open_waits() if name not in self._waiting]

    @contextmanager
    def waiting_for(self, key: str) -> Iterator[None]:
        """Keep this wait for a signal open during the block."""
        self._waiting.add(key)
        try:
            yield
        finally:
            self._waiting.discard(key)

    def _await_others(
        self, delay: int, and_then: Callable[[], StepPlan[None]] | None = None
    ) -> StepPlan[None]:
        """Wait until all other operations wait, too; then run `and_then`.

        `delay`: how long (ms) this operation waits for what it has begun.
        """
        wait = object()
        self._waits[wait] = max(0, min(delay, LONGEST_WAIT))
        try:
            yield from self._until_others_wait()
            while and_then is not None and self.failures.has_later_cuts:
                yield from self.failures.store_cuts(all=True)
                yield from self._until_others_wait()  # the code may have gone on meanwhile
            if and_then is not None:
                yield from and_then()
        finally:
            del self._waits[wait]

    def _until_others_wait(self) -> StepPlan[None]:
        # concurrent branches: results of steps must not be lost, nor waits that have yet to be noted
        for _ in range(_TURNS):
            yield Pause(0)
            self._check_wait()
        while self.plans > len(self._waits) or self.calls.running or self._is_occupied():
            yield Pause(None)
            self._check_wait()

    def _check_wait(self) -> None:
        """Raise what `check` raises, and GivenUp if another of `flow.first` has won."""
        self.check()
        if self.scopes.current().is_given_up:
            raise GivenUp

    def _is_occupied(self) -> bool:
        return any(not branch.is_given_up for branch in list(self.occupied))

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Note that no code of the user runs in the branch of this thread during the block."""
        branch = self.scopes.current().branch
        was_busy = branch in self.occupied
        self.occupied.discard(branch)
        try:
            yield
        finally:
            if was_busy:
                self.occupied.add(branch)

    # ── coroutines of operations ─────────────────────────────────────────────────────────────────

    def made(self, token: object, coroutine: Coroutine[Any, Any, Any], what: str) -> None:
        """Note the coroutine of an operation, which must be awaited."""
        self._unawaited[token] = (coroutine, what)

    def awaited(self, token: object) -> None:
        """Note that the coroutine of this token has begun."""
        self._unawaited.pop(token, None)

    def drop(self, coroutine: Any) -> None:
        """Close a coroutine that is not needed."""
        for token, (known, _) in list(self._unawaited.items()):
            if known is coroutine:
                del self._unawaited[token]
        if asyncio.iscoroutine(coroutine):
            coroutine.close()

    def left_over(self) -> str | None:
        """The reason why the function has returned too early; None: it has not."""
        names = sorted(
            what
            for coroutine, what in self._unawaited.values()  # one that is closed was a task, cancelled
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
        )
        for coroutine, _ in self._unawaited.values():
            coroutine.close()  # without Python's warning
        self._unawaited.clear()
        if names:
            return f"{names[0]} was never awaited: write `await flow...`"
        if self.plans:
            return (
                "the function has returned while operations of its flow were running: await what it starts, "
                "in an asyncio.TaskGroup, say"
            )
        return None


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")
