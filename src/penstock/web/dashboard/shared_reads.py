"""What requests share of the store's answers, so that open pages ask it little: reads, lists that were found
by long searches, and its clock."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from penstock.core.errors import PenstockError
from penstock.core.job import Ref
from penstock.web.dashboard.formats import now_ms

#: For this long (s) an answer is used again.
FRESH = 1.0
#: The same for statistics, which change by the minute.
FRESH_STATISTICS = 10.0
#: The same for jobs that a long search has found: pages read them again, not search again.
FRESH_FOUND = 5.0
#: The same for findings of the doctor, on pages that do not ask for them.
FRESH_CHECKS = 60.0
#: The most answers that are kept.
_MOST_KEPT = 256
#: Reads of the store per second, for all pages that refresh themselves.
_PER_SECOND = 4.0
#: How many of these reads may come at once.
_BURST = 8.0
#: Answers per second that are read again because something was not in them, as a new queue.
_REREADS_PER_SECOND = 1.0
#: How many of these answers may be read again at once.
_REREADS = 5.0

#: Whether the request in progress is that of a page that refreshes itself.
IS_LIVE: ContextVar[bool] = ContextVar("is_live", default=False)

T = TypeVar("T")


class SharedReads:
    """Keeps answers for a second. Pages that refresh themselves get no more than 4 reads a second in all.

    `keeps`: False to read each time.
    """

    def __init__(self, *, keeps: bool = True) -> None:
        self._keeps = keeps
        self._kept: OrderedDict[Hashable, _KeptAnswer] = OrderedDict()
        self._pending: dict[Hashable, _PendingRead] = {}
        self._clears = 0
        self._refresh_budget = _TokenBucket(_PER_SECOND, _BURST)
        self._reread_budget = _TokenBucket(_REREADS_PER_SECOND, _REREADS)
        #: Reads of the store since the start.
        self.reads = 0

    async def get(
        self, key: Hashable, read: Callable[[], Awaitable[T]], *, cost: int = 1, fresh: float = FRESH
    ) -> T:
        """The answer to a question, which is used again for `fresh` seconds. `cost`: reads of the store.

        Requests that wait for the same answer also share its error: each on its own would wait for a store
        that does not answer.
        """
        if (known := self._known(key)) is not None:
            return known.answer  # type: ignore[no-any-return]
        began = time.monotonic()
        async with self._one_at_a_time(key) as pending:
            if (known := self._known(key)) is not None:
                return known.answer  # type: ignore[no-any-return]
            if pending.error is not None and pending.failed_at >= began:
                raise pending.error
            clears_before = self._clears
            answer = await self._read(read, cost, pending)
            if self._keeps and clears_before == self._clears:  # else it may be older than the change
                self._keep(key, answer, fresh)
            return answer

    @asynccontextmanager
    async def _one_at_a_time(self, key: Hashable) -> AsyncIterator[_PendingRead]:
        """Let one of the requests for this answer go on at a time."""
        pending = self._pending.setdefault(key, _PendingRead())
        pending.waiting += 1
        try:
            async with pending.lock:
                yield pending
        finally:
            pending.waiting -= 1
            if not pending.waiting:
                del self._pending[key]

    async def _read(self, read: Callable[[], Awaitable[T]], cost: int, pending: _PendingRead) -> T:
        self.count(cost)
        try:
            return await read()
        except PenstockError as error:
            pending.failed_at, pending.error = time.monotonic(), error
            raise

    def count(self, reads: int) -> None:
        """Count reads of the store that are not shared.

        Reads of newly opened pages are no part of the budget: visitors would otherwise use up that of pages
        that refresh themselves.
        """
        self.reads += reads
        if IS_LIVE.get():
            self._refresh_budget.spend(reads)

    def may_refresh(self) -> bool:
        """Whether a page may refresh itself now, or has to wait for its next turn."""
        return self._refresh_budget.available() > 0

    def allow_reread(self, key: Hashable) -> bool:
        """Forget an answer that lacks something, to read it again; False if that has happened too often."""
        if self._reread_budget.available() < 1:
            return False
        self._reread_budget.spend(1)
        self._kept.pop(key, None)
        return True

    def clear(self) -> None:
        """Forget all answers: something has been changed here."""
        self._kept.clear()
        self._clears += 1

    def clear_brief(self) -> None:
        """Forget what is used again for a second: it is older than a change that open pages are told of."""
        for key in [one for one, kept in self._kept.items() if kept.brief]:
            del self._kept[key]
        self._clears += 1

    def _known(self, key: Hashable) -> _KeptAnswer | None:
        kept = self._kept.get(key)
        return kept if kept is not None and time.monotonic() < kept.until else None

    def _keep(self, key: Hashable, answer: Any, fresh: float) -> None:
        now = time.monotonic()
        for old in [one for one, kept in self._kept.items() if kept.until <= now]:
            del self._kept[old]
        self._kept[key] = _KeptAnswer(now + fresh, answer, fresh <= FRESH)
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)


class _KeptAnswer(NamedTuple):
    """An answer, the monotonic instant until which it is used, and whether it is used for a second only."""

    until: float
    answer: Any
    brief: bool


@dataclass
class _PendingRead:
    """The requests that wait for one answer: one reads, the others get what it has read, or its error."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    failed_at: float = 0.0
    error: PenstockError | None = None


