"""Branches of a flow that run at the same time, and the first of several waits."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import copy_context
from typing import Any, NamedTuple

import msgspec

from penstock.core.errors import ConfigError, FlowMismatch
from penstock.core.step_names import Identity, checked_name
from penstock.workflows.asked import UNKNOWN
from penstock.workflows.scopes import Scope, Use, current_scope, this_runner
from penstock.workflows.step_memory import StepPlan
from penstock.workflows.step_run import StepRun, StepsFailed

#: Does what a plan asks for, and returns its result.
Drive = Callable[[StepPlan[Any]], Any]
#: Undoing: maximum wait (s) for the next operation of a piece that was given up.
_PASSING = 10
#: Interval (s) at which that is checked.
_LOOK = 0.05


class _BranchEnd(NamedTuple):
    """How a branch has ended."""

    value: Any
    error: BaseException | None


class _Together:
    """Pieces of a flow that run at the same time, each in a scope of its own."""

    def __init__(self, run: StepRun, pieces: Mapping[str, Any], what: str) -> None:
        self._run = run
        self._memory = run.memory
        self._pieces = pieces
        self._what = what
        self._uses: dict[str, Use] = {}
        for name in pieces:
            checked_name(name, f"the name in {what}()")

    def _scope(self, name: str) -> StepPlan[Scope]:
        """Begin the scope of a piece, by this use of its name."""

        def body(use: Use) -> StepPlan[Scope]:
            yield from ()
            self._uses[name] = use
            return self._run.scopes.inside(use, use.part)

        return (yield from self._run.operate(Identity("branch", name, None, f"branch!{name}"), body))

    async def _piece(self, scope: Scope, piece: Any, ended: Callable[[], None]) -> _BranchEnd:
        scope.runner = this_runner()
        current_scope.set(scope)
        try:
            found = piece() if callable(piece) else piece
            return _BranchEnd(await found if inspect.isawaitable(found) else found, None)
        except BaseException as error:  # noqa: BLE001  # boundary: of this piece; the flow decides
            return _BranchEnd(None, error)
        finally:
            ended()

    def _threads(
        self,
        scopes: Mapping[str, Scope],
        names: Iterable[str],
        ends: dict[str, _BranchEnd],
        ended: Callable[[], None],
    ) -> list[threading.Thread]:
        """Started threads that run these pieces."""
        names = list(names)
        self._run.occupied.update(scopes[name] for name in names)  # before any begins: it may wait at once
        return [self._thread(scopes[name], self._pieces[name], ends, name, ended) for name in names]

    def _thread(
        self, scope: Scope, piece: Any, ends: dict[str, _BranchEnd], name: str, ended: Callable[[], None]
    ) -> threading.Thread:
        """A started thread that runs a piece."""

        def run_piece() -> None:
            scope.runner = this_runner()
            current_scope.set(scope)
            try:
                end = _BranchEnd(piece(), None)
            except BaseException as error:  # noqa: BLE001  # boundary: of this piece; the flow decides
                end = _BranchEnd(None, error)
            ended()
            ends[name] = end
            run.occupied.discard(scope)

        run = self._run
        if not callable(piece):
            raise ConfigError(f"{self._what}({name}=): a thread task gives functions, not {piece!r:.100}")
        thread = threading.Thread(
            target=copy_context().run, args=(run_piece,), name=f"penstock-{name}", daemon=True
        )
        thread.start()
        return thread

    def _await(self, threads: Iterable[threading.Thread]) -> None:
        """Wait for the ends of threads."""
        with self._run.idle():
            for thread in threads:
                _join(thread)

    def _check(self, errors: Iterable[BaseException | None]) -> None:
        """Raise what ends the run, whatever else was raised."""
        self._run.check()
        for error in errors:
            if isinstance(error, StepsFailed):
                raise error


class Branches(_Together):
    """`flow.branches(...)`: all run to their end, so that no step is cut off because another failed."""

    def __init__(self, run: StepRun, pieces: Mapping[str, Any]) -> None:
        super().__init__(run, pieces, "branches")

    async def run(self, drive: Callable[[StepPlan[Any]], Awaitable[Any]]) -> dict[str, Any]:
        """Run them in asyncio tasks."""
        run, tasks = self._run, {}
        for name, piece in self._pieces.items():
            scope = await drive(self._scope(name))
            scope.closed = self._memory.stored(f"{self._uses[name].key}!cut") is not None
            tasks[name] = asyncio.ensure_future(self._piece(scope, piece, _nothing))
        try:
            await _all_of(tasks.values())
        except asyncio.CancelledError as error:
            await _cancelled(tasks.values())
            for use in self._uses.values():
                await drive(run.cut_off(use, error))
            raise
        return self._results({name: task.result() for name, task in tasks.items()})

    def run_in_threads(self, drive: Drive) -> dict[str, Any]:
        """Run them in threads."""
        ends: dict[str, _BranchEnd] = {}
        scopes: dict[str, Scope] = {name: drive(self._scope(name)) for name in self._pieces}
        self._await(self._threads(scopes, self._pieces, ends, _nothing))
        return self._results({name: ends[name] for name in self._pieces})

    def _results(self, ends: dict[str, _BranchEnd]) -> dict[str, Any]:
        errors = [end.error for end in ends.values() if end.error is not None]
        self._check(errors)
        self._run.failures.raise_cut(self._uses.values())
        if len(errors) == 1:
            raise errors[0]
        if errors:
            names = ", ".join(name for name, end in ends.items() if end.error is not None)
            raise BaseExceptionGroup(f"branches have failed: {names}", errors)
        return {name: end.value for name, end in ends.items()}


class First(_Together):
    """`flow.first(...)`: the winner is stored, and the waits of the others are withdrawn."""

    _ASKED = f"first {UNKNOWN}"

    def __init__(self, run: StepRun, pieces: Mapping[str, Any]) -> None:
        super().__init__(run, pieces, "first")
        if not pieces:
            raise ConfigError("first() takes waits by name: first(packed=flow.wait_for('packed'), ...)")
        #: Ends that are counted as operations, so that the flow is not suspended before the choice.
        self._held = 0
        self._ended = threading.Event()

    async def run(self, drive: Callable[[StepPlan[Any]], Awaitable[Any]]) -> tuple[str, Any]:
        """Wait for the first in asyncio tasks."""
        run = self._run
        try:
            use, winner = await drive(self._stored())
        except asyncio.CancelledError:
            self._drop(self._pieces)
            raise
        scopes = {name: await drive(self._scope(name)) for name in self._pieces}
        await self._pass_over(use, winner, scopes)
        tasks = {
            name: asyncio.ensure_future(self._piece(scopes[name], piece, self._hold))
            for name, piece in self._pieces.items()
            if winner in (None, name)
        }
        try:
            await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            done = {name: task.result() for name, task in tasks.items() if task.done()}
            self._check(end.error for end in done.values())
            if winner is None:
                self._raise_failed(done)
                winner = next(iter(done))
                await drive(self._choose(use, winner, scopes))
            await _give_up(tasks, scopes, winner)
            await drive(self._withdraw(scopes, winner))
        except asyncio.CancelledError as error:
            await _give_up(tasks, scopes, winner)
            if not run.failures.has_raised(error):  # if the choice is stored, the run begins again
                await drive(run.cut_off(use, error, self._ASKED))
            raise
        finally:
            try:
                await _give_up(tasks, scopes, winner)
            finally:
                self._release()
        assert winner is not None
        return self._result(winner, done[winner])

    def run_in_threads(self, drive: Drive) -> tuple[str, Any]:
        """Wait for the first in threads."""
        use, winner = drive(self._stored())
        scopes: dict[str, Scope] = {name: drive(self._scope(name)) for name in self._pieces}
        ends: dict[str, _BranchEnd] = {}
        passed: dict[str, _BranchEnd] = {}
        for name in self._losers(winner) if self._memory.undoing else ():
            scopes[name].closed = True
            self._await(self._threads(scopes, [name], passed, _nothing))
        self._check(end.error for end in passed.values())
        threads = self._threads(scopes, self._pieces if winner is None else [winner], ends, self._hold)
        try:
            with self._run.idle():
                while not ends:
                    self._ended.wait(0.05)  # an interrupt is raised between two waits
            done = dict(ends)
            self._check(end.error for end in done.values())
            if winner is None:
                self._raise_failed(done)
                winner = next(name for name in self._pieces if name in done)
                drive(self._choose(use, winner, scopes))
        finally:
            for name, scope in scopes.items():
                scope.given_up = name != winner
            self._await(threads)
            self._release()
        assert winner is not None
        drive(self._withdraw(scopes, winner))
        return self._result(winner, ends[winner])

    def _losers(self, winner: str | None) -> list[str]:
        """The pieces that an earlier run has given up."""
        return [] if winner is None else [name for name in self._pieces if name != winner]

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._run.drop(self._pieces[name])

    async def _pass_over(self, use: Use, winner: str | None, scopes: Mapping[str, Scope]) -> None:
        """Drop the pieces that an earlier run has given up.

        A flow that is being undone goes through what they have stored: their steps are undone, too.
        """
        run, memory = self._run, self._memory
        cut = memory.stored(f"{use.key}!cut") is not None
        losers = list(self._pieces) if cut else self._losers(winner)
        if not memory.undoing:
            self._drop(losers)
            return
        tasks = []
        for name in losers:
            scopes[name].closed = True
            tasks.append(asyncio.ensure_future(self._piece(scopes[name], self._pieces[name], _nothing)))
        calls, until = run.scopes.calls, time.monotonic() + _PASSING
        while any(not task.done() for task in tasks) and time.monotonic() < until:
            await asyncio.wait(tasks, timeout=_LOOK)
            if not any(run.unreached(scopes[name]) for name in losers):
                break
            if run.scopes.calls > calls:
                calls, until = run.scopes.calls, time.monotonic() + _PASSING
        await _cancelled(task for task in tasks if not task.done())
        self._check(task.result().error for task in tasks)
        run.failures.raise_cut([use])

    def _raise_failed(self, done: Mapping[str, _BranchEnd]) -> None:
        """Raise an error that is no stored failure, e.g. of an unreachable store: it wins nothing."""
        for end in done.values():
            if end.error is not None and not self._run.failures.has_raised(end.error):
                raise end.error

    def _stored(self) -> StepPlan[tuple[Use, str | None]]:
        """This use, and the winner that an earlier run has stored; None: there is none."""
        run, memory = self._run, self._memory

        def body(use: Use) -> StepPlan[tuple[Use, str | None]]:
            yield from ()
            found = memory.stored(use.key)
            winner = None if found is None else msgspec.json.decode(memory.answer(found), type=str)
            if winner is not None and winner not in self._pieces:
                run.end_with(
                    FlowMismatch(
                        f"the code no longer asks what is stored: first ({use.key}) has waited for "
                        f"{winner!r}, and the code has {', '.join(self._pieces)}"
                    )
                )
            return use, winner

        return (yield from run.operate(Identity("first", "", None, "first!"), body, self._ASKED))

    def _choose(self, use: Use, winner: str, scopes: Mapping[str, Scope]) -> StepPlan[None]:
        if not self._memory.undoing:
            yield from self._memory.record_answer(use.key, self._ASKED, msgspec.json.encode(winner))

    def _withdraw(self, scopes: Mapping[str, Scope], winner: str) -> StepPlan[None]:
        names = [
            name
            for loser, scope in scopes.items()
            if loser != winner
            for name in self._memory.waits_in(scope)
        ]
        yield from self._memory.forget(names, waiting=True)

    def _hold(self) -> None:
        if self._run.ending is None:
            self._run.plans += 1
            self._held += 1
        self._ended.set()

    def _release(self) -> None:
        self._run.plans -= self._held
        self._held = 0

    def _result(self, winner: str, end: _BranchEnd) -> tuple[str, Any]:
        self._check([end.error])
        if end.error is not None:
            raise end.error
        return winner, end.value


def _nothing() -> None: ...


async def _all_of(tasks: Iterable[asyncio.Future[Any]]) -> None:
    waiting = [task for task in tasks if not task.done()]
    if waiting:
        await asyncio.wait(waiting)


async def _cancelled(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks, and wait for their ends."""
    waiting = list(tasks)
    for task in waiting:
        task.cancel()
    await _all_of(waiting)


async def _give_up(
    tasks: Mapping[str, asyncio.Future[Any]], scopes: Mapping[str, Scope], winner: str | None
) -> None:
    for name, scope in scopes.items():
        scope.given_up = name != winner
    await _cancelled(task for task in tasks.values() if not task.done())


def _join(thread: threading.Thread) -> None:
    while thread.is_alive():
        thread.join(0.05)  # an interrupt is raised between two waits
