"""Failures of operations: stored, raised again in later runs, forgotten if the attempt ends with them.

A *cut* is the end of an operation that a timeout or cancellation of the code has cut off. It is stored as
failures are, so that each run takes the same way.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable
from types import WrapperDescriptorType
from typing import Any, NamedTuple

import msgspec

from penstock.core.errors import StepFailed
from penstock.core.portable import made_again
from penstock.core.step_names import split_value, with_head
from penstock.core.text import text_of
from penstock.stores.contract import StoredStep
from penstock.workflows.scopes import Scopes, Use
from penstock.workflows.step_memory import Pause, StepMemory, StepPlan

#: Maximum length of an error's text, or of a value as text (characters); maximum number of its arguments, and
#: of its attributes; maximum size of one of them (bytes of JSON).
_LONGEST, _MOST, _LARGEST = 2_000, 20, 900_000
#: Extra time (s) that a cut in a task of its own waits for the timeout of the code around it.
_CUT_GRACE = 2


class CutOff(TimeoutError, asyncio.CancelledError):
    """An operation was cut off in an earlier run, by a timeout of the code around it, or by a cancellation.

    The class is both errors, so that the code catches it at the same place as in that run.
    """


class _Raised(NamedTuple):
    """A stored failure, or a cut, that was raised in this run as `error`.

    `calls`: number of operations that this run had called by then.
    """

    error: BaseException
    use: Use
    cut: bool
    calls: int


class _LaterCut(NamedTuple):
    """A cut that is stored once the code goes on. `calls`: as in `_Raised`."""

    use: Use
    value: bytes
    calls: int


class Failures:
    """The failures and cuts that were raised in this run.

    A cut in a task of the code's own is stored once the code goes on. If a group cuts off its tasks because
    one has failed, its error ends the attempt, and the next one tries all of them again: were it stored at
    once, a process that dies before that would leave a task that its group takes for one that was cancelled.
    """

    def __init__(self, memory: StepMemory, scopes: Scopes) -> None:
        self._memory = memory
        self._scopes = scopes
        self._begun = time.monotonic()
        self._raised: list[_Raised] = []
        self._later: dict[str, _LaterCut] = {}

    def record(self, use: Use, asked: str, error: Exception) -> StepPlan[None]:
        """Store the failure of an operation, before it is raised."""
        if self._memory.older:
            return
        yield from self._memory.record(f"{use.key}!failed", with_head(asked, stored_failure(error)))
        self._note(error, use, cut=False)

    def record_cut(self, use: Use, error: BaseException, asked: str) -> StepPlan[None]:
        """Store that an operation was cut off, by this error; in a task of the code's own, see above."""
        value = with_head(asked, b"%d" % self._age())
        if use.runner is use.scope.branch.runner:
            yield from self._memory.record(f"{use.key}!cut", value)
        else:
            self._later[use.key] = _LaterCut(use, value, self._scopes.calls)
        self._note(error, use, cut=True)

    @property
    def has_later_cuts(self) -> bool:
        """Whether cuts are not stored yet."""
        return bool(self._later)

    def store_cuts(self, *, all: bool = False) -> StepPlan[None]:
        """Store the cuts after which the code has gone on, or all."""
        for key, one in list(self._later.items()):
            if (all or self._scopes.went_on(one.use, one.calls)) and key in self._later:
                del self._later[key]
                yield from self._memory.record(f"{key}!cut", one.value)

    def raise_stored(self, use: Use) -> StepPlan[None]:
        """Raise the failure, or the cut, of an operation that an earlier run has stored."""
        cut = self._memory.stored(f"{use.key}!cut")
        failed = self._memory.stored(f"{use.key}!failed")
        error: BaseException
        if cut is not None:
            if use.runner is not use.scope.branch.runner:  # what has started the task cuts it off again
                yield Pause(max(0, _number(cut) - self._age()) / 1000 + _CUT_GRACE)
            error = _cut_again(use)
        elif failed is not None:
            error = read_failure(split_value(failed.value or b"")[1], str(use.operation))
            error.add_note(f"{use.operation} has failed in an earlier run: this is its error again")
        else:
            return
        self._note(error, use, cut=cut is not None)
        raise error

    def raise_cut(self, uses: Iterable[Use]) -> None:
        """Raise the cut of the pieces of `branches`, or of `first`, if an earlier run has stored it."""
        cut = [use for use in uses if self._memory.stored(f"{use.key}!cut") is not None]
        if cut:
            error = _cut_again(cut[0])
            for use in cut:
                self._note(error, use, cut=True)
            raise error

    def has_raised(self, error: BaseException) -> bool:
        """Whether this is the stored failure of an operation, or a cut."""
        return any(one.error is error for one in self._raised)

    def forget(self, error: BaseException) -> StepPlan[None]:
        """Forget the stored failures with which the attempt ends: the next attempt tries again.

        Failures that the code has caught stay: it has chosen another way.
        """
        explicit, implicit = explicit_parts(error), implicit_parts(error)
        names: list[str] = []
        cancels = any(isinstance(part, (BaseExceptionGroup, asyncio.CancelledError)) for part in explicit)
        branches: list[str] = []  # those that were cut off as a whole forget what was cut off in them
        for one in reversed(self._raised):
            went_on = self._scopes.went_on(one.use, one.calls)
            # a task that was cancelled: by a group, whose error this is
            alone = one.cut and cancels and one.use.runner is not one.use.scope.branch.runner
            inside = one.cut and any(one.use.scope.path.startswith(path) for path in branches)
            if (
                any(one.error is part for part in explicit)
                or (not went_on and (alone or any(one.error is part for part in implicit)))
                or (inside and not self._scopes.called_since(one.use.runner, one.calls))
            ):
                key = one.use.key
                branches += [self._scopes.path_below(one.use)] if one.use.operation.kind == "branch" else []
                tries = [f"{key}!{n}" for n in range(1, self._memory.count(f"{key}!") + 1)]
                if one.cut and key in self._later:
                    del self._later[key]
                else:
                    names += [f"{key}!cut" if one.cut else f"{key}!failed"]
                names += tries if one.use.operation.kind == "step" else []
        yield from self._memory.forget(names)
        yield from self.store_cuts(all=True)

    def _note(self, error: BaseException, use: Use, *, cut: bool) -> None:
        self._raised.append(_Raised(error, use, cut, self._scopes.calls))

    def _age(self) -> int:
        """Age of this run (ms). A timeout of the code ends at the same age in each run."""
        return round((time.monotonic() - self._begun) * 1000)