class _TokenBucket:
    """A number that grows with time up to a limit. What is spent may be more than there was."""

    def __init__(self, per_second: float, most: float) -> None:
        self._per_second, self._most = per_second, most
        self._left, self._counted = most, time.monotonic()

    def spend(self, n: float) -> None:
        self._left -= n

    def available(self) -> float:
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._counted) * self._per_second)
        self._counted = now
        return self._left


# ── lists that were found ────────────────────────────────────────────────────────────────────────

#: A search that took more steps is not repeated while its page is open. Each step costs the store some ms.
LIVE_STEPS = 2
#: The most lists that are remembered, each of a page of jobs.
_MOST_LISTS = 200


@dataclass(frozen=True)
class FoundList:
    """What a search found, in its order; the cursor at which it goes on, how far it came, and the queues that
    it could not search."""

    refs: tuple[Ref, ...]
    next: str | None
    seen: int
    total: int
    away: tuple[str, ...] = ()


class FoundLists:
    """The lists that were found last."""

    def __init__(self) -> None:
        self._lists: OrderedDict[Hashable, FoundList] = OrderedDict()

    def get(self, key: Hashable) -> FoundList | None:
        """The list that was found for this visitor and address; None if its search is repeated."""
        found = self._lists.get(key)
        if found is not None:
            self._lists.move_to_end(key)
        return found

    def put(self, key: Hashable, found: FoundList) -> None:
        """Remember a list."""
        self.drop(key)
        self._lists[key] = found
        if len(self._lists) > _MOST_LISTS:
            self._lists.popitem(last=False)

    def drop(self, key: Hashable) -> None:
        """Forget the list of a search that has become short: it is repeated."""
        self._lists.pop(key, None)


# ── the store's clock ────────────────────────────────────────────────────────────────────────────

#: Seconds between two measurements.
_CLOCK_EVERY = 30.0
#: How long (s) a measurement may take: a page waits for it.
_CLOCK_PATIENCE = 1.0
#: A smaller distance (ms) is that of the network.
_SAME_CLOCK = 50


class StoreTime:
    """Tells the store's time by the clock of this machine and a measured distance between the two.

    Instants of jobs are the store's, so their age is counted by its clock, not by ours.
    """

    def __init__(self, read: Callable[[], Awaitable[int]]) -> None:
        self._read = read
        self._ahead = 0
        self._due = 0.0

    async def now(self) -> int:
        """The store's time (ms). If the store does not answer, the last distance counts."""
        at = time.monotonic()
        if at >= self._due:
            self._due = at + _CLOCK_EVERY
            await self._measure()
        return now_ms() + self._ahead

    async def _measure(self) -> None:
        before = now_ms()
        try:
            async with asyncio.timeout(_CLOCK_PATIENCE):
                found = await self._read()
        except (PenstockError, TimeoutError):
            return
        ahead = found - (before + now_ms()) // 2
        self._ahead = ahead if abs(ahead) > _SAME_CLOCK else 0
