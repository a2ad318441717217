"""Calls the functions of steps where they are to run: on the event loop, in a thread, or in a process.

A plain function of an async task runs in a thread, so that it does not block the event loop.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable
from concurrent import futures
from contextvars import copy_context
from types import FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from penstock.app.attempt import Attempt, AttemptOwner, StepAccess, StepCall
from penstock.codec import ArgsCodec, result_codec_of
from penstock.core import lazy
from penstock.core.errors import ArgumentError, ConfigError, FlowError, ResultError
from penstock.workflows.failures import read_failure, stored_failure

#: Interval (s) at which a thread that waits for a process checks for an interrupt.
_LOOK = 0.05
_PLACES = ("async", "thread", "process")
#: Whether a function is async, remembered: finding out takes longer than many steps.
_async: WeakKeyDictionary[Callable[..., Any], bool] = WeakKeyDictionary()


class StepCalls:
    """The calls of functions of one run of a flow.

    `running`: functions off the event loop, also those for which nobody waits any more: a timeout of the
    code around a step ends the wait, not the function. The end of the run, its undo functions and its
    suspension wait for them.
    """

    def __init__(self, attempt: Attempt, access: StepAccess) -> None:
        self._attempt = attempt
        self._access = access
        self.running = 0

    async def call(self, function: Callable[..., Any], args: Any, kwargs: Any, run_in: str | None) -> Any:
        """Call a function for an async task, and return what it returns, awaited. Raises what it raises."""
        _check(run_in)
        if run_in == "process":
            return await self._outside(outside_call(function, args, kwargs))
        if run_in == "async" or (run_in is None and _is_async(function)):
            value = function(*args, **kwargs)
        else:
            call = functools.partial(function, *args, **kwargs)
            value = await self._end_of(self._access.runner().in_thread(self._owner, call, copy_context()))
        return await value if inspect.isawaitable(value) else value

    def call_here(self, function: Callable[..., Any], args: Any, kwargs: Any, run_in: str | None) -> Any:
        """Call a function for a thread task, in its own thread or in a process."""
        _check(run_in)
        if run_in == "async":
            raise FlowError("run_in='async': a thread task has no event loop; use 'thread' or 'process'")
        if run_in == "process":
            outside = self._outside(outside_call(function, args, kwargs))
            end = asyncio.run_coroutine_threadsafe(outside, self._access.loop)
            while not end.done():  # an interrupt of this thread is raised between two looks
                futures.wait([end], _LOOK)
            return end.result()
        return function(*args, **kwargs)

    async def _outside(self, call: OutsideCall) -> Any:
        runner = self._access.runner()
        return call.value_of(
            await self._end_of(runner.in_process(self._owner, call.reference, call.arguments))
        )

    async def _end_of(self, call: StepCall) -> Any:
        """Wait for the end of a call. A cancellation ends the wait, not the call, unless it has not begun.

        If the worker has interrupted the attempt, the wait goes on until it has stopped the call as well.
        """
        self.running += 1
        call.end.add_done_callback(self._on_end)
        try:
            return await asyncio.shield(call.end)
        except asyncio.CancelledError:
            call.withdraw()
            while self._owner.interrupt is not None and not call.end.done():
                try:
                    await asyncio.wait([call.end])
                except asyncio.CancelledError:  # the worker asks again
                    pass
            raise

    @property
    def _owner(self) -> AttemptOwner:
        assert self._attempt.owner is not None
        return self._attempt.owner

    def _on_end(self, _end: asyncio.Future[Any]) -> None:
        self.running -= 1


def _check(run_in: str | None) -> None:
    if run_in is not None and run_in not in _PLACES:
        raise FlowError(f"run_in={run_in!r} of a step is none of {', '.join(_PLACES)}")


def _is_async(function: Callable[..., Any]) -> bool:
    if type(function) is not FunctionType:
        return lazy.returned_by(function) == lazy.ASYNC
    known = _async.get(function)
    if known is None:
        known = _async[function] = lazy.returned_by(function) == lazy.ASYNC
    return known


# ── calls in a child process ─────────────────────────────────────────────────────────────────────

# The function is sent by its module and name; arguments, result and error are JSON, as those of tasks.


class _Answer(msgspec.Struct):
    """What the function has returned, or (`failed`) its error as it is stored."""

    value: msgspec.Raw
    failed: bool = False


class OutsideCall(NamedTuple):
    """A function by its module and qualified name, and its encoded arguments."""

    function: Callable[..., Any]
    reference: tuple[str, str]
    arguments: bytes

    def value_of(self, answer: bytes) -> Any:
        """What the function has returned. Raises what it has raised."""
        found = msgspec.json.decode(answer, type=_Answer)
        name = self.reference[1]
        if found.failed:
            raise read_failure(bytes(found.value), name)
        return result_codec_of(self.function, name=name, setting="").decode(bytes(found.value))


def outside_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> OutsideCall:
    """Make a call for a process. Raises FlowError if it cannot be made in another process."""
    name = getattr(function, "__qualname__", type(function).__name__)
    module = getattr(function, "__module__", "")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not function:
        raise FlowError(
            f"{name} cannot run in a process: it is no function of a module, which the process can import. "
            "Define it with `def` in a module, and pass it what it needs as arguments"
        )
    if kind := lazy.returned_by(function):
        raise FlowError(
            f"{name} cannot run in a process: it returns {kind}. Make it a plain function, or drop run_in"
        )
    try:
        arguments = ArgsCodec(function, name=name).encode(args, kwargs)
    except (ArgumentError, ConfigError) as error:
        raise FlowError(f"{name} cannot run in a process: {error}") from None
    return OutsideCall(function, (module, name), arguments)


def answer_to(function: Callable[..., Any], name: str, arguments: bytes) -> bytes:
    """Do the call, in the child process."""
    args, kwargs = ArgsCodec(function, name=name).decode(arguments)
    try:
        value = function(*args, **kwargs)
        answer = _Answer(msgspec.Raw(result_codec_of(function, name=name, setting="").encode(value)))
    except ResultError as error:
        answer = _Answer(msgspec.Raw(stored_failure(FlowError(str(error)))), failed=True)
    except Exception as error:  # noqa: BLE001  # boundary: a user's function
        answer = _Answer(msgspec.Raw(stored_failure(error)), failed=True)
    return msgspec.json.encode(answer)
