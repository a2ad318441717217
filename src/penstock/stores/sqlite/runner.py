"""Owns the connection and the transactions: what is asked at the same time is written in one commit.

A process has one connection to a file, one at a time uses it, and one thread of ours serves whatever
was asked by event loops: it takes all that waits, runs it in one transaction, and answers after the
commit. A thread that asks by itself (the sync door) does its own transaction in place if nobody else is
there, and joins those who wait otherwise. Only our thread ever stands still at the turnstile: a process
that was stopped while it wrote delays others, but everybody else gets his answer (StoreBusy) in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from penstock.clock import Clock
from penstock.errors import PenstockError, StoreError
from penstock.stores.sqlite.bell import ENDED, WORK, Bell
from penstock.stores.sqlite.checkpoint import Checkpointer
from penstock.stores.sqlite.faults import busy, os_fault, translated
from penstock.stores.sqlite.file import is_ready, open_file, prepare, sidecar
from penstock.stores.sqlite.step import Step
from penstock.stores.sqlite.turnstile import Turnstile
from penstock.stores.sqlite.verbs.act import ACT, Act

__all__ = ["Runner", "Verb"]

P = ParamSpec("P")
R = TypeVar("R")


class Verb(Generic[P, R]):
    """A function of a Step, and how it is to be run.

    `reads`: it changes nothing, and needs no turnstile. `peek`: may answer without a write. `syncs`: what
    it has written must survive a power cut once it is answered.
    """

    __slots__ = ("act", "peek", "reads", "syncs")

    def __init__(
        self,
        act: Callable[Concatenate[Step, P], R],
        *,
        peek: Callable[Concatenate[Step, P], R | Act] | None = None,
        reads: bool = False,
        syncs: bool = True,
    ) -> None:
        self.act = act
        self.peek = act if reads else peek
        self.reads = reads
        self.syncs = syncs and not reads


class _Call:
    """One question, and where its answer goes."""

    __slots__ = ("answer", "args", "asked_at", "error", "future", "gate", "loop", "verb", "writes")

    def __init__(self, verb: Verb[..., Any], args: tuple[Any, ...]) -> None:
        self.verb = verb
        self.args = args
        self.writes = verb.peek is None
        self.answer: Any = None
        self.error: BaseException | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.future: asyncio.Future[Any] | None = None
        self.gate: threading.Event | None = None
        self.asked_at = 0.0


class Runner:
    """The connection of this process to one file."""

    def __init__(
        self,
        path: Path,
        *,
        namespace: str,
        clock: Clock,
        full_sync: bool,
        patience: int,
        on_open: Callable[[Step], None],
    ) -> None:
        self.path = path
        self._namespace = namespace
        self._clock = clock
        self._full_sync = full_sync
        self._patience = patience / 1000
        self._on_open = on_open
        folder = path.with_name(path.name + "-penstock")
        self.bells = {name: Bell(folder / name) for name in (WORK, ENDED)}
        self._turnstile = Turnstile(folder)
        self._checkpointer = Checkpointer(patience)
        self._cx: sqlite3.Connection | None = None
        self._step: Step | None = None  # of this connection, used again by every transaction
        self._synced_fully = False
        self._sidecar_open = False
        self._held_for_fork = False
        self._begin_life()
        _RUNNERS.add(self)

    def _begin_life(self) -> None:
        """What belongs to one process: made anew in a fork's child."""
        self._pid = os.getpid()
        self._mine = threading.Lock()  # whoever holds it uses the connection
        self._door = threading.Lock()  # taking from, or out of, those who wait
        self._waiting: deque[_Call] = deque()
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._asleep = False
        self._watched: set[asyncio.AbstractEventLoop] = set()

    # ── asking ──

    def ask(self, verb: Verb[P, R], *args: P.args, **_: P.kwargs) -> asyncio.Future[R]:
        """Let our thread do it; the future is of the running event loop."""
        call = _Call(verb, args)
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
        call = _Call(verb, args)
        if not self._do_alone(call):
            self._do_with_others(call)
        if call.error is not None:
            raise call.error
        answer: R = call.answer
        return answer

    def _do_alone(self, call: _Call) -> bool:
        if self._waiting or not self._mine.acquire(blocking=False):
            return False
        try:
            if not call.writes and not self._peek([call]):
                return True
            self._make_ready()
            if not self._turnstile.try_enter():
                call.writes = True
                return False
            try:
                self._transact([call])
                self._tidy()
            finally:
                self._turnstile.leave()
        except (sqlite3.Error, OSError, PenstockError) as error:
            call.error = self._ours(error)
        finally:
            self._mine.release()
        return True

    def _do_with_others(self, call: _Call) -> None:
        call.gate = threading.Event()
        self._waiting.append(call)
        self._wake()
        if not call.gate.wait(self._patience):
            if self._withdraw(call):
                raise self._too_long()
            call.gate.wait()  # it is being done at this moment

    def _withdraw(self, call: _Call) -> bool:
        """Take back a question that nobody has begun to answer."""
        with self._door:
            try:
                self._waiting.remove(call)
            except ValueError:
                return False
        return True

    def _too_long(self) -> StoreError:
        return busy(self.path, f"another process has held it for {self._patience:.3g} s")

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """While something of this loop waits, look once a second whether it has waited for too long."""
        self._watched = {one for one in self._watched if not one.is_closed()}
        self._watched.add(loop)
        loop.call_later(min(1.0, self._patience), self._give_up_overdue, loop)

    def _give_up_overdue(self, loop: asyncio.AbstractEventLoop) -> None:
        ours = [call for call in list(self._waiting) if call.loop is loop]
        now = time.monotonic()
        for call in ours:
            if now - call.asked_at >= self._patience and self._withdraw(call):
                assert call.future is not None
                if not call.future.done():
                    call.future.set_exception(self._too_long())
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
                    target=_serve, args=(self, self._tokens), name="penstock-sqlite", daemon=True
                )
                self._thread.start()

    def serve(self, tokens: queue.SimpleQueue[bool]) -> None:
        """The life of our thread."""
        going = True
        while going:
            self._asleep = False
            while self._waiting:
                with self._mine:
                    self._serve_waiting()
            self._asleep = True
            if self._waiting and tokens is self._tokens:  # asked before it could see that we sleep
                continue
            going = tokens.get()

    def _serve_waiting(self) -> None:
        """Answer what waits; all that waits when its turn comes goes into one transaction."""
        calls: list[_Call] = []
        try:
            calls = self._take_readers()
            if calls:
                left = self._peek(calls)
                self._answer(call for call in calls if not call.writes)
                with self._door:
                    self._waiting.extendleft(reversed(left))
                return
            self._make_ready()
            self._turnstile.enter()
            try:
                calls = self._take()  # also those who came while we stood at the turnstile
                self._transact(calls)
                self._answer(calls)
                calls = []
                self._tidy()
            finally:
                self._turnstile.leave()
        except Exception as error:  # noqa: BLE001  # boundary: whoever asked hears of it, the thread goes on
            calls = calls or self._take()
            for call in calls:
                call.error = call.error or self._ours(error)
            self._answer(calls)

    def _take(self) -> list[_Call]:
        """All who wait. One by one, for others come while we take."""
        waiting = self._waiting
        with self._door:
            return [waiting.popleft() for _ in range(len(waiting))]

    def _take_readers(self) -> list[_Call]:
        """All who wait, if a read may answer them; nobody if one of them needs a write."""
        waiting = self._waiting
        with self._door:
            calls = [waiting.popleft() for _ in range(len(waiting))]
            if any(call.writes for call in calls):
                waiting.extendleft(reversed(calls))
                return []
        return calls

    def _answer(self, calls: Iterable[_Call]) -> None:
        """One call into each event loop, not one per question."""
        by_loop: dict[asyncio.AbstractEventLoop, list[_Call]] = {}
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

    # ── transactions ──

    def _peek(self, calls: Sequence[_Call]) -> list[_Call]:
        """Answer by reading alone; those that need a write come back, marked so."""
        cx = self._connection()
        left = []
        cx.execute("BEGIN")
        try:
            step = self._fresh_step()
            for call in calls:
                step.begin()
                peek = call.verb.peek
                assert peek is not None
                try:
                    call.answer = peek(step, *call.args)
                except Exception as error:  # noqa: BLE001  # boundary: errors are per question
                    call.error = self._ours(error)
                if call.answer is ACT:
                    call.writes = True
                    left.append(call)
        finally:
            if cx.in_transaction:
                cx.execute("COMMIT")
        return left

    def _transact(self, calls: Sequence[_Call]) -> None:
        """All of it in one transaction; an error of one of several questions undoes that one alone."""
        cx = self._connection()
        if self._full_sync:
            self._sync(any(call.verb.syncs for call in calls))
        cx.execute("BEGIN IMMEDIATE")
        try:
            step = self._fresh_step()
            if len(calls) == 1 or sum(not call.verb.reads for call in calls) <= 1:
                for call in calls:
                    self._run(call, step)
            else:
                for call in calls:
                    self._run_apart(call, step)
            cx.execute("COMMIT")
        except BaseException:
            if cx.in_transaction:
                cx.execute("ROLLBACK")
            raise
        if step.work:
            self.bells[WORK].ring()
        if step.ended:
            self.bells[ENDED].ring()

    def _fresh_step(self) -> Step:
        step = self._step
        assert step is not None
        step.start()
        return step

    def _run(self, call: _Call, step: Step) -> None:
        step.begin()
        call.answer = call.verb.act(step, *call.args)
        step.flush()

    def _run_apart(self, call: _Call, step: Step) -> None:
        cx = step.cx
        cx.execute("SAVEPOINT call")
        try:
            self._run(call, step)
        except Exception as error:  # boundary: errors are per question
            if not cx.in_transaction:  # SQLite undid everything: a full disk, say
                raise
            cx.execute("ROLLBACK TO call")
            call.error = self._ours(error)
        cx.execute("RELEASE call")

    def _sync(self, syncs: bool) -> None:
        if syncs is not self._synced_fully:
            self._connection().execute(f"PRAGMA synchronous = {'FULL' if syncs else 'NORMAL'}")
            self._synced_fully = syncs

    def _tidy(self) -> None:
        """A checkpoint now and then; we are inside the turnstile. What it could not do it does next time."""
        assert self._cx is not None
        try:
            self._checkpointer.tick(self._cx)
        except sqlite3.Error:
            pass

    def _ours(self, error: Exception) -> BaseException:
        if isinstance(error, sqlite3.Error):
            ours: StoreError = translated(error, self.path)
        elif isinstance(error, OSError):
            ours = os_fault(error, self.path)
        else:
            return error
        ours.__cause__ = error
        return ours

    # ── opening and closing ──

    def _connection(self) -> sqlite3.Connection:
        return self._cx or self._open()

    def _open(self) -> sqlite3.Connection:
        cx = open_file(self.path, int(self._patience * 1000))
        try:
            if not is_ready(cx, self.path):
                self._prepare(cx)
            cx.execute(f"PRAGMA synchronous = {'FULL' if self._full_sync else 'NORMAL'}")
            self._synced_fully = self._full_sync
            self._step = step = Step(cx, self._namespace, self._clock)
            self._on_open(step)
        except BaseException:
            cx.close()
            raise
        self._cx = cx
        return cx

    def _prepare(self, cx: sqlite3.Connection) -> None:
        self._open_sidecar()
        ends = time.monotonic() + self._patience
        while not self._turnstile.try_enter():
            if time.monotonic() > ends:
                raise self._too_long()
            time.sleep(0.002)  # once in the life of a file
        try:
            prepare(cx, self.path, self._clock)
        finally:
            self._turnstile.leave()

    def _make_ready(self) -> None:
        """All that a write needs, before the turnstile: opening may have to go through it as well."""
        self._connection()
        if not self._sidecar_open:
            self._open_sidecar()

    def _open_sidecar(self) -> None:
        sidecar(self.path)
        self._turnstile.open()
        for bell in self.bells.values():
            bell.open()
        self._sidecar_open = True

    def close(self, patience: float = 5.0) -> None:
        """Answer what was asked, end our thread, let go of all files. Asking again opens again."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and self._pid == os.getpid():
            self._tokens.put(False)
            thread.join(patience)
        if thread is self._thread:
            self._thread = None
        if not self._mine.acquire(timeout=patience):
            return  # our thread stands at the turnstile, behind somebody who was stopped
        try:
            self._release()
        finally:
            self._mine.release()
        if self._waiting:  # asked meanwhile
            self._wake()

    def _release(self) -> None:
        if self._cx is not None:
            with contextlib.suppress(sqlite3.Error):
                self._cx.close()
        self._cx = self._step = None
        self._close_sidecar()

    def _close_sidecar(self) -> None:
        self._turnstile.close()
        for bell in self.bells.values():
            bell.close()
        self._sidecar_open = False

    # ── forks ──

    def before_fork(self, patience: float) -> None:
        """Close the connection, and let nobody open it until the fork is made."""
        self._held_for_fork = self._mine.acquire(timeout=patience)
        if self._held_for_fork:
            self._release()

    def after_fork(self) -> None:
        if self._held_for_fork:
            self._held_for_fork = False
            self._mine.release()

    def after_fork_in_child(self) -> None:
        """A process of its own, without our thread and without what others had asked."""
        if self._cx is not None:
            _LEFT_ALONE.append(self._cx)  # not even closed: that would drop locks by its false notes
        self._cx = self._step = None
        self._close_sidecar()
        self._begin_life()


def _resolve(calls: list[_Call]) -> None:
    """In the event loop: hand out the answers."""
    for call in calls:
        future = call.future
        if future is not None and not future.done():
            if call.error is None:
                future.set_result(call.answer)
            else:
                future.set_exception(call.error)


def _serve(runner: Runner, tokens: queue.SimpleQueue[bool]) -> None:
    runner.serve(tokens)


# ── forks ────────────────────────────────────────────────────────────────────────────────────────
#
# SQLite's locks do not survive a fork, and its notes about them do: a child that opened the file again
# would believe that it holds the parent's. So the connection is closed before a fork, and both open
# their own when they need one. If somebody uses it just then for too long, the child leaves it alone.

_RUNNERS: weakref.WeakSet[Runner] = weakref.WeakSet()
_FORK_PATIENCE = 5.0
_LEFT_ALONE: list[object] = []


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
