"""A thread pool for plain functions: one queue put per call, one loop wake-up per batch of ends."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from penstock.core.errors import ConfigError, Interrupted

_log = logging.getLogger("penstock.worker")

#: When the system gives no more threads, the pool tries again after this long (s).
RETRY_AFTER = 0.5

#: A call that has ended: its ticket, its result, its exception.
Done = tuple[Any, Any, BaseException | None]


class CallThreadPool:
    """Runs calls in up to `size` threads and passes their ends to `on_done`, on the event loop, in batches.

    A ticket is the caller's key for a call, compared by identity. All methods must be called on the loop that
    `start` was called on. Threads start when they are needed and are daemons: a call that never returns does
    not keep the process alive. While the system gives no more threads, calls wait for those that exist.
    """

    def __init__(
        self, size: int, on_done: Callable[[list[Done]], None], *, name: str = "penstock-thread"
    ) -> None:
        if size < 1:
            raise ConfigError(f"size={size} must be 1 or more")
        self.size = size
        #: Threads given up because their call did not end; each was replaced.
        self.lost = 0
        #: Calls of given-up threads that ended later; their results were dropped.
        self.late = 0
        #: Calls submitted and not reported yet.
        self.busy = 0
        self._on_done = on_done
        self._name = name
        self._started = 0  # threads started so far, for their names
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inbox: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._ended: deque[Done] = deque()
        self._woken = False
        self._workers: list[_PoolThread] = []
        self._dropped: list[Any] = []
        self._lacking = self._lack_logged = False  # too few threads; and whether that was logged
        self._closed = False

    def start(self) -> None:
        """Bind the pool to the running event loop."""
        self._loop = asyncio.get_running_loop()

    def submit(
        self, ticket: Any, call: Callable[[], Any], context: contextvars.Context | None = None
    ) -> None:
        """Run `call` in a thread, inside `context` (None: an empty one, so that jobs share no variables)."""
        if self._loop is None:
            raise ConfigError("the thread pool has not been started: call start() on the event loop first")
        self.busy += 1
        if self.busy > len(self._workers) < self.size and not self._lacking:
            self._add_thread()
        if context is None:
            context = contextvars.Context()
        self._inbox.put((ticket, context, call, [_PERMIT]))

    def run(
        self, ticket: Any, call: Callable[[], Any], context: contextvars.Context | None = None
    ) -> asyncio.Future[Any]:
        """Run `call` like `submit`, but return a future that gets its end instead of `on_done`.

        Cancelling the future does not stop the call; `interrupt` may.
        """
        awaited = _Awaited(ticket, asyncio.get_running_loop().create_future())
        self.submit(awaited, call, context)
        return awaited.future

    def started_at(self, ticket: Any) -> float | None:
        """When (`time.monotonic()`) the call started; None while it waits and after it has ended."""
        worker = self._worker_of(ticket)
        if worker is None:
            return None
        call, started = worker.call, worker.started
        # the thread writes `started` before `call`: the same call before and after means the pair is whole
        return started if call is not None and _same_ticket(call[0], ticket) and worker.call is call else None

    def thread_of(self, ticket: Any) -> int | None:
        """The ident of the thread that runs the call now; None while it waits and after it has ended."""
        worker = self._worker_of(ticket)
        return None if worker is None else worker.ident

    def interrupt(self, ticket: Any, error: type[Interrupted]) -> bool:
        """Raise `error` inside the running call, as soon as it runs Python code again.

        False if the call does not run, or was interrupted before: a call is interrupted at most once. The
        exception never reaches another call of that thread, nor the pool's own code.
        """
        worker = self._worker_of(ticket)
        call = None if worker is None else worker.call
        if worker is None or call is None or not _same_ticket(call[0], ticket) or _raise_in is None:
            return False
        permit = call[3]
        try:
            token = permit.pop()
        except IndexError:  # the call has ended
            return False
        if token is _RAISED:
            permit.append(token)
            return False
        hit = _raise_in(worker.ident, error)
        permit.append(_RAISED)
        return hit

    def abandon(self, ticket: Any) -> bool:
        """Give up the thread that runs the call and replace it; the call's late end is dropped.

        False if the call has ended in the meantime: then its end is reported as usual.
        """
        worker = self._worker_of(ticket)
        if worker is None or any(_same_ticket(done[0], ticket) for done in self._ended):
            return False
        worker.abandoned = True
        self._workers.remove(worker)
        self._dropped.append(ticket)
        self.lost += 1
        self.busy -= 1
        if self.busy > len(self._workers) and not self._lacking:
            self._add_thread()
        return True

    def take_back(self) -> list[Any]:
        """Remove calls of `submit` that have not started, and return their tickets in order."""
        calls: list[_Call | None] = []
        with contextlib.suppress(queue.Empty):
            while True:
                calls.append(self._inbox.get_nowait())
        tickets = []
        for call in calls:
            if call is None or type(call[0]) is _Awaited:
                self._inbox.put(call)
            else:
                tickets.append(call[0])
        self.busy -= len(tickets)
        return tickets

    def close(self, timeout: float = 1.0) -> bool:
        """End each thread after its call, waiting up to `timeout` seconds. True if all have ended."""
        self._closed = True
        until = time.monotonic() + timeout
        for _ in range(self._started):
            self._inbox.put(None)
        for worker in self._workers:
            worker.thread.join(max(0.0, until - time.monotonic()))
        alive = any(worker.thread.is_alive() for worker in self._workers)
        self._workers.clear()
        return not alive

    # ── on the event loop ────────────────────────────────────────────────────────────────────────

    def _add_thread(self) -> None:
        worker, name = _PoolThread(), f"{self._name}-{self._started + 1}"
        try:
            worker.thread = threading.Thread(target=self._serve, args=(worker,), name=name, daemon=True)
            worker.thread.start()
        except RuntimeError as error:
            self._on_lack(error)
            return
        self._started += 1
        self._workers.append(worker)
        self._lack_logged = False

    def _on_lack(self, error: RuntimeError) -> None:
        """Log that no thread could be started, and try again later.

        A limit of the user or the container is reached, or Python's thread hooks are broken; either may pass.
        The caller could only release the job and fetch it again.
        """
        if not self._lack_logged:
            have = f"{len(self._workers)} of {self.size}"
            _log.error("%s: only %s threads could be started: %s", self._name, have, error)
        self._lack_logged = self._lacking = True
        assert self._loop is not None
        self._loop.call_later(RETRY_AFTER, self._try_again)

    def _try_again(self) -> None:
        self._lacking = self._closed
        while self.busy > len(self._workers) < self.size and not self._lacking:
            self._add_thread()

    def _worker_of(self, ticket: Any) -> _PoolThread | None:
        for worker in self._workers:
            call = worker.call
            if call is not None and _same_ticket(call[0], ticket):
                return worker
        return None

    def _deliver(self) -> None:
        self._woken = False  # reset before taking: a thread that adds an end later wakes the loop again
        ended = self._ended
        batch = [ended.popleft() for _ in range(len(ended))]
        if self._dropped:
            batch = [done for done in batch if not self._is_dropped(done[0])]
        self.busy -= len(batch)
        plain = [done for done in batch if type(done[0]) is not _Awaited]
        if len(plain) < len(batch):
            for awaited, value, error in batch:
                if type(awaited) is _Awaited:
                    awaited.end(value, error)
        if plain:
            self._on_done(plain)

    def _is_dropped(self, ticket: Any) -> bool:
        for i, dropped in enumerate(self._dropped):
            if _same_ticket(ticket, dropped):
                del self._dropped[i]
                self.late += 1
                return True
        return False

    # ── in a thread ──────────────────────────────────────────────────────────────────────────────

    def _serve(self, worker: _PoolThread) -> None:
        """Run calls in one thread. An interrupt can be raised between START and END, once per call."""
        loop, inbox, ended, monotonic = self._loop, self._inbox, self._ended, time.monotonic
        assert loop is not None
        worker.ident = threading.get_ident()
        while (call := inbox.get()) is not None:
            value: Any = _UNFINISHED
            error: BaseException | None = None
            ticket, context, function, permit = call
            worker.started = monotonic()
            try:
                try:
                    worker.call = call  # START
                    value = context.run(function)
                except BaseException as caught:  # noqa: BLE001  # boundary: any exception is the end of a job
                    error = caught
                _close(permit)  # END
            except Interrupted as caught:  # it arrived after the function had ended
                if value is _UNFINISHED and error is None:
                    error = caught
            worker.call = None
            ended.append((ticket, None if value is _UNFINISHED else value, error))
            if not self._woken:
                self._woken = True
                try:
                    loop.call_soon_threadsafe(self._deliver)
                except RuntimeError:  # the loop is closed: nothing is left to report to
                    return
            if worker.abandoned:
                return
            # an idle thread must not keep its last job's objects alive
            del call, value, error, ticket, context, function, permit


class _PoolThread:
    """A thread and the call it runs now."""

    __slots__ = ("abandoned", "call", "ident", "started", "thread")

    def __init__(self) -> None:
        self.thread: threading.Thread
        self.ident = 0
        self.call: _Call | None = None
        self.started = 0.0
        self.abandoned = False


class _Awaited:
    """The ticket of a call that is awaited."""

    __slots__ = ("future", "ticket")

    def __init__(self, ticket: Any, future: asyncio.Future[Any]) -> None:
        self.ticket = ticket
        self.future = future

    def end(self, value: Any, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(value)
        elif isinstance(error, StopIteration):  # a future does not accept StopIteration
            self.future.set_exception(RuntimeError(f"the call raised {error!r}"))
        else:
            self.future.set_exception(error)


def _same_ticket(known: Any, ticket: Any) -> bool:
    return known is ticket or (type(known) is _Awaited and known.ticket is ticket)


# ── the interrupt guard ──────────────────────────────────────────────────────────────────────────
#
# Each call carries a list with one token in it: the permit to interrupt the call. `list.pop` is atomic, so
# either the interrupter gets the token and may raise in that thread, or the thread gets it when the call ends
# and no interrupt is possible any more. A lock would not do: an exception raised between acquiring the lock
# and entering its `with` would leave it locked.

_PERMIT: Final = object()
_RAISED: Final = object()
_UNFINISHED: Final = object()

_Call = tuple[Any, contextvars.Context, Callable[[], Any], list[object]]


def _close(permit: list[object]) -> None:
    """End a call so that no interrupt of it is pending or can follow.

    A pending interrupt may be raised here.
    """
    try:
        token = permit.pop()
    except IndexError:  # the interrupter has the token and is about to raise
        while not permit:
            time.sleep(0.0001)
        token = _RAISED
    if token is _RAISED:
        _absorb()


def _absorb() -> None:
    """Raise and catch an interrupt in this thread: it replaces one that was not raised yet.

    Withdrawing the interrupt would leave the interpreter's mark that one is pending, in all threads: calls of
    functions are slower from then on, and in CPython 3.11 a profiler or debugger hangs at the next one.
    """
    try:
        if _raise_in is not None and _raise_in(threading.get_ident(), Interrupted):
            while True:
                pass  # it is raised at the end of a round
    except Interrupted:
        pass


def _asynchronous_raise() -> Callable[[int, type[BaseException]], bool] | None:
    """Make a function that raises an error in another thread; None outside CPython."""
    try:
        import ctypes

        call = ctypes.pythonapi.PyThreadState_SetAsyncExc
    except (ImportError, AttributeError):
        return None
    call.argtypes, call.restype = (ctypes.c_ulong, ctypes.py_object), ctypes.c_int

    def raise_in(ident: int, error: type[BaseException]) -> bool:
        return bool(call(ident, ctypes.py_object(error)))

    return raise_in


_raise_in = _asynchronous_raise()
