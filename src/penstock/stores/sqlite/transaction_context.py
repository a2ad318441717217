"""The context of a verb in a transaction: connection, time, queues, and the counters that verbs update.

A verb is a plain function of a `TransactionContext` and its arguments. Verbs never begin or commit a
transaction: the caller owns it, so the same verbs also work on a user's own connection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from penstock.core.clock import Clock
from penstock.core.flow import NodeState, outcome_of
from penstock.core.job import NewJob, State
from penstock.core.lifecycle import kept
from penstock.stores.contract import SetAside
from penstock.stores.sqlite.queue_context import QueueContext
from penstock.stores.sqlite.rows import UnreadableRow, numbers, spec_of
from penstock.stores.sqlite.sql import SQL
from penstock.stores.sqlite.states import AVAILABLE, CODE, ENDED, RUNNING, SCHEDULED, STATES
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
_NAMED_BY = SQL["flows.named_by"]
_PARENT_ENDED = SQL["flows.parent_ended"]

_DAY = 86_400_000
#: The usual states of new jobs, which the statement `counters.new` counts.
_FIRST = (SCHEDULED, AVAILABLE)
_ENQUEUED, _PROCESSED, _FAILED, _TAIL, _HEAD = range(len(STATES), len(STATES) + 5)


class TransactionContext:
    """The context of verbs: call `start` before a transaction, `begin` before and `flush` after each verb."""

    __slots__ = (
        "_found",
        "_generation",
        "_lease_now",
        "_minted",
        "_own_namespace",
        "_queues",
        "cancels",
        "changes",
        "clock",
        "cx",
        "ended",
        "execute",
        "expects_members",
        "flow_ends",
        "namespace",
        "now",
        "work",
    )

    def __init__(self, cx: sqlite3.Connection, namespace: str, clock: Clock) -> None:
        self.cx = cx
        self.execute = cx.execute
        self.namespace = self._own_namespace = namespace
        self.clock = clock
        self._queues: dict[str, QueueContext | None] = {}
        #: Whether the last settlements concerned jobs of flows; a wrong guess only takes longer.
        self.expects_members = False
        self._found: dict[str, list[SetAside]] = {}  # by namespace: set aside, but not reported yet
        self.start()
        self.begin()

    def start(self) -> None:
        """Reset the context for a new transaction."""
        self.now = self.clock.now()
        self._lease_now: int | None = None
        self.work = False  # True: notify waiters, because a job may be available or due, or settings changed
        self.ended = False  # True: a job has ended or was removed

    def begin(self, namespace: str | None = None) -> None:
        """Clear everything cached by earlier verbs of the transaction, which may have been rolled back.

        `namespace`: that of the next verb; None: that of the connection.
        """
        self.namespace = self._own_namespace if namespace is None else namespace
        self._queues.clear()
        self._generation = -1
        self._minted = 0
        self.cancels = self.changes = 0
        #: The ends of jobs that are nodes of flows: node, its end (None: its job runs again), result.
        self.flow_ends: list[tuple[int, NodeState | None, bytes | None]] = []

    @property
    def lease_now(self) -> int:
        """The clock of leases, read once per transaction."""
        if self._lease_now is None:
            self._lease_now = self.clock.lease_now()
        return self._lease_now

    # ── queues ──

    def queue(self, name: str) -> QueueContext | None:
        """Return the queue of this name; None if it does not exist."""
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
        """Return the queue of this name, created if it does not exist."""
        queue = self.queue(name)
        if queue is None:
            self.execute(_OPEN_QUEUE, (self.namespace, name))
            del self._queues[name]
            queue = self.queue(name)
            assert queue is not None
        return queue

    def known(self, names: Sequence[str]) -> list[QueueContext]:
        """Return those of these queues that exist."""
        found = [self.queue(name) for name in names]
        return [queue for queue in found if queue is not None]

    # ── counts ──

    def move(self, queue: QueueContext, old: int | None, new: int | None, n: int = 1) -> None:
        """Count n jobs that change their state; None as a state: the job does not exist (before or after)."""
        deltas = self._deltas(queue)
        queue.mixed = True
        if old is not None:
            deltas[old] -= n
            if old == RUNNING and queue.rate_limiter is not None:
                self.work = True  # another job may start now
        if new is None or new in ENDED:
            self.ended = True
        elif new != RUNNING:
            self.work = True
        if new is not None:
            deltas[new] += n

    def enqueued(self, queue: QueueContext, state: int, n: int) -> None:
        """Count n new jobs, which have the generations from `generation() + 1` on."""
        deltas = self._deltas(queue)
        deltas[state] += n
        deltas[_ENQUEUED] += n
        queue.mixed = queue.mixed or state not in _FIRST
        self._generation += n
        self.work = True

    def settled(self, queue: QueueContext, processed: int, failed: int) -> None:
        """Count attempts in the statistics."""
        deltas = self._deltas(queue)
        queue.mixed = True
        deltas[_PROCESSED] += processed
        deltas[_FAILED] += failed

    def generation(self) -> int:
        """Return the generation of the newest job in the file; call `queue` or `some_queue` first."""
        assert self._generation >= 0
        return self._generation

    def mint(self) -> int:
        """Return a generation for a batch, which the totals of its queue do not count as enqueued."""
        self._generation += 1
        self._minted += 1
        return self._generation

    def tails(self, queue: QueueContext, n: int) -> int:
        """Reserve n places at the tail: those after the returned one."""
        before = queue.tail
        queue.tail += n
        self._deltas(queue)[_TAIL] += n
        return before

    def heads(self, queue: QueueContext, n: int) -> int:
        """Reserve n places at the head; return the first, which the others follow."""
        queue.head -= n
        queue.mixed = True
        self._deltas(queue)[_HEAD] -= n
        return queue.head

    def flush(self) -> None:
        """Write the verb's changes of the counts."""
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

    # ── shared by several verbs ──

    @property
    def found(self) -> list[SetAside]:
        """The records of this namespace that were set aside, but not reported yet."""
        return self._found.setdefault(self.namespace, [])

    def drop_set_aside(self) -> None:
        """Forget the records that were set aside, in all namespaces: they were rolled back."""
        self._found.clear()

    def take_set_aside(self) -> tuple[SetAside, ...]:
        """Return the records set aside by any verb since the last call, and clear the list."""
        found = self._found.pop(self.namespace, None)
        return () if found is None else tuple(found)

    def end_queued(
        self,
        queue: QueueContext,
        seq: int,
        state: int,
        spec: NewJob | bytes,
        reason: str,
        to: State = State.CANCELLED,
    ) -> None:
        """Cancel a job that is not running, or make it dead."""
        if isinstance(spec, bytes):
            spec = spec_of(seq, spec)
        until = self.now + kept(spec, to)
        try:
            self.execute(_END, (seq, self.now, until, storable(reason), CODE[to]))
        except OverflowError as error:
            raise UnreadableRow({seq: f"its end cannot be stored: {error}"}) from error
        if spec.unique is not None:
            self.execute(_FREE, (numbers([seq]),))
        if spec.flow is not None:
            self.note_flow_end(seq, outcome_of(to))
        self.parent_ended(seq)
        self.move(queue, state, CODE[to])

    def note_flow_end(self, seq: int, outcome: NodeState | None) -> None:
        """Note the end of a job that may be the job of a node; None: it had ended, and runs again."""
        (nid,) = self.execute(_NAMED_BY, (seq,)).fetchone()
        if nid is not None:
            self.flow_ends.append((nid, outcome, None))

    def parent_ended(self, seq: int, *, completed: bool = False) -> None:
        """Note that a job has ended: flows may have to be cancelled with it."""
        self.execute(_PARENT_ENDED, (seq, -1 if completed else 0))

    def same_boot(self) -> bool:
        """Return True if the leases in the file are from the current boot of this machine."""
        row = self.execute(_BOOT).fetchone()
        return row is not None and row == (self.clock.boot_id(),)

    def notice_reboot(self) -> None:
        """Void all leases if the machine has rebooted: they are on the clock of an earlier boot."""
        if not self.same_boot():
            self.execute(_VOID)
            self.execute(_NEW_BOOT, (self.clock.boot_id(),))
