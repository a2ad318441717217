"""Crash points: records where a run may be interrupted, and injects a fault at a chosen point."""

from __future__ import annotations

import asyncio
import enum
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from penstock.core.errors import ConfigError, EnqueueUnknown, StoreUnavailable, did_you_mean
from penstock.stores.around import StoreAround, StorePlan, asked
from penstock.stores.contract import Enqueue, Request, Store, StreamEnds, verbs

A = TypeVar("A")

#: All verbs but `stream_ends`, which yields results one by one and so has no single moment of completion.
_VERBS = frozenset(verbs()) - {StreamEnds.verb}
_LOOP_ROUNDS = 5


class Boundary(enum.StrEnum):
    """The moment of a store call at which a fault happens."""

    BEFORE = "before"  # nothing has been sent
    LOST = "lost"  # the store has done it, and the reply is lost
    AFTER = "after"  # the caller has the reply, and has continued to its next await

    __hash__ = str.__hash__


class Point(msgspec.Struct, frozen=True, order=True):
    """One boundary of one store call: `Point("settle", 2, Boundary.LOST)`, as text `settle:2:lost`."""

    verb: str
    call: int  # from 1, per verb
    boundary: Boundary

    def __str__(self) -> str:
        return f"{self.verb}:{self.call}:{self.boundary.value}"

    @classmethod
    def of(cls, text: str) -> Point:
        """Parse a point such as `settle:2:lost`. Raises ConfigError."""
        verb, _, rest = text.partition(":")
        call, _, boundary = rest.partition(":")
        if not call.isdecimal() or boundary not in set(Boundary):
            raise ConfigError(f"{text!r} is not a point: write it as settle:2:lost (or :before, :after)")
        return cls(_verb(verb), int(call), Boundary(boundary))


class CrashPoints(StoreAround):
    """A wrapper around a store that records every crash point: `app.use_store(CrashPoints(app.store).store)`.

    A run without faults lists all crash points in `passed`. A later run, on a new store, injects a fault at
    one or two of them:

    - `at(point)` raises what an unreachable store raises (`before`), or what a lost reply raises (`lost`).
      `after` injects nothing: the caller has its reply.
    - `at(point, act)` calls your function in the thread of the store call. It may raise, kill the process
      (`kill_here`) or cancel a task; a cancellation takes effect at that point.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._acts: dict[Point, Callable[[], object] | None] = {}
        self._lock = threading.Lock()  # heartbeats come from a thread of their own
        self._calls: dict[str, int] = defaultdict(int)
        self._cut = False
        #: Every point that was passed, in order.
        self.passed: list[Point] = []
        #: The points at which a fault was injected.
        self.struck: list[Point] = []

    @property
    def store(self) -> Store:
        """This wrapper."""
        return self

    def around(self, store: Store) -> Store:
        raise ConfigError("crash points are those of one namespace")

    def plan(self, request: Request[A]) -> StorePlan[A]:
        """What a call of a thread is: it has the same points but no `after`."""
        verb, number = request.called, self._begin(request.called)
        self._pass(Point(verb, number, Boundary.BEFORE), request)
        answer = yield from asked(request)
        self._pass(Point(verb, number, Boundary.LOST), request)
        return answer

    async def ask(self, request: Request[A]) -> A:
        """Pass the crash points of this call."""
        verb, number = request.called, self._begin(request.called)
        if self._pass(Point(verb, number, Boundary.BEFORE), request):
            await _let_cancellation_arrive()
        answer = await self._store.ask(request)
        if self._pass(Point(verb, number, Boundary.LOST), request):
            await _let_cancellation_arrive()
        asyncio.get_running_loop().call_soon(self._pass, Point(verb, number, Boundary.AFTER), request)
        return answer

    def at(self, point: Point | str, act: Callable[[], object] | None = None) -> None:
        """Inject a fault at this point, once."""
        point = Point.of(point) if isinstance(point, str) else point
        _verb(point.verb)
        self._acts[point] = act

    def cut_off(self) -> None:
        """Refuse every later call, as if this process were dead for the store."""
        self._cut = True

    def calls(self, verb: str) -> int:
        """The number of calls of a verb."""
        return self._calls[_verb(verb)]

    def _begin(self, verb: str) -> int:
        if self._cut:
            raise StoreUnavailable(f"a test has cut this process off from its store, at {verb}")
        with self._lock:
            self._calls[verb] += 1
            return self._calls[verb]

    def _pass(self, point: Point, request: Request[Any]) -> bool:
        """Record the point, and inject its fault. Returns True if a function was called."""
        self.passed.append(point)
        if point not in self._acts:
            return False
        act = self._acts.pop(point)
        if act is None and point.boundary is Boundary.AFTER:
            return False  # the caller has its reply: nothing is left that could fail
        self.struck.append(point)
        if act is None:
            raise _failure(point, request)
        act()
        return True


async def _let_cancellation_arrive() -> None:
    """Wait until a cancellation has reached this coroutine: it takes one loop iteration per nested task."""
    for _ in range(_LOOP_ROUNDS):
        await asyncio.sleep(0)


def kill_here() -> None:
    """Send SIGKILL to this process: no `finally` and no `atexit` runs."""
    os.kill(os.getpid(), signal.SIGKILL)


def _failure(point: Point, request: Request[Any]) -> Exception:
    """The exception of a real store at this point: EnqueueUnknown if an enqueue's reply is lost."""
    if isinstance(request, Enqueue) and point.boundary is Boundary.LOST:
        return EnqueueUnknown([job.id for job in request.jobs], f"a test loses the reply at {point}")
    return StoreUnavailable(f"a test makes the store fail at {point}")


def _verb(name: str) -> str:
    if name not in _VERBS:
        raise ConfigError(f"a store has no verb {name!r}{did_you_mean(name, _VERBS)}")
    return name
