"""Answers of the inspector that several pages share, and a bound on how often open pages read the store."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

__all__ = ["SharedReads"]

#: For this long (s) an answer is used again.
_FRESH = 1.0
_MOST_KEPT = 256
#: Reads of the store per second for pages that refresh themselves, and how many may come at once.
_PER_SECOND, _BURST = 4.0, 8.0

T = TypeVar("T")


class SharedReads:
    """Keeps answers for a second. Pages that refresh themselves get no more than 4 reads a second in all."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()
        self._locks: dict[Hashable, asyncio.Lock] = {}
        self._left, self._counted = _BURST, time.monotonic()
        #: Reads of the store since the start.
        self.reads = 0

    async def get(self, key: Hashable, read: Callable[[], Awaitable[T]], *, cost: int = 1) -> T:
        """The answer to a question; the same question is asked once a second. `cost`: reads of the store."""
        if (known := self._known(key)) is not None:
            return known[0]  # type: ignore[no-any-return]
        lock = self._locks.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                if (known := self._known(key)) is not None:
                    return known[0]  # type: ignore[no-any-return]
                self.count(cost)
                answer = await read()
                self._keep(key, answer)
                return answer
        finally:
            if not lock.locked():
                self._locks.pop(key, None)

    def count(self, reads: int) -> None:
        """Count reads of the store that are not shared."""
        self.reads += reads
        self._left -= reads

    def may_refresh(self) -> bool:
        """Whether a page may refresh itself now, or has to wait for its next turn."""
        now = time.monotonic()
        self._left = min(_BURST, self._left + (now - self._counted) * _PER_SECOND)
        self._counted = now
        return self._left > 0

    def clear(self) -> None:
        """Forget all answers: something has been changed here."""
        self._kept.clear()

    def _known(self, key: Hashable) -> tuple[Any] | None:
        at, answer = self._kept.get(key, (0.0, None))
        return (answer,) if at and time.monotonic() - at < _FRESH else None

    def _keep(self, key: Hashable, answer: Any) -> None:
        self._kept[key] = (time.monotonic(), answer)
        self._kept.move_to_end(key)
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
