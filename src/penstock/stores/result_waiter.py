"""Waiting for the ends of jobs in one event loop: the store is asked once for all who wait, not for each.

Whoever begins to wait has his jobs looked at, together with those of all who begin at the same moment. From
then on news comes from the store: it says of a job that it has ended (`tell`), or that something may have
(`doubt`), and then all are looked at in one question. Now and then they are, whatever was heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

from penstock.core.batcher import Batcher
from penstock.core.job import Job, Ref

__all__ = ["Ended", "Endings"]

#: What a look finds: those that have ended, as they are, and None for each that is gone.
Ended = dict[Ref, Job | None]

#: Over so many queues a look comes at its usual pace ...
_QUEUES = 5
#: ... and for each further one this much later (seconds): a store may have to ask queue by queue.
_PER_QUEUE = 1.0
#: After a look that was large we rest as long as it took, at most this long (seconds).
_REST = 0.1


class _Wait:
    """One wait: for what it is, and what it has not yet been told."""

    __slots__ = ("error", "event", "found", "open")

    def __init__(self, open: set[Ref]) -> None:
        self.event = asyncio.Event()
        self.open = open
        self.found: Ended = {}
        self.error: Exception | None = None


class Endings:
    """Of one event loop and store object.

    `look(refs, seconds)` finds those of these jobs that have ended, and has the store tell of the others for
    at least that long; `listening(heard)`, if the store tells by calls, is entered while anybody waits.
    """

    def __init__(
        self,
        look: Callable[[Sequence[Ref], float], Awaitable[Ended]],
        *,
        every: float,
        listening: Callable[[Callable[[], None]], AbstractContextManager[None]] | None = None,
    ) -> None:
        self._look = look
        self._every = every
        self._listening = listening
        self._ear: contextlib.ExitStack | None = None  # there is one while anybody waits
        self._timer: asyncio.TimerHandle | None = None
        self._waits: dict[Ref, set[_Wait]] = {}
        self._first_looks: Batcher[list[Ref], None] = Batcher(self._look_first)
        self._doubted: set[Ref] = set()
        self._all_doubted = False
        self._task: asyncio.Task[None] | None = None
        self._rests_until = 0.0

    # ── who waits ────────────────────────────────────────────────────────────────────────────────

    async def ends(self, refs: Iterable[Ref], timeout: int) -> AsyncGenerator[Ended, None]:
        """As `Producing.ends`."""
        until = time.monotonic() + timeout / 1000
        with self._waiting(set(refs)) as wait:
            if wait.open:
                await self._first_looks.put(list(wait.open))
            while True:
                if wait.found:
                    found, wait.found = wait.found, {}
                    yield found
                    continue
                if wait.error is not None:
                    raise wait.error
                left = until - time.monotonic()
                if not wait.open or left <= 0:
                    return
                wait.event.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await wait.event.wait()

    async def ended(
        self, refs: Sequence[Ref], timeout: int, get: Callable[[Sequence[Ref]], Awaitable[list[Job | None]]]
    ) -> list[Job | None]:
        """As `Producing.ended`; `get` says how those are that have not ended by then."""
        found: Ended = {}
        async with contextlib.aclosing(self.ends(refs, timeout)) as ends:
            async for some in ends:
                found |= some
        if left := [ref for ref in refs if ref not in found]:
            found |= zip(left, await get(left), strict=True)
        return [found[ref] for ref in refs]

    def awaited(self, ref: Ref) -> bool:
        """Whether anybody waits for this one."""
        return ref in self._waits

    # ── news ─────────────────────────────────────────────────────────────────────────────────────

    def tell(self, ended: Ended) -> None:
        """These have ended."""
        for ref, job in ended.items():
            for wait in self._waits.pop(ref, ()):
                wait.open.discard(ref)
                wait.found[ref] = job
                wait.event.set()
        if not self._waits:
            self._rest()

    def doubt(self, ref: Ref | None = None) -> None:
        """This one may have ended, or any: look."""
        if ref is None:
            self._all_doubted = True
        else:
            self._doubted.add(ref)
        if self._task is None and self._waits:
            self._task = asyncio.get_running_loop().create_task(self._look_again())

    # ── looking ──────────────────────────────────────────────────────────────────────────────────

    async def _look_first(self, wanted: list[list[Ref]]) -> list[None]:
        refs = dict.fromkeys(ref for some in wanted for ref in some)
        self.tell(await self._look(list(refs), 2 * self._pause()))
        return [None] * len(wanted)

    async def _look_again(self) -> None:
        try:
            while refs := self._to_look_at():
                # what is rung for again and again must not keep the store busy with looks alone
                if (rest := self._rests_until - time.monotonic()) > 0:
                    await asyncio.sleep(rest)
                began = time.monotonic()
                try:
                    self.tell(await self._look(refs, 2 * self._pause()))
                except Exception as error:  # noqa: BLE001  # boundary: who waits hears of it, whatever it is
                    self._fail(refs, error)
                now = time.monotonic()
                self._rests_until = now + min(now - began, _REST)
        finally:
            self._task = None

    def _to_look_at(self) -> list[Ref]:
        everybody, some = self._all_doubted, self._doubted
        self._all_doubted, self._doubted = False, set()
        return list(self._waits) if everybody else [ref for ref in some if ref in self._waits]

    def _fail(self, refs: Collection[Ref], error: Exception) -> None:
        for wait in {wait for ref in refs for wait in self._waits.get(ref, ())}:
            wait.error = error
            wait.event.set()

    # ── while anybody waits ──────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def _waiting(self, open: set[Ref]) -> Iterator[_Wait]:
        wait = _Wait(open)
        for ref in open:
            self._waits.setdefault(ref, set()).add(wait)
        try:
            if open and self._ear is None:
                self._begin()
            yield wait
        finally:
            for ref in wait.open:
                waits = self._waits[ref]
                waits.discard(wait)
                if not waits:
                    del self._waits[ref]
            if not self._waits:
                self._rest()

    def _begin(self) -> None:
        self._ear = contextlib.ExitStack()
        if self._listening is not None:
            self._ear.enter_context(self._listening(self.doubt))
        self._set_timer()

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ear is not None:
            self._ear.close()
            self._ear = None

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._pause(), self._time_to_look)

    def _time_to_look(self) -> None:
        self._set_timer()
        self.doubt()

    def _pause(self) -> float:
        queues = len({ref.queue for ref in self._waits})
        return self._every + _PER_QUEUE * max(0, queues - _QUEUES)
