"""Run the calls of a process on its SQLite file; calls that wait at the same time share one commit.

Calls from event loops run in one background thread. The thread takes all waiting calls, runs them in one
transaction, and answers after the commit. A sync call runs its transaction in the caller's thread if no other
call is waiting or running; otherwise it joins the waiting calls.

Only the background thread blocks on the fair write lock. If a stopped process holds the lock, only that
thread is stuck; the callers get StoreBusy when their patience ends.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import ParamSpec, TypeVar

from penstock.core.errors import PenstockError, StoreReentered, StoreUnavailable
from penstock.core.forks import Register, pause_during_fork, reset_after_fork
from penstock.stores.sql.notifying import Notifier
from penstock.stores.sql.transactions import PendingCall, Verb
from penstock.stores.sqlite.transactions import FileTransactions

P = ParamSpec("P")
R = TypeVar("R")


class Runner:
    """Runs verbs in the transactions of this process, for event loops and threads."""

    def __init__(self, transactions: FileTransactions) -> None:
        self._transactions = transactions
        self._write_lock = transactions.write_lock
        self._patience = transactions.patience
        self._start_empty()
        _RUNNERS.add(self)
        reset_after_fork(self)
        pause_during_fork(self)

    def _start_empty(self) -> None:
        """Set the state that belongs to one process."""
        self._transaction_lock = threading.RLock()  # its holder may use the transactions
        self._lock_holder = 0  # id of the thread that holds it
        self._waiting_lock = threading.RLock()  # guards removals from `_waiting`
        self._waiting: deque[PendingCall] = deque()
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._asleep = False
        self._writes_next = False  # True if waiting writes have let readers go first once
        self._watched: set[asyncio.AbstractEventLoop] = set()

    @property
    def notifiers(self) -> Mapping[str, Notifier]:
        return self._transactions.notifiers

    # ── calls ──

    def run(self, namespace: str, verb: Verb[P, R], *args: P.args, **_: P.kwargs) -> asyncio.Future[R]:
        """Run a verb in the background thread; return a future of the running event loop."""
        call = PendingCall(namespace, verb, args)
        call.loop = loop = asyncio.get_running_loop()
        call.future = future = loop.create_future()
        call.asked_at = time.monotonic()
        self._add(call)
        if loop not in self._watched:
            self._watch(loop)
        return future

    def run_sync(self, namespace: str, verb: Verb[P, R], *args: P.args, **_: P.kwargs) -> R:
        """Run a verb in this thread, or in the background thread if other calls are waiting or running."""
        call = PendingCall(namespace, verb, args)
        if not self._run_here(call):
            self._run_with_others(call)
        if call.error is not None:
            raise call.error
        answer: R = call.answer
        return answer

    def _run_here(self, call: PendingCall) -> bool:
        if self._lock_holder == threading.get_ident():
            raise self._reentered()
        if self._waiting:
            return False
        try:
            return self._acquire(blocking=False) and self._run_now(call)
        finally:
            try:
                self._release()
            except BaseException:  # boundary: an interrupt during the release
                self._release()
                raise

    def _run_now(self, call: PendingCall) -> bool:
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

    # A signal handler, or the timeout of a task, may raise between any two statements of a caller's thread.
    # So `_release` is always called, and does nothing if the thread holds nothing.

    def _acquire(self, *, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the transactions for this thread, which must not have them yet."""
        if not self._transaction_lock.acquire(blocking, timeout):
            return False
        self._lock_holder = threading.get_ident()
        return True

    def _release(self) -> None:
        """Release the write lock and the transactions; does nothing if this thread has neither."""
        if self._lock_holder == threading.get_ident():
            self._write_lock.release()
            self._lock_holder = 0
        try:
            self._transaction_lock.release()
        except RuntimeError:  # not held by this thread
            pass

    def _reentered(self) -> StoreReentered:
        return StoreReentered(f"sqlite:///{self._transactions.path}")

    def _would_wait_for_itself(self) -> bool:
        """Whether no call waiting here is answered before this thread goes on.

        It is in the middle of a call of this file, perhaps by another store object, or it is the background
        thread.
        """
        me, thread, path = threading.get_ident(), self._thread, self._transactions.path
        if thread is not None and thread.ident == me:
            return True
        return any(one._lock_holder == me and one._transactions.path == path for one in _RUNNERS.all())

    def _run_with_others(self, call: PendingCall) -> None:
        if self._would_wait_for_itself():
            raise self._reentered()
        call.answered = threading.Event()
        self._add(call)
        if not call.answered.wait(self._patience):
            if self._withdraw(call):
                raise self._transactions.too_long()
            call.answered.wait()  # the call is running now

    def _withdraw(self, call: PendingCall) -> bool:
        """Remove a waiting call, so that it never runs; return False if it has already been taken."""
        with self._waiting_lock:
            try:
                self._waiting.remove(call)
            except ValueError:
                return False
        return True

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Check once a second for overdue calls of this loop, while any of its calls wait."""
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

    # ── the background thread ──

    def _add(self, call: PendingCall) -> None:
        self._waiting.append(call)
        try:
            self._wake()
        except RuntimeError as error:  # the system refuses a new thread
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
        with self._waiting_lock:
            if self._thread is None:
                self._tokens = queue.SimpleQueue()
                self._tokens.put(True)
                thread = threading.Thread(
                    target=self._serve, args=(self._tokens,), name="penstock-sqlite", daemon=True
                )
                thread.start()
                self._thread = thread

    def _serve(self, tokens: queue.SimpleQueue[bool]) -> None:
        """Run the background thread until its queue yields False."""
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
            if self._waiting and tokens is self._tokens:  # a call was added before `_asleep` was set
                continue
            going = tokens.get()

    def _serve_waiting(self) -> None:
        """Answer the waiting calls: all that wait when the write lock is taken share one transaction."""
        calls: list[PendingCall] = []
        transactions = self._transactions
        try:
            calls = [] if self._writes_next else self._take_readers()
            # a constant flow of readers delays a write only once
            self._writes_next = bool(calls) and bool(self._waiting)
            if calls:
                left = transactions.probe(calls)
                self._answer(call for call in calls if not call.writes)
                with self._waiting_lock:
                    self._waiting.extendleft(reversed(left))
                return
            transactions.make_ready()
            self._write_lock.acquire()
            calls = self._take()  # including calls added while this thread waited for the write lock
            if calls:
                transactions.write(calls)
                self._answer(calls)
                calls = []
                transactions.tidy()
        except BaseException as error:  # noqa: BLE001  # boundary: the callers get the error
            calls = calls or self._take()
            for call in calls:
                call.error = call.error or transactions.ours(error)
            self._answer(calls)

    def _take(self) -> list[PendingCall]:
        """Take all waiting calls, one by one, because other threads add calls meanwhile."""
        waiting = self._waiting
        with self._waiting_lock:
            return [waiting.popleft() for _ in range(len(waiting))]

    def _take_readers(self) -> list[PendingCall]:
        """Take the waiting calls that need no write.

        A call that may need a write stays if another call needs one: then both share a transaction, e.g. a
        fetch and a settle that wait at the same time.
        """
        waiting = self._waiting
        with self._waiting_lock:
            calls = [waiting.popleft() for _ in range(len(waiting))]
            writes = any(call.writes for call in calls)
            readers = [call for call in calls if call.verb.reads or not writes]
            waiting.extendleft(call for call in reversed(calls) if not call.verb.reads and writes)
        return readers

    def _answer(self, calls: Iterable[PendingCall]) -> None:
        """Deliver the answers, with one callback per event loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[PendingCall]] = {}
        for call in calls:
            if call.answered is not None:
                call.answered.set()
            elif call.loop is not None:
                by_loop.setdefault(call.loop, []).append(call)
        for loop, ours in by_loop.items():
            try:
                loop.call_soon_threadsafe(_resolve, ours)
            except RuntimeError:  # the loop is closed, so nothing waits for the answers
                pass

    # ── closing and forks ──

    def close(self, patience: float = 5.0) -> None:
        """Answer the waiting calls, end the background thread, close all files. A later call reopens them."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._tokens.put(False)
            thread.join(patience)
        if thread is self._thread:
            self._thread = None
        if self._lock_holder == threading.get_ident():
            return  # close was called by a signal handler, during a call of the same thread
        try:
            if not self._acquire(timeout=patience):
                return  # the background thread waits for the write lock, which a stopped process holds
            self._transactions.close()
        finally:
            self._release()
        if self._waiting:  # calls were added meanwhile
            self._wake()

    # A forked child does not inherit SQLite's file locks, but inherits SQLite's records of them: if it opened
    # the file again, SQLite would assume that it holds the parent's locks. So the connection is closed before
    # a fork, and parent and child open new ones when needed. If a call uses the connection for too long at
    # that moment, the child abandons it.

    def before_fork(self, seconds: float) -> bool:
        """Close the connection, and keep it closed until the fork is done."""
        held = self._lock_holder != threading.get_ident() and self._acquire(timeout=seconds)
        if held:
            self._transactions.close()
        return held

    def after_fork(self) -> None:
        self._release()

    def reset_in_child(self) -> None:
        """Reset the state in a forked child: no background thread, no waiting calls, no connection."""
        self._transactions.leave_alone()
        self._start_empty()


#: All that exist.
_RUNNERS: Register[Runner] = Register()


def _resolve(calls: list[PendingCall]) -> None:
    """Set the results of the calls' futures, in their event loop."""
    for call in calls:
        future = call.future
        if future is not None and not future.done():
            if call.error is None:
                future.set_result(call.answer)
            elif isinstance(call.error, StopIteration):  # futures refuse StopIteration
                future.set_exception(RuntimeError(f"the call raised {call.error!r}"))
            else:
                future.set_exception(call.error)
