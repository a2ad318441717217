"""Functions that return what stands for work not done; child processes import them from here."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from typing import Any

from penstock import App
from penstock.workflows import group

app = App("memory://")

#: What has run, in this process.
ran: list[str] = []


async def _coroutine() -> None:
    ran.append("coroutine")


def _generator() -> Iterator[int]:
    ran.append("generator")
    yield 1


async def _async_generator() -> AsyncIterator[int]:
    ran.append("async generator")
    yield 1


@contextlib.contextmanager
def _manager() -> Iterator[None]:
    ran.append("context manager")
    yield


@contextlib.asynccontextmanager
async def _async_manager() -> AsyncIterator[None]:
    ran.append("async context manager")
    yield


class Awaitable:
    def __await__(self) -> Iterator[Any]:
        ran.append("awaitable")
        yield


@app.task(name="other")
def other() -> None:
    ran.append("other")


#: What a function returns, and the words of the error.
LAZY: dict[str, tuple[Callable[[], Any], str]] = {
    "coroutine": (_coroutine, "it returned a coroutine, and what that stands for was not done: await it"),
    "generator": (_generator, "it returned a generator"),
    "async generator": (_async_generator, "it returned an async generator"),
    "context manager": (_manager, "it returned a context manager"),
    "async context manager": (_async_manager, "it returned a context manager"),
    "awaitable": (Awaitable, "it returned Awaitable, which was not awaited"),
    "future": (Future, "it returned a future, .* return its `result\\(\\)`"),
    "map": (lambda: map(ran.append, ["map"]), "it returned an iterator that has done nothing yet"),
    "coroutines": (
        lambda: [_coroutine(), _coroutine()],
        "it returned a list that begins with a coroutine",
    ),
    "coroutines by name": (
        lambda: {"one": _coroutine(), "two": _coroutine()},
        "it returned a dict that begins with a coroutine",
    ),
    "calls": (lambda: [other.job(), other.job()], "which was not enqueued: enqueue it in the function"),
    "call": (other.job, "it returned <JobCall of other .*, which was not enqueued"),
    "group": (lambda: group([other.job()]), "which was not enqueued: enqueue it in the function"),
}


@app.task(name="thread")
def in_thread(how: str) -> Any:
    return LAZY[how][0]()


@app.task(name="async")
async def in_loop(how: str) -> Any:
    return LAZY[how][0]()


@app.task(name="process", run_in="process")
def in_process(how: str) -> Any:
    return LAZY[how][0]()


@app.task(name="good")
def good() -> str:
    return "done"
