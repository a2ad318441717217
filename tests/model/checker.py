"""A model checker: visits every reachable state, and prints the shortest path to a wrong one."""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

__all__ = ["Checked", "Model", "Step", "Trace", "explore"]

S = TypeVar("S", bound=Hashable)
State = TypeVar("State", bound=Hashable, covariant=True)


class Step(NamedTuple):
    """One thing that may happen next: what, and the state after it. `helps`: no fault and no interference,
    but what a system does that is left alone; only such steps count where an end must be reachable."""

    what: Any
    after: Any
    helps: bool = True


class Model(Protocol[State]):
    """What may happen. States are hashable values."""

    def first(self) -> State: ...

    def steps(self, state: Any) -> Iterable[Step]: ...

    def plain(self, state: Any) -> State:
        """The one that stands for all in which the same may happen."""
        ...


@dataclass(frozen=True)
class Trace(Generic[S]):
    """The shortest way to what must not be, and what that is."""

    broken: str
    steps: list[str]
    state: S

    def __str__(self) -> str:
        way = "\n".join(f"  {n}. {step}" for n, step in enumerate(self.steps, 1))
        return f"{self.broken}\n{way}\n  then: {self.state}"


@dataclass
class Checked(Generic[S]):
    """What was looked at, and the first thing that was wrong, if any."""

    states: int = 0
    steps: int = 0
    depth: int = 0
    seconds: float = 0.0
    wrong: Trace[S] | None = None
    ends: int = 0  # states that are ends
    seen: set[Any] = field(default_factory=set)  # what `note` said of the steps

    def __str__(self) -> str:
        return (
            f"{self.states:,} states, {self.steps:,} steps, {self.depth} deep, {self.ends:,} ends, "
            f"{self.seconds:.1f} s"
        )


def explore(
    model: Model[S],
    *,
    always: Mapping[str, Callable[[S], bool]],
    each_step: Mapping[str, Callable[[S, Any, S], bool]] | None = None,
    end: tuple[str, Callable[[S], bool]] | None = None,
    note: Callable[[S, Any, S], Iterable[Any]] | None = None,
    most: int = 5_000_000,
) -> Checked[S]:
    """Every reachable state, until one breaks a promise.

    `always` must be true of each state, `each_step` of each step, and from every state one that is an `end`
    must be reachable by steps that help. More than `most` states raise: the model has no bound.
    """
    began = time.perf_counter()
    found: Checked[S] = Checked()
    search = _Search(model, model.plain(model.first()))
    gc.disable()  # millions of tuples, and no circle among them
    try:
        found.wrong = next(_wrong(model, search, always, each_step or {}, note, found, most), None)
        found.states = len(search.states)
        if found.wrong is None and end is not None:
            found.wrong = _stuck(search, *end, found)
    finally:
        gc.enable()
    found.seconds = time.perf_counter() - began
    return found


class _Search(Generic[S]):
    """The states in the order in which they were found, and how each was."""

    def __init__(self, model: Model[S], first: S) -> None:
        self.model = model
        self.states: list[S] = [first]
        self.number: dict[S, int] = {first: 0}
        self.came_from = array("l", [-1])
        self.depth = array("l", [0])
        #: Steps that help, as pairs: from, to.
        self.helping = array("l")

    def add(self, state: S, before: int) -> int:
        """Its number; it is made plain only if it has not been seen as it is."""
        n = self.number.get(state)
        if n is not None:
            return n
        seen, state = state, self.model.plain(state)
        n = self.number.get(state)
        if n is None:
            n = self.number[state] = len(self.states)
            self.states.append(state)
            self.came_from.append(before)
            self.depth.append(self.depth[before] + 1)
        self.number[seen] = n
        return n

    def trace(self, broken: str, n: int, allowed: Callable[[S, Any, S], bool] | None = None) -> Trace[S]:
        """The way there is gone again, for the steps that led there were those of its stand-ins; and then the
        step that is not allowed."""
        way = [n]
        while way[-1]:
            way.append(self.came_from[way[-1]])
        plain, state, steps = self.model.plain, self.model.first(), []
        for at, to in pairwise(reversed(way)):
            wanted = self.states[to]
            what, state = self._step(state, at, lambda _, step, wanted=wanted: plain(step.after) == wanted)
            steps.append(str(what))
        if allowed is not None:
            what, state = self._step(
                state, n, lambda before, step: not allowed(before, step.what, step.after)
            )
            steps.append(str(what))
        return Trace(broken, steps, state)

    def _step(self, state: S, n: int, wanted: Callable[[S, Step], bool]) -> tuple[Any, S]:
        """The first such step from this state, or else from its stand-in, which may leave steps out."""
        return next(
            (step.what, step.after)
            for before in (state, self.states[n])
            for step in self.model.steps(before)
            if wanted(before, step)
        )


def _wrong(
    model: Model[S],
    search: _Search[S],
    always: Mapping[str, Callable[[S], bool]],
    each_step: Mapping[str, Callable[[S, Any, S], bool]],
    note: Callable[[S, Any, S], Iterable[Any]] | None,
    found: Checked[S],
    most: int,
) -> Iterator[Trace[S]]:
    """What is wrong, the nearest first."""
    states, n = search.states, 0
    for name, holds in always.items():
        if not holds(states[0]):
            yield search.trace(name, 0)
    while n < len(states):
        state = states[n]
        for what, after, helps in model.steps(state):
            found.steps += 1
            for name, allowed in each_step.items():
                if not allowed(state, what, after):
                    yield search.trace(name, n, allowed)
            if note is not None:
                found.seen.update(note(state, what, after))
            known = len(states)
            to = search.add(after, n)
            if to == known:
                for name, holds in always.items():
                    if not holds(states[to]):
                        yield search.trace(name, to)
            if helps:
                search.helping.extend((n, to))
        if len(states) > most:
            raise ValueError(f"more than {most:,} states; the last one: {states[-1]}")
        n += 1
    found.depth = search.depth[-1]


def _stuck(search: _Search[S], name: str, ended: Callable[[S], bool], found: Checked[S]) -> Trace[S] | None:
    """The nearest state from which no end can be reached any more."""
    into: list[list[int] | None] = [None] * len(search.states)
    pairs = iter(search.helping)
    for before, after in zip(pairs, pairs, strict=True):
        if into[after] is None:
            into[after] = []
        into[after].append(before)  # type: ignore[union-attr]
    todo = [n for n, state in enumerate(search.states) if ended(state)]
    found.ends = len(todo)
    good = bytearray(len(search.states))
    for n in todo:
        good[n] = 1
    while todo:
        for before in into[todo.pop()] or ():
            if not good[before]:
                good[before] = 1
                todo.append(before)
    n = good.find(0)
    return None if n < 0 else search.trace(name, n)
