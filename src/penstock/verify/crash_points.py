"""Counts the places at which the life of a job can break off, and does harm at the one that a test names."""

from __future__ import annotations

import asyncio
import enum
import inspect
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from penstock.core.errors import ConfigError, EnqueueUnknown, StoreUnavailable, did_you_mean
from penstock.core.job import NewJob
from penstock.stores.contract import Store
from penstock.stores.facade import VERBS

__all__ = ["Boundary", "CrashPoints", "Point", "kill_here"]

#: `stream_ends` answers bit by bit and has no one moment at which it is done; `wait_for_end` has one.
_VERBS = tuple(name for name in VERBS if name != "stream_ends")
_TURNS = 5


class Boundary(enum.StrEnum):
    """Where in a call."""

    BEFORE = "before"  # nothing has been sent
    LOST = "lost"  # it is done, and the caller does not know
    AFTER = "after"  # the caller has its answer, and has gone on to where it waits next

    __hash__ = str.__hash__


class Point(msgspec.Struct, frozen=True, order=True):
    """One boundary of one call: `Point("settle", 2, Boundary.LOST)`; written `settle:2:lost`."""

    verb: str
    call: int  # from 1, per verb
    boundary: Boundary

    def __str__(self) -> str:
        return f"{self.verb}:{self.call}:{self.boundary.value}"

    @classmethod
    def of(cls, text: str) -> Point:
        """The point that is written so."""
        verb, _, rest = text.partition(":")
        call, _, boundary = rest.partition(":")
        if not call.isdecimal() or boundary not in set(Boundary):
            raise ConfigError(f"{text!r} is not a point: write it as settle:2:lost (or :before, :after)")
        return cls(_verb(verb), int(call), Boundary(boundary))


class CrashPoints:
    """Another store, that notes each boundary which is passed: `app.use_store(CrashPoints(app.store).store)`.

    A run without harm leaves in `passed` all the points that there are. The next run, on a new store, does
    harm at one or two of them: `at(point)` fails there as a store does that cannot be reached, or, behind
    the send, whose reply is lost; after the answer nothing is left to fail. `at(point, act)` calls a
    function of yours, in whatever thread the call is made, which may raise, or kill (`kill_here`), or cancel
    somebody: who is cancelled there feels it there.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._acts: dict[Point, Callable[[], object] | None] = {}
        self._lock = threading.Lock()  # heartbeats come from a thread of their own
        self._calls: dict[str, int] = defaultdict(int)
        self._cut = False
        #: Every boundary that was passed, in order.
        self.passed: list[Point] = []
        #: Those at which harm was done.
        self.struck: list[Point] = []

    @property
    def store(self) -> Store:
        """This, as the type that everybody takes."""
        return cast(Store, self)

    @property
    def sync(self) -> Any:
        """The door for callers without an event loop. It has the same points, but none `after`."""
        return _CrashingDoor(self._store.sync, self)

    def at(self, point: Point | str, act: Callable[[], object] | None = None) -> None:
        """Do harm there, once."""
        point = Point.of(point) if isinstance(point, str) else point
        _verb(point.verb)
        self._acts[point] = act

    def cut_off(self) -> None:
        """From now on no call gets through: for the store this process is as good as dead."""
        self._cut = True

    def calls(self, verb: str) -> int:
        """How often a verb was called."""
        return self._calls[_verb(verb)]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in _VERBS:
            return found
        return self._guarded(name, found) if inspect.iscoroutinefunction(found) else found

    def _guarded(self, verb: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def guarded(*args: Any, **options: Any) -> Any:
            number = self._begin(verb)
            if self._pass(Point(verb, number, Boundary.BEFORE), args):
                await _let_it_strike()
            answer = await call(*args, **options)
            if self._pass(Point(verb, number, Boundary.LOST), args):
                await _let_it_strike()
            asyncio.get_running_loop().call_soon(self._pass, Point(verb, number, Boundary.AFTER), args)
            return answer

        return guarded

    def _begin(self, verb: str) -> int:
        if self._cut:
            raise StoreUnavailable(f"a test has cut this process off from its store, at {verb}")
        with self._lock:
            self._calls[verb] += 1
            return self._calls[verb]

    def _pass(self, point: Point, args: Sequence[Any]) -> bool:
        """Note it, and do what is to be done there; True if something was."""
        self.passed.append(point)
        if point not in self._acts:
            return False
        act = self._acts.pop(point)
        if act is None and point.boundary is Boundary.AFTER:
            return False  # the caller has its answer: nothing is left that could fail
        self.struck.append(point)
        if act is None:
            raise _failure(point, args)
        act()
        return True


class _CrashingDoor:
    def __init__(self, door: Any, points: CrashPoints) -> None:
        self._door = door
        self._points = points

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._door, name)
        if name not in _VERBS:
            return found
        points = self._points

        def guarded(*args: Any, **options: Any) -> Any:
            number = points._begin(name)
            points._pass(Point(name, number, Boundary.BEFORE), args)
            answer = found(*args, **options)
            points._pass(Point(name, number, Boundary.LOST), args)
            return answer

        return guarded


async def _let_it_strike() -> None:
    """A cancellation goes down from task to task, a turn of the loop each, and has to arrive here."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def kill_here() -> None:
    """SIGKILL this process: nothing of it runs on, no `finally`, no `atexit`."""
    os.kill(os.getpid(), signal.SIGKILL)


def _failure(point: Point, args: Sequence[Any]) -> Exception:
    """As a real store fails there: who enqueues is told whether the jobs may be stored."""
    if point.verb == "enqueue" and point.boundary is Boundary.LOST:
        jobs = cast(Sequence[NewJob], args[0])
        return EnqueueUnknown([job.id for job in jobs], f"a test loses the reply at {point}")
    return StoreUnavailable(f"a test lets the store fail at {point}")


def _verb(name: str) -> str:
    if name not in _VERBS:
        raise ConfigError(f"a store has no verb {name!r}{did_you_mean(name, _VERBS)}")
    return name