def _cut_again(use: Use) -> CutOff:
    return CutOff(f"{use.operation} was cut off in an earlier run of the job")


def _number(step: StoredStep) -> int:
    """The number that is stored; 0 if an operator has replaced it by something else."""
    value = split_value(step.value or b"")[1]
    return int(value) if value.isdigit() else 0


# ── errors as they are stored ────────────────────────────────────────────────────────────────────


class _Failure(msgspec.Struct):
    """An error: its class, arguments and attributes as far as they are JSON values, and its text."""

    module: str
    name: str
    args: list[Any]
    state: dict[str, Any]
    text: str


_failure_of = msgspec.json.Decoder(_Failure).decode


def stored_failure(error: BaseException) -> bytes:
    """Encode an error for the store; values that JSON lacks become text."""
    kind = type(error)
    args = [_plain(one) for one in error.args[:_MOST]]
    state = {name: _plain(value) for name, value in list(vars(error).items())[:_MOST] if name != "__notes__"}
    text = text_of(error)[:_LONGEST]
    return msgspec.json.encode(_Failure(kind.__module__, kind.__qualname__, args, state, text))


def read_failure(value: bytes, what: str) -> Exception:
    """Make a stored error again: of its class if that is loaded here, else StepFailed."""
    failure = _failure_of(value)
    kind = _class_of(failure)
    if kind is None:
        return StepFailed(f"{what} has failed: {failure.name}: {failure.text}")
    return _made(kind, failure)


def _class_of(failure: _Failure) -> type[Exception] | None:
    """The error's class. No module is imported for it: code that catches the class has its module."""
    found: Any = sys.modules.get(failure.module)
    for part in failure.name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _made(kind: type[Exception], failure: _Failure) -> Exception:
    args = tuple(failure.args)
    try:
        if type(kind.__init__) is WrapperDescriptorType:  # of a class of Python's own, as OSError
            error = kind(*args)
            error.__dict__.update(failure.state)
            return error
        state = {name: tuple(one) if isinstance(one, list) else one for name, one in failure.state.items()}
        made = made_again(kind, args, state)
    except Exception:  # noqa: BLE001  # boundary: the constructor of a user's class
        return StepFailed(f"{failure.name}: {failure.text}")
    assert isinstance(made, Exception)
    return made


def _plain(value: Any) -> Any:
    """A JSON value that stands for this one."""
    try:
        text = msgspec.json.encode(value)
    except Exception:  # noqa: BLE001  # boundary: a user's value may be anything
        return text_of(value)[:_LONGEST]
    return msgspec.json.decode(text) if len(text) <= _LARGEST else text_of(value)[:_LONGEST]


def explicit_parts(error: BaseException) -> list[BaseException]:
    """The error, its causes and the members of its groups, at any depth."""
    found: dict[int, BaseException] = {}
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if id(one) not in found:
            found[id(one)] = one
            waiting += [] if one.__cause__ is None else [one.__cause__]
            waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
    return list(found.values())


def implicit_parts(error: BaseException) -> list[BaseException]:
    """The errors that were being handled when this one, or one of its parts, was raised."""
    found: dict[int, BaseException] = {}
    waiting = explicit_parts(error)
    while waiting:
        one = waiting.pop()
        if one.__context__ is not None and not one.__suppress_context__:
            new = {id(part): part for part in explicit_parts(one.__context__) if id(part) not in found}
            found |= new
            waiting += new.values()
    return list(found.values())
