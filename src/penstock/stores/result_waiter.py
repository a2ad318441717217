"""The result waiter: waits for the ends of jobs in one event loop, with one store query for all waits.

The jobs of a new wait are checked together with those of all waits that begin at the same moment. Then the
store reports a job that has ended (`on_ended`), or that a job may have ended (`recheck`), and one query
checks all that are due. All jobs are also checked at an interval, even if no report arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

from penstock.core.job import Job, Ref
from penstock.core.loops import Batcher, start_later

#: What a check finds: the jobs that have ended; None for a job that does not exist.
EndedJobs = dict[Ref, Job | None]

#: Most queues that are checked at the usual interval ...
_QUEUES = 5
#: ... and seconds added to the interval per further queue: a store may have to query queue by queue.
_PER_QUEUE = 1.0
#: The pause after a check lasts as long as the check took, at most this (seconds).
_LONGEST_PAUSE = 0.1


class _Wait:
    """One wait: the jobs that are still open, and the ends that were not yet yielded."""

    __slots__ = ("error", "event", "found", "open")

    def __init__(self, open: set[Ref]) -> None:
        self.event = asyncio.Event()
        self.open = open
        self.found: EndedJobs = {}
        self.error: Exception | None = None


class ResultWaiter:
    """The result waiter of one event loop and store object.

    - `find_ended(refs, seconds)` returns the jobs that have ended, and has the store report the ends of the
      others for at least `seconds`.
    - `listening(call)`, for a store that reports by calls, is entered while there are waits.
    """

    def __init__(
        self,
        find_ended: Callable[[Sequence[Ref], float], Awaitable[EndedJobs]],
        *,
        every: float,
        listening: Callable[[Callable[[], None]], AbstractContextManager[None]] | None = None,
    ) -> None:
        self._find_ended = find_ended
        self._every = every
        self._listening = listening
        self._exit_stack: contextlib.ExitStack | None = None  # set while there are waits
        self._timer: asyncio.TimerHandle | None = None
        self._waits: dict[Ref, set[_Wait]] = {}
        self._first_checks: Batcher[list[Ref], None] = Batcher(self._check_first)
        self._to_recheck: set[Ref] = set()
        self._recheck_all = False
        self._task: asyncio.Task[None] | None = None
        self._paused_until = 0.0

    # ── waits ────────────────────────────────────────────────────────────────────────────────────

    async def stream_ends(self, refs: Iterable[Ref], timeout: int) -> AsyncGenerator[EndedJobs, None]:
        """As `StreamEnds`."""
        until = time.monotonic() + timeout / 1000
        with self._waiting(set(refs)) as wait:
            if wait.open:
                await self._first_checks.put(list(wait.open))
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

    async def wait_for_end(
        self, refs: Sequence[Ref], timeout: int, get: Callable[[Sequence[Ref]], Awaitable[list[Job | None]]]
    ) -> list[Job | None]:
        """As `WaitForEnd`; `get` returns the jobs that have not ended in time."""
        found: EndedJobs = {}
        async with contextlib.aclosing(self.stream_ends(refs, timeout)) as ends:
            async for some in ends:
                found |= some
        if left := [ref for ref in refs if ref not in found]:
            found |= zip(left, await get(left), strict=True)
        return [found[ref] for ref in refs]

    def awaited(self, ref: Ref) -> bool:
        """Whether there is a wait for this job."""
        return ref in self._waits

    # ── reports ──────────────────────────────────────────────────────────────────────────────────

    def on_ended(self, ended: EndedJobs) -> None:
        """Give these ended jobs to the waits for them."""
        for ref, job in ended.items():
            for wait in self._waits.pop(ref, ()):
                wait.open.discard(ref)
                wait.found[ref] = job
                wait.event.set()
        if not self._waits:
            self._stop()

    def recheck(self, ref: Ref | None = None) -> None:
        """Check this job, or all of them, as it may have ended."""
        if ref is None:
            self._recheck_all = True
        else:
            self._to_recheck.add(ref)
        if self._task is None and self._waits:
            self._task = start_later(self._check_again())

    # ── checks ───────────────────────────────────────────────────────────────────────────────────

    async def _check_first(self, wanted: list[list[Ref]]) -> list[None]:
        refs = dict.fromkeys(ref for some in wanted for ref in some)
        self.on_ended(await self._find_ended(list(refs), 2 * self._pause()))
        return [None] * len(wanted)

    async def _check_again(self) -> None:
        try:
            while refs := self._due_for_check():
                # frequent reports must not keep the store busy with checks alone
                if (rest := self._paused_until - time.monotonic()) > 0:
                    await asyncio.sleep(rest)
                began = time.monotonic()
                try:
                    self.on_ended(await self._find_ended(refs, 2 * self._pause()))
                except Exception as error:  # noqa: BLE001  # boundary: every wait gets the error
                    self._fail(refs, error)
                now = time.monotonic()
                self._paused_until = now + min(now - began, _LONGEST_PAUSE)
        finally:
            self._task = None

    def _due_for_check(self) -> list[Ref]:
        everybody, some = self._recheck_all, self._to_recheck
        self._recheck_all, self._to_recheck = False, set()
        return list(self._waits) if everybody else [ref for ref in some if ref in self._waits]

    def _fail(self, refs: Collection[Ref], error: Exception) -> None:
        for wait in {wait for ref in refs for wait in self._waits.get(ref, ())}:
            wait.error = error
            wait.event.set()

    # ── while there are waits ────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def _waiting(self, open: set[Ref]) -> Iterator[_Wait]:
        wait = _Wait(open)
        for ref in open:
            self._waits.setdefault(ref, set()).add(wait)
        try:
            if open and self._exit_stack is None:
                self._begin()
            yield wait
        finally:
            for ref in wait.open:
                waits = self._waits[ref]
                waits.discard(wait)
                if not waits:
                    del self._waits[ref]
            if not self._waits:
                self._stop()

    def _begin(self) -> None:
        self._exit_stack = contextlib.ExitStack()
        if self._listening is not None:
            self._exit_stack.enter_context(self._listening(self.recheck))
        self._set_timer()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._exit_stack is not None:
            self._exit_stack.close()
            self._exit_stack = None

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._pause(), self._on_timer)

    def _on_timer(self) -> None:
        self._set_timer()
        self.recheck()

    def _pause(self) -> float:
        queues = len({ref.queue for ref in self._waits})
        return self._every + _PER_QUEUE * max(0, queues - _QUEUES)
