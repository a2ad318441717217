"""Tells values that stand for work not done yet: an un-awaited coroutine, a generator, a future."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import AsyncIterator, Collection, Iterator
from concurrent.futures import Future
from types import AsyncGeneratorType, CoroutineType, GeneratorType, NoneType
from typing import Any

ASYNC, GENERATOR, ASYNC_GENERATOR = "a coroutine", "a generator", "an async generator"

_WAY_OUT = {
    ASYNC: "await it in an `async def`",
    GENERATOR: "return a list, or run its loop in the function",
    ASYNC_GENERATOR: "run its `async for` in an `async def`",
}


@contextlib.contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextlib.asynccontextmanager
async def _nothing_async() -> AsyncIterator[None]:
    yield


#: Wrappers are looked through up to this depth: one may wrap itself.
_DEEPEST = 50
#: Types of most values: none of them is lazy. Looked up first, as each job's value is.
DONE = frozenset({NoneType, bool, int, float, str, bytes})
_COLLECTIONS = frozenset({dict, list, tuple, set, frozenset})
#: Types of lazy values: their words, and the way out. Whatever else can be awaited is lazy, too.
_LAZY: tuple[tuple[Any, str, str], ...] = (
    (CoroutineType, ASYNC, _WAY_OUT[ASYNC]),
    (GeneratorType, GENERATOR, _WAY_OUT[GENERATOR]),
    (AsyncGeneratorType, ASYNC_GENERATOR, _WAY_OUT[ASYNC_GENERATOR]),
    ((type(_nothing()), type(_nothing_async())), "a context manager", "enter it in the function, by `with`"),
    (Future, "a future", "return its `result()`"),
    ((map, filter, zip, itertools.starmap), "an iterator that has done nothing yet", "return a list of it"),
)


def returned_by(function: Any) -> str:
    """What a call of it returns, if it is seen to be lazy: ASYNC, GENERATOR or ASYNC_GENERATOR. Else ""."""
    function = _whole(function)
    called: Any = getattr(type(function), "__call__", None)  # noqa: B004 (it is inspected, not called)
    for one in (function, called):
        if inspect.iscoroutinefunction(one):
            return ASYNC
        if inspect.isasyncgenfunction(one):
            return ASYNC_GENERATOR
        if inspect.isgeneratorfunction(one):
            return GENERATOR
    return ""


def wrapped_by(function: Any) -> str:
    """The same of the function that this one wraps, by `functools.wraps`, at any depth."""
    for _ in range(_DEEPEST):
        function = getattr(_whole(function), "__wrapped__", None)
        if function is None:
            break
        if kind := returned_by(function):
            return kind
    return ""


def _whole(function: Any) -> Any:
    """The function of a `partial`."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def refuse_generator(function: Any) -> str | None:
    """Why this function, whose value nobody iterates over, does nothing when it is called; None: it does."""
    kind = returned_by(function)
    if kind in (GENERATOR, ASYNC_GENERATOR):
        return f"calling it returns {kind} and runs nothing: make it a function without `yield`"
    return None


def refused(value: Any) -> str | None:
    """Why a returned value means that work was not done; None: it does not. Coroutines are closed."""
    kind = type(value)
    if kind in DONE:
        return None
    if kind in _COLLECTIONS:
        return _refused_in(value)
    for types, what, way_out in _LAZY:
        if issubclass(kind, types):
            if issubclass(kind, (CoroutineType, GeneratorType)):
                value.close()  # without Python's warning that it was never awaited
            return f"it returned {what}, and what that stands for was not done: {way_out}"
    if any("__await__" in vars(one) for one in kind.__mro__):  # `hasattr` would ask its metaclass
        return f"it returned {kind.__name__}, which was not awaited: {_WAY_OUT[ASYNC]}"
    return None


def first_of(value: Any) -> Any:
    """The first of several values, for the others are alike; the value itself if it is no collection."""
    return next(iter(_parts(value)), None) if type(value) in _COLLECTIONS else value


def _parts(values: Any) -> Collection[Any]:
    parts: Collection[Any] = values.values() if type(values) is dict else values
    return parts


def _refused_in(values: Collection[Any]) -> str | None:
    first = first_of(values)
    if type(first) in DONE or type(first) in _COLLECTIONS:
        return None
    why = refused(first)
    if why is None:
        return None
    for one in _parts(values):
        if one is not first and type(one) not in _COLLECTIONS:
            refused(one)
    return why.replace("it returned", f"it returned a {type(values).__name__} that begins with", 1)
