"""Requests: each verb of a store is a value, with its arguments as fields and the type of its answer.

`store.ask(Fetch(queues, limit=10, ...))` is what `store.fetch(queues, limit=10, ...)` calls. So a verb is
written once, here, and whatever stands around a store (observe, record, encrypt, fail on demand) has one
method for all verbs.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypeVar, get_args

import msgspec

from penstock.core.job import Ref

A = TypeVar("A")
P = ParamSpec("P")

_WORD = re.compile(r"(?<!^)(?=[A-Z])")


class Request(msgspec.Struct, Generic[A], frozen=True, gc=False):
    """One call of a verb: its arguments. `A` is the type of the answer.

    `verb`: the name of the verb, which is the name of the class in lower case with underscores, unless the
    class gives it.
    """

    verb: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "verb" not in cls.__dict__ and not cls.__name__.startswith("_"):
            cls.verb = _WORD.sub("_", cls.__name__).lower()

    def checked(self) -> Self:
        """Return the request with its arguments within their bounds. Raises ConfigError for a bad one.

        `OwnStore.ask` calls it; a store around a store gets requests unchecked.
        """
        return self

    @property
    def called(self) -> str:
        """The name by which this call is counted and made to fail: its verb's, or that of the acts in it."""
        return self.verb


class SyncRequest(Request[A], frozen=True):
    """A request that callers without an event loop can make, too. `SyncStore` has methods for some."""


class OfRefs(SyncRequest[A], frozen=True):
    """A request of these jobs, or periodic entries, or flows."""

    refs: Sequence[Ref]


class OfRef(SyncRequest[A], frozen=True):
    """A request of this job, or flow."""

    ref: Ref


class OfQueue(SyncRequest[A], frozen=True):
    """A request of this queue."""

    queue: str


class OfQueues(Request[A], frozen=True):
    """A request of these queues."""

    queues: Sequence[str]


def answer_type(request: type[Request[Any]]) -> Any:
    """The type of the answer, as the class of the request names it."""
    (base,) = request.__orig_bases__  # type: ignore[attr-defined]
    (answer,) = get_args(base)
    return answer


def verb(request: Callable[P, Request[A]]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, A]]:
    """The method of a store that makes this request, with the request's name, arguments and docstring."""

    async def call(self: Any, /, *args: P.args, **options: P.kwargs) -> A:
        answer: A = await self.ask(request(*args, **options))
        return answer

    return as_method(call, request)


def sync_verb(request: Callable[P, SyncRequest[A]]) -> Callable[Concatenate[Any, P], A]:
    """The same for callers without an event loop."""

    def call(self: Any, /, *args: P.args, **options: P.kwargs) -> A:
        answer: A = self.ask(request(*args, **options))
        return answer

    return as_method(call, request)


F = TypeVar("F", bound=Callable[..., Any])


def as_method(call: F, request: Any, act: Any = None) -> F:
    """Give a method of a store the name, arguments and docstring of its request, or of the act in it."""
    page = act or request
    call.__name__ = str(page.verb)
    call.__qualname__ = f"Store.{page.verb}"
    call.__doc__ = page.__doc__
    call.__wrapped__ = _Signed(page, refs=act is not None)  # type: ignore[attr-defined]
    call.request = request  # type: ignore[attr-defined]
    return call


class _Signed:
    """Gives `inspect.signature` that of a verb. Made when asked for: all together take 5 ms."""

    def __init__(self, page: Any, *, refs: bool) -> None:
        self._page = page
        self._refs = refs  # an act is done to any number of jobs

    @property
    def __signature__(self) -> inspect.Signature:
        me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        given = inspect.signature(self._page)
        arguments = list(given.parameters.values())
        if self._refs:
            arguments[0] = arguments[0].replace(name="refs", annotation="Sequence[Ref]")
        return given.replace(parameters=[me, *arguments])
