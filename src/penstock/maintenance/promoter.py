"""Makes scheduled jobs available when they are due, to the millisecond.

The promoter relates the store's clock to the clock of this process, and sleeps with a timer that is exact to
about 0.1 ms.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import math
import os
import sys
import time
from collections.abc import Callable, Sequence

from penstock.maintenance.service import Backoff, Service
from penstock.stores.contract import Due, Store


class Promoter(Service):
    """Sleeps until the next job is due; `expect` announces an earlier one.

    The store's clock decides what is due: a promotion that comes too early moves nothing. `queues` may be a
    function: then each promotion is of the queues that it returns. `on_moved` gets the number of moved jobs.
    """

    name = "promoter"

    def __init__(
        self,
        store: Store,
        queues: Sequence[str] | Callable[[], Sequence[str]],
        *,
        look: float = 5.0,
        batch: int = 1_000,
        on_moved: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__()
        self._store = store
        self._queues = queues if callable(queues) else tuple(queues)
        self._look = look
        self._batch = batch
        self._on_moved = on_moved
        self._wakes_at = -math.inf  # monotonic; -inf during a tick
        self._expected: set[int] = set()  # instants that were expected during the tick
        self._backoff = Backoff(most=look)
        self._stuck_at: int | None = None  # the time of due jobs that the last tick did not move
        self._store_clock = StoreClock()
        self._timer = PreciseTimer(self.wake)

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            self._timer.close()

    async def tick(self) -> float:
        self._wakes_at = -math.inf
        self._expected.clear()
        self._timer.cancel()
        sent = time.monotonic()
        queues = self._queues() if callable(self._queues) else self._queues
        due = await self._store.promote(queues, limit=self._batch)
        past = self._store_clock.take(due.now, sent)
        if due.set_aside:
            self.on_set_aside(due.set_aside)
        if due.moved and self._on_moved is not None:
            self._on_moved(due.moved)
        if due.moved >= self._batch:
            return 0.0
        following = self._following(due)
        wait = self._look if following is None else max(0.0, (following - due.now) / 1000 - past)
        wait = min(max(wait, self._pause(due)), self._look)
        self._wakes_at = time.monotonic() + wait
        return wait

    def _following(self, due: Due) -> int | None:
        """When the next job is due: this promotion may have missed one that was expected meanwhile."""
        later = (instant for instant in self._expected if instant > due.now)
        return min([*later] if due.next is None else [due.next, *later], default=None)

    def _pause(self, due: Due) -> float:
        """Seconds to pause if due jobs were neither moved nor set aside."""
        stuck_at, self._stuck_at = self._stuck_at, None
        if due.moved or due.set_aside or due.next is None or due.next > due.now:
            self._backoff.reset()
            return 0.0
        self._stuck_at = due.next
        if stuck_at != due.next:  # expired jobs were cancelled instead of moved: continue with the next ones
            self._backoff.reset()
            return 0.0
        return self._backoff.next_pause()

    async def _sleep(self, seconds: float) -> None:
        self._timer.set(time.monotonic() + seconds)
        await self._woken.wait()

    def expect(self, due: int, now: int) -> None:
        """Wake in time for a job that is due at `due`, by the store's clock, which shows `now`."""
        past = self._store_clock.take(now)
        if self._stopping or (due <= now and self._stuck_at is not None):  # or these jobs do not move
            return
        if self._wakes_at == -math.inf:
            self._expected.add(due)
            return
        at = time.monotonic() + (due - now) / 1000 - past
        if at < self._wakes_at - 0.0001:
            self._wakes_at = at
            self._timer.set(at)


# ── the store's clock ────────────────────────────────────────────────────────────────────────────


#: How far two clocks may drift apart in a second (s): the bounds widen as the readings grow old.
_DRIFT = 5e-5
#: A reading is a whole millisecond: the clock shows at least it, and less than one more (s).
_UNIT = 0.001


class StoreClock:
    """Bounds of the store's clock, from the readings that come with its answers.

    The clock was read after the request was sent and before its answer came. The bounds of all readings
    together are much closer than a millisecond. A reading that contradicts them replaces them, e.g. because
    the store's clock was set.
    """

    def __init__(self) -> None:
        # bounds of the store's clock minus `time.monotonic` (s)
        self._least, self._most = -math.inf, math.inf
        self._at = 0.0  # when the last reading came

    def take(self, now: int, sent: float | None = None) -> float:
        """Take a reading that has just come, and return how far (s) the store's clock is past it.

        `sent`: `time.monotonic` before the request was sent; None if it is unknown.
        """
        came = time.monotonic()
        reading = now / 1000 - came
        limit = math.inf if sent is None else now / 1000 + _UNIT - sent
        widened = (came - self._at) * _DRIFT
        least, most = max(self._least - widened, reading), min(self._most + widened, limit)
        if least > most:
            least, most = reading, limit
        self._least, self._most, self._at = least, most, came
        return (least if most == math.inf else (least + most) / 2) - reading


# ── the timer ────────────────────────────────────────────────────────────────────────────────────


# <sys/timerfd.h>; Python has these functions from 3.13 on
_MONOTONIC, _FLAGS, _ABSOLUTE = 1, os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0), 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class PreciseTimer:
    """Calls a function once at an instant, in the event loop in which the timer was first set.

    Timers of event loops count whole milliseconds. Measured over 300 waits, median and 90 %: uvloop's timers
    are 0.2 and 0.6 ms late, and up to 0.4 ms early; those of asyncio 0.7 and 1.8 ms late; the kernel's
    (`timerfd`) 0.1 and 0.2 ms late. Where the system has no `timerfd`, the timer of the event loop is used.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._fd = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        """Call the function at this instant of `time.monotonic`, which replaces an instant set before."""
        if self._loop is None:
            self._open()
        assert self._loop is not None
        if self._fd >= 0:
            self._set_fd(max(1, int(at * 1e9)))
            return
        self.cancel()
        self._handle = self._loop.call_later(max(0.0, at - self._loop.time()), self._call)

    def cancel(self) -> None:
        """Do not call the function, unless `set` is called again."""
        if self._fd >= 0:
            self._set_fd(0)
        elif self._handle is not None:
            self._handle.cancel()

    def close(self) -> None:
        """Cancel the timer and release its file descriptor."""
        self.cancel()
        if self._fd >= 0 and self._loop is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._fd)
            os.close(self._fd)
        self._fd, self._loop = -1, None

    def _open(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        libc = _libc()
        fd = -1 if libc is None else libc.timerfd_create(_MONOTONIC, _FLAGS)
        if fd < 0:
            return
        try:
            loop.add_reader(fd, self._expired)
        except NotImplementedError:  # a loop without add_reader
            os.close(fd)
        else:
            self._fd = fd

    def _set_fd(self, nanoseconds: int) -> None:
        """Set the instant of the kernel's timer; 0 cancels it."""
        libc = _libc()
        assert libc is not None
        value = _Timespec(*divmod(nanoseconds, 1_000_000_000))
        libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(_Setting(_Timespec(0, 0), value)), None)

    def _expired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # it was set anew since it became readable
            return
        self._call()


@functools.cache
def _libc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        libc = ctypes.CDLL(None)
        libc.timerfd_create.argtypes = [ctypes.c_int, ctypes.c_int]
        libc.timerfd_settime.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    except (OSError, AttributeError):  # no usable C library
        return None
    return libc
