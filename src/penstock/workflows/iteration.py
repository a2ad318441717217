"""The cursor of a long loop: where it goes on when its job runs again."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from penstock.core.duration import Duration, milliseconds
from penstock.core.errors import ConfigError
from penstock.workflows.flow_memory import FlowMemory, Plan, checked_name

__all__ = ["Cursor"]


class Cursor:
    """The cursor of one `iterate`. It is kept in the job's checkpoint, which each write replaces."""

    def __init__(self, memory: FlowMemory, name: str, source: Any, every: Duration) -> None:
        self._memory = memory
        self._key = memory.use(f"iterate!{checked_name(name, 'the name of a loop')}")
        self._source = source
        self._every = milliseconds(every, what="iterate(every=)") / 1000
        self._stored_at = time.monotonic()
        self._at: Any = None
        self._ended = False
        self._used: set[str] = set()

    def begin(self) -> Plan[None]:
        """Read the stored cursor."""
        yield from self._memory.begin()
        self._ended = self._memory.stored(self._key) is not None
        if not self._ended:
            self._memory.reach()
            self._at, uses = self._memory.marks().get(self._key, (None, {}))
            self._used = self._memory.enter_loop(uses)

    def pairs(self) -> Iterator[Any] | AsyncIterator[Any]:
        """The items behind the cursor, each with its cursor."""
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

    def passed(self, at: Any) -> Plan[None]:
        """Note that an item is done: store the cursor if it is time, end the attempt if the worker drains."""
        self._at = at
        stops = self._memory.attempt.stopping
        if stops or time.monotonic() - self._stored_at >= self._every:
            yield from self._memory.mark(self._key, (at, self._memory.uses(self._used)))
            self._stored_at = time.monotonic()
        if stops:
            yield from self._memory.suspend(0)

    def end(self) -> Plan[None]:
        """Note that the loop has ended."""
        if not self._ended:
            self._memory.leave_loop(self._used)
            yield from self._memory.record(self._key, b"null")
