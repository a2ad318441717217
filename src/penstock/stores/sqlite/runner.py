"""Who asks, and who writes: what is asked at the same time is written in one commit.

One thread of ours serves whatever event loops ask: it takes all that waits, runs it in one transaction,
and answers after the commit. A thread that asks by itself (the sync door) does its own transaction in
place if nobody else is at it, and joins those who wait otherwise. Only our thread ever stands still at
the fair write lock: a process that was stopped while it wrote holds up that thread, but everybody who asked
hears of it in time (StoreBusy).
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import ParamSpec, TypeVar

from penstock.core.errors import PenstockError, StoreUnavailable
from penstock.core.forks import begins_anew, pauses
from penstock.stores.sqlite.calls import PendingCall, Verb
from penstock.stores.sqlite.notifier import Notifier
from penstock.stores.sqlite.transactions import Transactions

__all__ = ["Runner"]

P = ParamSpec("P")
R = TypeVar("R")


class Runner:
    """Hands verbs to the transactions of this process, from event loops and threads alike."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._write_lock = transactions.write_lock
        self._patience = transactions.patience
        self._start_empty()
        begins_anew(self)
        pauses(self)

    def _start_empty(self) -> None:
        """What belongs to one process."""
        self._mine = threading.RLock()  # whoever holds it uses the transactions
        self._inside = 0  # the thread that does
        self._door = threading.Lock()  # taking from, or out of, those who wait
        self._waiting: deque[PendingCall] = deque()
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._asleep = False
        self._writes_next = False  # whoever wants to write has let readers go first
        self._watched: set[asyncio.AbstractEventLoop] = set()

    @property
    def notifiers(self) -> dict[str, Notifier]:
        return self._transactions.notifiers

    # ── asking ──

    def ask(self, verb: Verb[P, R], *args: P.args, **_: P.kwargs) -> asyncio.Future[R]:
        """Let our thread do it; the future is of the running event loop."""
        call = PendingCall(verb, args)
        call.loop = loop = asyncio.get_running_loop()
        call.future = future = loop.create_future()
        call.asked_at = time.monotonic()
        self._add(call)
        if loop not in self._watched:
            self._watch(loop)
        return future

    def do(self, verb: Verb[P, R], *args: P.args, **_: P.kwargs) -> R:
        """Do it in this thread, now; with others, in our thread, if others are at it."""
        call = PendingCall(verb, args)
        if not self._do_alone(call):
            self._do_with_others(call)
        if call.error is not None:
            raise call.error
        answer: R = call.answer
        return answer

    def _do_alone(self, call: PendingCall) -> bool:
        if self._waiting or self._inside == threading.get_ident():
            return False
        try:
            return self._acquire(blocking=False) and self._do_now(call)
        finally:
            try:
                self._release()
            except BaseException:  # boundary: an interrupt in the middle of it
                self._release()
                raise

    def _do_now(self, call: PendingCall) -> bool:
        transactions = self._transactions
        try:
            if not call.writes and not transactions.probe([call]):
                return True
            transactions.make_ready()
            if not self._write_lock.try_acquire():
                return False
            transactions.write([call])
            transactions.tidy()
        except (sqlite3.Error, OSError, PenstockError) as error:
            call.error = transactions.ours(error)
        return True

    # A signal's handler, or the timeout of a task, may raise between any two statements of a caller's thread:
    # so what is taken is given back by who never knew whether he had it.

    def _acquire(self, *, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the transactions for this thread, which does not have them yet."""
        if not self._mine.acquire(blocking, timeout):
            return False
        self._inside = threading.get_ident()
        return True

    def _release(self) -> None:
        """Give back the write lock and the transactions; nothing if this thread has neither."""
        if self._inside == threading.get_ident():
            self._write_lock.release()
            self._inside = 0
        try:
            self._mine.release()
        except RuntimeError:  # not ours
            pass

    def _do_with_others(self, call: PendingCall) -> None:
        call.gate = threading.Event()
        self._add(call)
        if not call.gate.wait(self._patience):
            if self._withdraw(call):
                raise self._transactions.too_long()
            call.gate.wait()  # it is being done at this moment

    def _withdraw(self, call: PendingCall) -> bool:
        """Take back a question that nobody has begun to answer: it will not be done."""
        with self._door:
            try:
                self._waiting.remove(call)
            except ValueError:
                return False
        return True

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """While something of this loop waits, look once a second whether it has waited for too long."""
        self._watched = {one for one in self._watched if not one.is_closed()}
        self._watched.add(loop)
        loop.call_later(min(1.0, self._patience), self._give_up_overdue, loop)

    def _give_up_overdue(self, loop: asyncio.AbstractEventLoop) -> None:
        ours = [call for call in self._waiting.copy() if call.loop is loop]
        now = time.monotonic()
        for call in ours:
            if now - call.asked_at >= self._patience and self._withdraw(call):
                assert call.future is not None
                if not call.future.done():
                    call.future.set_exception(self._transactions.too_long())
        self._watched.discard(loop)
        if ours:
            self._watch(loop)

    # ── our thread ──

    def _add(self, call: PendingCall) -> None:
        self._waiting.append(call)
        try:
            self._wake()
        except RuntimeError as error:  # the system gives no thread
            self._withdraw(call)
            raise StoreUnavailable(
                f"{self._transactions.path}: {error}; nothing of this call was done"
            ) from error

    def _wake(self) -> None:
        if self._thread is None:
            self._start()
        if self._asleep:
            self._asleep = False
            self._tokens.put(True)

    def _start(self) -> None:
        with self._door:
            if self._thread is None:
                self._tokens = queue.SimpleQueue()
                self._tokens.put(True)
                thread = threading.Thread(
                    target=self._serve, args=(self._tokens,), name="penstock-sqlite", daemon=True
                )
                thread.start()
                self._thread = thread

    def _serve(self, tokens: queue.SimpleQueue[bool]) -> None:
        """The life of our thread; it ends with a False."""
        going = True
        while going:
            self._asleep = False
            while self._waiting:
                try:
                    self._acquire()
                    self._serve_waiting()
                finally:
                    self._release()
            self._asleep = True
            if self._waiting and tokens is self._tokens:  # asked before it could be seen that we sleep
                continue
            going = tokens.get()

    def _serve_waiting(self) -> None:
        """Answer what waits; all that waits when its turn comes goes into one transaction."""
        calls: list[PendingCall] = []
        transactions = self._transactions
        try:
            calls = [] if self._writes_next else self._take_readers()
            self._writes_next = bool(calls) and bool(
                self._waiting
            )  # readers come and come: a write waits once
            if calls:
                left = transactions.probe(calls)
                self._answer(call for call in calls if not call.writes)
                with self._door:
                    self._waiting.extendleft(reversed(left))
                return
            transactions.make_ready()
            self._write_lock.acquire()
            calls = self._take()  # also those who came while we stood at the fair write lock
            if calls:
                transactions.write(calls)
                self._answer(calls)
                calls = []
                transactions.tidy()
        except BaseException as error:  # noqa: BLE001  # boundary: the callers get it, the thread goes on
            calls = calls or self._take()
            for call in calls:
                call.error = call.error or transactions.ours(error)
            self._answer(calls)

    def _take(self) -> list[PendingCall]:
        """All who wait. One by one, for others come while we take."""
        waiting = self._waiting
        with self._door:
            return [waiting.popleft() for _ in range(len(waiting))]

    def _take_readers(self) -> list[PendingCall]:
        """Those who wait and need no write. Whoever may need one goes along if somebody else writes anyway:
        a fetch with the settle that was asked at the same time."""
        waiting = self._waiting
        with self._door:
            calls = [waiting.popleft() for _ in range(len(waiting))]
            writes = any(call.writes for call in calls)
            readers = [call for call in calls if call.verb.reads or not writes]
            waiting.extendleft(call for call in reversed(calls) if not call.verb.reads and writes)
        return readers

    def _answer(self, calls: Iterable[PendingCall]) -> None:
        """One call into each event loop, not one per question."""
        by_loop: dict[asyncio.AbstractEventLoop, list[PendingCall]] = {}
        for call in calls:
            if call.gate is not None:
                call.gate.set()
            elif call.loop is not None:
                by_loop.setdefault(call.loop, []).append(call)
        for loop, ours in by_loop.items():
            try:
                loop.call_soon_threadsafe(_resolve, ours)
            except RuntimeError:  # the loop is closed: nobody waits there any more
                pass

    # ── the end, and forks ──

    def close(self, patience: float = 5.0) -> None:
        """Answer what was asked, end our thread, let go of all files. Asking again opens again."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._tokens.put(False)
            thread.join(patience)
        if thread is self._thread:
            self._thread = None
        if self._inside == threading.get_ident():
            return  # a signal's handler, in the middle of a call of its thread
        try:
            if not self._acquire(timeout=patience):
                return  # our thread stands at the fair write lock, behind somebody who was stopped
            self._transactions.close()
        finally:
            self._release()
        if self._waiting:  # asked meanwhile
            self._wake()

    # SQLite's locks do not survive a fork, and its notes about them do: a child that opened the file again
    # would believe that it holds the parent's locks. So the connection is closed before a fork, and both open
    # their own when they need one. If it is in use just then for too long, the child leaves it alone.

    def before_fork(self, seconds: float) -> bool:
        """Close the connection, and let nobody open it until the fork is made."""
        held = self._inside != threading.get_ident() and self._acquire(timeout=seconds)
        if held:
            self._transactions.close()
        return held

    def after_fork(self) -> None:
        self._release()

    def begin_life(self) -> None:
        """A process of its own, without our thread and without what others had asked."""
        self._transactions.leave_alone()
        self._start_empty()


def _resolve(calls: list[PendingCall]) -> None:
    """In the event loop: hand out the answers."""
    for call in calls:
        future = call.future
        if future is not None and not future.done():
            if call.error is None:
                future.set_result(call.answer)
            elif isinstance(call.error, StopIteration):  # a future refuses it
                future.set_exception(RuntimeError(f"the call raised {call.error!r}"))
            else:
                future.set_exception(call.error)
