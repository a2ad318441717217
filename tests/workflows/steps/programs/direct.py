"""A program run without a store: the functions are called, and signals come when they are to come.

What an operation has answered is kept by its place in the program, over all attempts. So this is what a
flow should be, with none of the names, keys and numbers by which the real one finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import Cancel, Discard, MemberFailed
from tests.workflows.steps.programs.language import Program
from tests.workflows.steps.programs.source import compiled
from tests.workflows.steps.programs.world import Planned, Run, World, Wrapped

__all__ = ["Direct", "played_directly"]


@dataclass
class Direct:
    """What came of a program."""

    state: str  # completed, dead, cancelled
    kind: str  # of the error
    world: World
    done: list[str] = field(default_factory=list)  # steps with an undo that have ended well, in order


async def played_directly(program: Program, real: World) -> Direct:
    """Play the program; where several histories are right, that of the real run."""
    return await asyncio.create_task(_played(program, real))  # in a context of its own


async def _played(program: Program, real: World) -> Direct:
    world = _DirectWorld(real)
    flow = _DirectFlow(world, real)
    state, kind = "dead", ""
    for number in range(1, program.most + 1):
        flow.begin()
        world.begin(Run(world, number))
        try:
            await _called(program, flow, world)
        except BaseException as error:
            kind = type(error).__name__
            if isinstance(error, Cancel):
                state = "cancelled"
                break
            if isinstance(error, Discard) or not isinstance(error, (Planned, Wrapped, ExceptionGroup)):
                break
            flow.forget(error)
        else:
            return Direct("completed", "", world)
    return Direct(state, kind, world, flow.done)


async def _called(program: Program, flow: _DirectFlow, world: World) -> None:
    if not program.sync:
        await compiled(program)(flow, world)
        return
    compiled(program)(_DirectSyncFlow(flow), world)


class _DirectWorld(World):
    """Its rows are those of the real run, at its end."""

    def __init__(self, real: World) -> None:
        super().__init__(real.job)
        self._real = real

    def rows(self, place: str, items: int) -> Any:
        rows = self._real.lists.get(place) or [float(n) for n in range(items)]
        return lambda after: iter([(row, row) for row in rows])

    def jobs(self, place: str, size: int, *, given: bool = False, fails: bool = False) -> list[Any]:
        for n in range(size):
            self.call(f"{place}.{n}")
        return [f"{place}.{n}" for n in range(size)] + (["fails"] if fails else [])

    def call(self, place: str, *rest: Any) -> str:
        try:
            return super().call(place)
        finally:
            self.settle(place)


class _CutOff(TimeoutError, asyncio.CancelledError):
    """A step that an earlier attempt has cut off."""


class _DirectFlow:
    """A flow without a store."""

    def __init__(self, world: World, real: World) -> None:
        self._world = world
        self._real = real
        self._answers: dict[str, Any] = {}
        self._failed: dict[str, tuple[BaseException, int]] = {}
        self._cut: set[str] = set()
        self._calls = 0
        self.done: list[str] = []

    def begin(self) -> None:
        self._calls = 0

    def forget(self, error: BaseException) -> None:
        """Forget the failures that this error has in it, or that led to it."""
        for place, (one, at) in list(self._failed.items()):
            if _is_in(one, error, explicit=True) or (at == self._calls and _is_in(one, error)):
                del self._failed[place]

    def step_now(
        self,
        function: Callable[..., Any],
        place: str,
        undo: Any,
        attempts: int,
    ) -> Any:
        """The step's answer, without a hang."""
        self._calls += 1
        if place in self._failed:
            error, _ = self._failed[place]
            self._failed[place] = error, self._calls
            raise error
        if place not in self._answers:
            for n in range(1, attempts + 1):
                try:
                    self._answers[place] = self._world.call(place)
                    break
                except Planned as error:
                    if n == attempts:
                        self._failed[place] = error, self._calls
                        raise
            if undo is not None:
                self.done.append(place)
        return self._answers[place]

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        place: str,
        *rest: Any,
        undo: Any = None,
        attempts: int = 1,
        **options: Any,
    ) -> Any:
        if function == self._world.hang:
            if place in self._cut:
                raise _CutOff
            self._cut.add(place)
            return await function(place)
        return self.step_now(function, place, undo, attempts)

    async def sleep(self, duration: str, **options: Any) -> None:
        self._calls += 1

    async def wait_for(self, signal: str, *, key: str, **options: Any) -> Any:
        self._calls += 1
        return self.received(key)

    def received(self, key: str) -> Any:
        when, place = self._world.signals[key], key.partition(":")[2]
        if when == "race":
            return self._real.seen.get(place, "none") if self._real.seen.get(place) != "none" else None
        return None if when == "never" else f"data of {place}"

    async def gather(self, jobs: list[str], **options: Any) -> list[str]:
        self._calls += 1
        if jobs and jobs[-1] == "fails":
            raise MemberFailed("planned", [])
        return [f"{job}!" for job in jobs]

    async def iterate(self, name: str, source: Any, **options: Any) -> AsyncIterator[Any]:
        for item in self.items(source):
            yield item

    def items(self, source: Any) -> Iterator[Any]:
        self._calls += 1
        return iter([item for item, _ in source(None)] if callable(source) else source)

    async def branches(self, **given: Any) -> dict[str, Any]:
        found, errors = {}, []
        for name, one in given.items():
            try:
                found[name] = await (one() if callable(one) else one)
            except Exception as error:
                errors.append(error)
        return _all_or_error(found, errors)

    async def first(self, **given: Any) -> tuple[str, Any]:
        self._calls += 1
        packed = given["packed"]
        key = packed.cr_frame.f_locals["key"]
        for one in given.values():
            one.close()
        return self.won(key)

    def won(self, key: str) -> tuple[str, Any]:
        if self._world.signals[key] in ("early", "late"):
            return "packed", f"data of {key.partition(':')[2]}"
        return "late", None


def _all_or_error(found: dict[str, Any], errors: list[Exception]) -> dict[str, Any]:
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup("branches", errors)
    return found


class _DirectSyncFlow:
    """The same for the text of a thread."""

    def __init__(self, flow: _DirectFlow) -> None:
        self._flow = flow

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        place: str,
        *rest: Any,
        undo: Any = None,
        attempts: int = 1,
        **options: Any,
    ) -> Any:
        return self._flow.step_now(function, place, undo, attempts)

    def sleep(self, duration: str, **options: Any) -> None: ...

    def wait_for(self, signal: str, *, key: str, **options: Any) -> Any:
        return self._flow.received(key)

    def gather(self, jobs: list[str], **options: Any) -> list[str]:
        if jobs and jobs[-1] == "fails":
            raise MemberFailed("planned", [])
        return [f"{job}!" for job in jobs]

    def iterate(self, name: str, source: Any, **options: Any) -> Iterator[Any]:
        return self._flow.items(source)

    def branches(self, **given: Any) -> dict[str, Any]:
        found, errors = {}, []
        for name, one in given.items():
            try:
                found[name] = one()
            except Exception as error:
                errors.append(error)
        return _all_or_error(found, errors)


def _is_in(one: BaseException, error: BaseException, *, explicit: bool = False) -> bool:
    """Whether this error is the other one, a cause of it, or in it; unless `explicit`, also its context."""
    if one is error:
        return True
    inner = list(error.exceptions) if isinstance(error, BaseExceptionGroup) else []
    inner += [error.__cause__] if error.__cause__ is not None else []
    if not explicit and error.__context__ is not None and not error.__suppress_context__:
        inner.append(error.__context__)
    return any(_is_in(one, part, explicit=explicit) for part in inner)
