"""The cursor of a long loop: the place from which it continues when its job runs again."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from penstock.core.errors import ConfigError
from penstock.core.formats import Duration, milliseconds
from penstock.core.step_names import Identity, checked_name, item_part
from penstock.workflows.scopes import Scope, Use, current_scope
from penstock.workflows.step_memory import StepPlan
from penstock.workflows.step_run import StepRun


class Cursor:
    """The cursor of one `iterate`. It is kept in the job's checkpoint, which each write replaces.

    Each item is a scope of its own: the loop and the cursor behind the item. Operations in it are numbered
    from 1, so that those behind the loop, and of items that come again, have the same names in each run.
    """

    def __init__(self, run: StepRun, name: str, source: Any, key: str | None, every: Duration) -> None:
        self._run = run
        self._memory = run.memory
        name = checked_name(name, "the name of a loop")
        self._operation = Identity("loop", name, key, f"iterate!{name}")
        self._use: Use | None = None
        self._source = source
        self._every = milliseconds(every, what="iterate(every=)") / 1000
        self._stored_at = time.monotonic()
        self._at: Any = None
        self._ended = False
        self._item: Scope | None = None
        self._used: set[str] = set()  # names, by the numbering of older releases

    def begin(self) -> StepPlan[None]:
        """Read the stored cursor."""

        def body(use: Use) -> StepPlan[None]:
            run, memory = self._run, self._memory
            self._use = use
            self._ended = memory.stored(use.key) is not None
            if memory.undoing and memory.has_steps_in(use):
                self._ended = False  # the steps of all items are undone: go through them again
            elif not self._ended:
                yield from run.reach()
                self._at, uses = memory.marks().get(use.key, (None, {}))
                self._count_on(uses)
            yield from ()

        yield from self._run.operate(self._operation, body)

    def _count_on(self, uses: dict[str, int]) -> None:
        """Continue the count of uses after the items before, in a flow that an older release began."""
        if self._memory.older:
            counts = self._run.scopes.older_uses
            for name, n in uses.items():
                counts[name] = max(counts[name], n)
            self._used = set(uses)

    def pairs(self) -> Iterator[Any] | AsyncIterator[Any]:
        """The items after the stored cursor, each with its own cursor."""
        if self._ended:
            return iter(())
        if isinstance(self._source, Sequence):
            first = 0 if self._at is None else int(self._at)
            source: Sequence[Any] = self._source
            return ((source[n], n + 1) for n in range(first, len(source)))
        if not callable(self._source):
            raise ConfigError("iterate: the source is a sequence, or a function of the cursor")
        found: Any = self._source(self._at)
        pairs: Iterator[Any] | AsyncIterator[Any]
        pairs = aiter(found) if hasattr(found, "__aiter__") else iter(found)
        return pairs

    def enter(self, at: Any) -> None:
        """Begin an item: what is called from here on is in its scope."""
        assert self._use is not None
        scopes = self._run.scopes
        part = item_part(self._use.part, at)
        if self._memory.older:
            self._item = self._item or scopes.inside(self._use, part)
            self._item.used = self._used
        else:
            self._item = scopes.inside(self._use, part)
        current_scope.set(self._item)

    def passed(self, at: Any) -> StepPlan[None]:
        """Note that an item is done: store the cursor if it is time, end the attempt if the worker drains."""
        assert self._use is not None
        self._at = at
        run, memory = self._run, self._memory
        if memory.undoing:  # even if the worker drains: the steps of the items behind are undone first
            return
        stops = run.attempt.stopping
        if stops or time.monotonic() - self._stored_at >= self._every:
            uses = {name: run.scopes.older_uses[name] for name in self._used} if memory.older else {}
            yield from memory.mark(self._use.key, (at, uses))
            self._stored_at = time.monotonic()
        if stops:
            yield from run.suspend(0)

    def leave(self) -> None:
        """End the current item, or the loop: also at a `break`."""
        if self._item is not None and not self._memory.older:
            self._leave(self._item)

    def _leave(self, item: Scope) -> None:
        item.left = True
        if current_scope.get() is item:  # tasks that start from here on are not in it
            current_scope.set(item.parent)

    def end(self) -> StepPlan[None]:
        """Note that the loop has ended."""
        if self._item is not None:
            self._leave(self._item)
        if not self._ended:
            assert self._use is not None
            if self._memory.stored(self._use.key) is None:
                yield from self._run.reach()
            yield from self._memory.record(self._use.key, b"null")
