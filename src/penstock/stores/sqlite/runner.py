"""Who asks, and who writes: what is asked at the same time is written in one commit.

One thread of ours serves whatever event loops ask: it takes all that waits, runs it in one transaction,
and answers after the commit. A thread that asks by itself (the sync door) does its own transaction in
place if nobody else is at it, and joins those who wait otherwise. Only our thread ever stands still at
the turnstile: a process that was stopped while it wrote holds up that thread, but everybody who asked
hears of it in time (StoreBusy).
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable
from typing import ParamSpec, TypeVar

from penstock.errors import PenstockError
from penstock.stores.sqlite.bell import Bell
from penstock.stores.sqlite.calls import Call, Verb
from penstock.stores.sqlite.transactions import Transactions

__all__ = ["Runner"]

P = ParamSpec("P")
R = TypeVar("R")


class Runner:
    """Hands verbs to the transactions of this process, from event loops and threads alike."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._turnstile = transactions.turnstile
        self._patience = transactions.patience
        self._begin_life()
        _RUNNERS.add(self)

    def _begin_life(self) -> None:
        """What belongs to one process: made anew in a fork's child."""
        self._pid = os.getpid()
        self._mine = threading.Lock()  # whoever holds it uses the transactions
        self._door = threading.Lock()  # taking from, or out of, those who wait
        self._waiting: deque[Call] = deque()
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._asleep = False
        self._watched: set[asyncio.AbstractEventLoop] = set()
        self._held_for_fork = False

    @property
    def bells(self) -> dict[str, Bell]:
        return self._transactions.bells

    # ── asking ──

    def ask(self, verb: Verb[P, R], *args: P.args, **_: P.kwargs) -> asyncio.Future[R]:
        """Let our thread do it; the future is of the running event loop."""
        call = Call(verb, args)
        call.loop = loop = asyncio.get_running_loop()
        call.future = future = loop.create_future()
        call.asked_at = time.monotonic()
        self._waiting.append(call)
        self._wake()
        if loop not in self._watched:
            self._watch(loop)
        return future

    def do(self, verb: Verb[P, R], *args: P.args, **_: P.kwargs) -> R:
        """Do it in this thread, now; with others, in our thread, if others are at it."""
        call = Call(verb, args)
        if not self._do_alone(call):
            self._do_with_others(call)
        if call.error is not None:
            raise call.error
        answer: R = call.answer
        return answer

    def _do_alone(self, call: Call) -> bool:
        if self._waiting or not self._mine.acquire(blocking=False):
            return False
        transactions = self._transactions
        try:
            if not call.writes and not transactions.peek([call]):
                return True
            transactions.make_ready()
            if not self._turnstile.try_enter():
                return False
            try:
                transactions.write([call])
                transactions.tidy()
            finally:
                self._turnstile.leave()
        except (sqlite3.Error, OSError, PenstockError) as error:
            call.error = transactions.ours(error)
        finally:
            self._mine.release()
        return True

    def _do_with_others(self, call: Call) -> None:
        call.gate = threading.Event()
        self._waiting.append(call)
        self._wake()
        if not call.gate.wait(self._patience):
            if self._withdraw(call):
                raise self._transactions.too_long()
            call.gate.wait()  # it is being done at this moment

    def _withdraw(self, call: Call) -> bool:
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

    def _wake(self) -> None:
        if self._thread is None:
            self._start()
        elif self._asleep:
            self._asleep = False
            self._tokens.put(True)

    def _start(self) -> None:
        with self._door:
            if self._thread is None:
                self._tokens = queue.SimpleQueue()
                self._tokens.put(True)
                self._thread = threading.Thread(
                    target=self._serve, args=(self._tokens,), name="penstock-sqlite", daemon=True
                )
                self._thread.start()

    def _serve(self, tokens: queue.SimpleQueue[bool]) -> None:
        """The life of our thread; it ends with a False."""
        going = True
        while going:
            self._asleep = False
            while self._waiting:
                with self._mine:
                    self._serve_waiting()
            self._asleep = True
            if self._waiting and tokens is self._tokens:  # asked before it could be seen that we sleep
                continue
            going = tokens.get()

    def _serve_waiting(self) -> None:
        """Answer what waits; all that waits when its turn comes goes into one transaction."""
        calls: list[Call] = []
        transactions = self._transactions
        try:
            calls = self._take_readers()
            if calls:
                left = transactions.peek(calls)
                self._answer(call for call in calls if not call.writes)
                with self._door:
                    self._waiting.extendleft(reversed(left))
                return
            transactions.make_ready()
            self._turnstile.enter()
            try:
                calls = self._take()  # also those who came while we stood at the turnstile
                if calls:
                    transactions.write(calls)
                    self._answer(calls)
                    calls = []
                    transactions.tidy()
            finally:
                self._turnstile.leave()
        except Exception as error:  # noqa: BLE001  # boundary: whoever asked hears of it, the thread goes on
            calls = calls or self._take()
            for call in calls:
                call.error = call.error or transactions.ours(error)
            self._answer(calls)

    def _take(self) -> list[Call]:
        """All who wait. One by one, for others come while we take."""
        waiting = self._waiting
        with self._door:
            return [waiting.popleft() for _ in range(len(waiting))]

    def _take_readers(self) -> list[Call]:
        """Those who wait and need no write. Whoever may need one goes along if somebody else writes anyway:
        a fetch with the settle that was asked at the same time."""
        waiting = self._waiting
        with self._door:
            calls = [waiting.popleft() for _ in range(len(waiting))]
            writes = any(call.writes for call in calls)
            readers = [call for call in calls if call.verb.reads or not writes]
            waiting.extendleft(call for call in reversed(calls) if not call.verb.reads and writes)
        return readers

    def _answer(self, calls: Iterable[Call]) -> None:
        """One call into each event loop, not one per question."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Call]] = {}
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
        if not self._mine.acquire(timeout=patience):
            return  # our thread stands at the turnstile, behind somebody who was stopped
        try:
            self._transactions.close()
        finally:
            self._mine.release()
        if self._waiting:  # asked meanwhile
            self._wake()

    def before_fork(self, patience: float) -> None:
        """Close the connection, and let nobody open it until the fork is made."""
        self._held_for_fork = self._mine.acquire(timeout=patience)
        if self._held_for_fork:
            self._transactions.close()

    def after_fork(self) -> None:
        if self._held_for_fork:
            self._held_for_fork = False
            self._mine.release()

    def after_fork_in_child(self) -> None:
        """A process of its own, without our thread and without what others had asked."""
        self._transactions.leave_alone()
        self._begin_life()


def _resolve(calls: list[Call]) -> None:
    """In the event loop: hand out the answers."""
    for call in calls:
        future = call.future
        if future is not None and not future.done():
            if call.error is None:
                future.set_result(call.answer)
            else:
                future.set_exception(call.error)


# SQLite's locks do not survive a fork, and its notes about them do: a child that opened the file again
# would believe that it holds the parent's locks. So the connection is closed before a fork, and both open
# their own when they need one. If it is in use just then for too long, the child leaves it alone.

_RUNNERS: weakref.WeakSet[Runner] = weakref.WeakSet()
_FORK_PATIENCE = 5.0


def _before_fork() -> None:
    for runner in list(_RUNNERS):
        runner.before_fork(_FORK_PATIENCE)


def _after_fork_in_parent() -> None:
    for runner in list(_RUNNERS):
        runner.after_fork()


def _after_fork_in_child() -> None:
    for runner in list(_RUNNERS):
        runner.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
