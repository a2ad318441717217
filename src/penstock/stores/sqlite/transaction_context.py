"""What verbs work with: the connection, the time, the queues, and the counters that every verb keeps.

A verb is a plain function of a `TransactionContext` and its arguments. It never begins or commits: the caller
owns the transaction, so that the same verbs also work on a user's own connection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from penstock.core.clock import Clock
from penstock.core.job import NewJob, State
from penstock.core.lifecycle import kept
from penstock.stores.contract import SetAside
from penstock.stores.sqlite.queue_context import QueueContext
from penstock.stores.sqlite.rows import Unreadable, numbers, spec_of
from penstock.stores.sqlite.sql import SQL
from penstock.stores.sqlite.states import AVAILABLE, CANCELLED, ENDED, RUNNING, SCHEDULED, STATES
from penstock.stores.text_encoding import storable

__all__ = ["TransactionContext"]

_QUEUE = SQL["counters.queue"]
_OPEN_QUEUE = SQL["counters.open_queue"]
_TALLY = SQL["counters.tally"]
_NEW = SQL["counters.new"]
_RECOUNT = SQL["counters.recount"]
_GENERATION = SQL["counters.generation"]
_DAY_COUNT = SQL["counters.day"]
_SIGNAL = SQL["counters.signal"]
_BOOT = SQL["counters.boot"]
_NEW_BOOT = SQL["counters.new_boot"]
_VOID = SQL["counters.void"]
_END = SQL["cancel.end"]
_FREE = SQL["keys.free"]

_DAY = 86_400_000
#: What most new jobs are, and `counters.new` counts.
_FIRST = (SCHEDULED, AVAILABLE)
_ENQUEUED, _PROCESSED, _FAILED, _TAIL, _HEAD = range(len(STATES), len(STATES) + 5)


class TransactionContext:
    """What verbs work with: `start` before a transaction, `begin` before and `flush` after each verb."""

    __slots__ = (
        "_generation",
        "_lease_now",
        "_minted",
        "_queues",
        "cancels",
        "changes",
        "clock",
        "cx",
        "ended",
        "execute",
        "found",
        "namespace",
        "now",
        "work",
    )

    def __init__(self, cx: sqlite3.Connection, namespace: str, clock: Clock) -> None:
        self.cx = cx
        self.execute = cx.execute
        self.namespace = namespace
        self.clock = clock
        self._queues: dict[str, QueueContext | None] = {}
        self.found: list[SetAside] = []  # set aside, and not told yet
        self.start()
        self.begin()

    def start(self) -> None:
        """A new transaction begins."""
        self.now = self.clock.now()
        self._lease_now: int | None = None
        self.work = False  # something became available or due later, or somebody else should look up
        self.ended = False  # a job ended or went

    def begin(self) -> None:
        """Forget what an earlier verb of the transaction has seen: it may have been undone."""
        self._queues.clear()
        self._generation = -1
        self._minted = 0
        self.cancels = self.changes = 0

    @property
    def lease_now(self) -> int:
        """The clock of leases, at its first reading in this transaction."""
        if self._lease_now is None:
            self._lease_now = self.clock.lease_now()
        return self._lease_now

    # ── queues ──

    def queue(self, name: str) -> QueueContext | None:
        """The queue of this name, None if there is none."""
        if name in self._queues:
            return self._queues[name]
        row = self.execute(_QUEUE, (self.namespace, name)).fetchone()
        found = None
        if row is not None:
            found = QueueContext(self.cx, name, row, self.now)
            if self._generation < 0:
                self._generation = found.newest
        self._queues[name] = found
        return found

    def some_queue(self, name: str) -> QueueContext:
        """The queue of this name, which comes to be if it was not there."""
        queue = self.queue(name)
        if queue is None:
            self.execute(_OPEN_QUEUE, (self.namespace, name))
            del self._queues[name]
            queue = self.queue(name)
            assert queue is not None
        return queue

    def known(self, names: Sequence[str]) -> list[QueueContext]:
        """Those of these queues that there are."""
        found = [self.queue(name) for name in names]
        return [queue for queue in found if queue is not None]

    # ── counts ──

    def move(self, queue: QueueContext, old: int | None, new: int | None, n: int = 1) -> None:
        """n jobs went from one state to another; None is not being there."""
        deltas = self._deltas(queue)
        queue.mixed = True
        if old is not None:
            deltas[old] -= n
            if old == RUNNING and queue.gate is not None:
                self.work = True  # another one may run now
        if new is None or new in ENDED:
            self.ended = True
        elif new != RUNNING:
            self.work = True
        if new is not None:
            deltas[new] += n

    def enqueued(self, queue: QueueContext, state: int, n: int) -> None:
        """n new jobs, of the generations from `generation() + 1` on."""
        deltas = self._deltas(queue)
        deltas[state] += n
        deltas[_ENQUEUED] += n
        queue.mixed = queue.mixed or state not in _FIRST
        self._generation += n
        self.work = True

    def settled(self, queue: QueueContext, processed: int, failed: int) -> None:
        """For the statistics."""
        deltas = self._deltas(queue)
        queue.mixed = True
        deltas[_PROCESSED] += processed
        deltas[_FAILED] += failed

    def generation(self) -> int:
        """That of the newest job of the file; a queue must have been looked at before."""
        assert self._generation >= 0
        return self._generation

    def mint(self) -> int:
        """A generation for a job that nobody enqueued: it counts for nothing else."""
        self._generation += 1
        self._minted += 1
        return self._generation

    def tails(self, queue: QueueContext, n: int) -> int:
        """Draws n places at the tail: those after the one returned."""
        before = queue.tail
        queue.tail += n
        self._deltas(queue)[_TAIL] += n
        return before

    def heads(self, queue: QueueContext, n: int) -> int:
        """Draws n places at the head, of which the first is returned; the others follow it."""
        queue.head -= n
        queue.mixed = True
        self._deltas(queue)[_HEAD] -= n
        return queue.head

    def flush(self) -> None:
        """Write down what the verb has changed of the counts."""
        new = self._minted
        for queue in self._queues.values():
            if queue is not None and queue.deltas is not None:
                new += self._flush(queue, queue.deltas)
            if queue is not None and queue.miscounted:
                self.work = True
                self.execute(_RECOUNT, (queue.qid,))
        if new:
            self.execute(_GENERATION, (new,))
        if self.cancels or self.changes:
            self.work = True
            self.execute(_SIGNAL, (self.namespace, self.cancels, self.changes))

    def _flush(self, queue: QueueContext, deltas: list[int]) -> int:
        new = deltas[_ENQUEUED]
        if new and not queue.mixed:
            self.execute(_NEW, (deltas[SCHEDULED], deltas[AVAILABLE], new, queue.qid))
        else:
            self.execute(_TALLY, (*deltas, queue.qid))
        if deltas[_PROCESSED] or deltas[_FAILED]:
            day = self.now // _DAY
            self.execute(_DAY_COUNT, (queue.qid, day, deltas[_PROCESSED], deltas[_FAILED]))
        return new

    def _deltas(self, queue: QueueContext) -> list[int]:
        deltas = queue.deltas
        if deltas is None:
            deltas = queue.deltas = [0] * (len(STATES) + 5)
        return deltas

    # ── what several verbs do ──

    def told(self) -> tuple[SetAside, ...]:
        """What was set aside since this was asked last, by whatever verb."""
        if not self.found:
            return ()
        found = tuple(self.found)
        self.found.clear()
        return found

    def end_queued(
        self, queue: QueueContext, seq: int, state: int, spec: NewJob | bytes, reason: str
    ) -> None:
        """A job that was not running is cancelled."""
        if isinstance(spec, bytes):
            spec = spec_of(seq, spec)
        until = self.now + kept(spec, State.CANCELLED)
        try:
            self.execute(_END, (seq, self.now, until, storable(reason)))
        except OverflowError as error:
            raise Unreadable({seq: f"its end cannot be stored: {error}"}) from error
        if spec.unique is not None:
            self.execute(_FREE, (numbers([seq]),))
        self.move(queue, state, CANCELLED)

    def same_boot(self) -> bool:
        """Whether the leases in the file are on this machine's running clock."""
        row = self.execute(_BOOT).fetchone()
        return row is not None and row == (self.clock.boot_id(),)

    def notice_reboot(self) -> None:
        """A lease of another run of the machine is void: its clock says nothing any more."""
        if not self.same_boot():
            self.execute(_VOID)
            self.execute(_NEW_BOOT, (self.clock.boot_id(),))
