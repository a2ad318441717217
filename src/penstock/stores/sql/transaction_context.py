"""The context of a verb in a transaction: statements, time, queues, and the counters that verbs update.

A verb is a plain function of a `TransactionContext` and its arguments. Verbs never begin or commit a
transaction: the caller owns it, so the same verbs also work on a user's own connection.
"""

from __future__ import annotations

import enum
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from penstock.core.clock import Clock
from penstock.core.flow import NodeState, outcome_of
from penstock.core.job import NewJob, State
from penstock.core.lifecycle import kept
from penstock.stores.contract import SetAside
from penstock.stores.rate_limiter import Drain, RateLimiter
from penstock.stores.sql.rows import UnreadableRow, limits_of, numbers, spec_of
from penstock.stores.sql.statements import AVAILABLE, CODE, ENDED, RUNNING, SCHEDULED, SQL, STATES
from penstock.stores.text_encoding import storable

_QUEUE = SQL["counters.queue"]
_COUNTS = SQL["counters.counts"]
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


class _Probe(enum.Enum):
    NEEDS_WRITE = "needs_write"


#: The answer of a read-only probe if the verb must write.
NEEDS_WRITE = _Probe.NEEDS_WRITE
NeedsWrite = Literal[_Probe.NEEDS_WRITE]

_DAY = 86_400_000
#: The usual states of new jobs, which the statement `counters.new` counts.
_FIRST = (SCHEDULED, AVAILABLE)
_ENQUEUED, _PROCESSED, _FAILED, _TAIL, _HEAD = range(len(STATES), len(STATES) + 5)


class QueueContext:
    """A queue as read at the start of the transaction, and the transaction's changes of its counters."""

    __slots__ = (
        "_counts",
        "_execute",
        "closed",
        "deltas",
        "ended_throttle",
        "fair",
        "has_partitions",
        "head",
        "miscounted",
        "mixed",
        "name",
        "newest",
        "paused",
        "qid",
        "rate_limiter",
        "refused",
        "tail",
    )

    def __init__(
        self,
        execute: Callable[..., Any],
        name: str,
        row: Sequence[Any],
        now: int,
        limiter: Callable[..., RateLimiter],
    ) -> None:
        self._execute = execute
        self._counts: Sequence[int] | None = None
        self.name = name
        (
            qid,
            paused,
            closed,
            tail,
            head,
            newest,
            limits,
            throttled_until,
            next_start,
            count,
            at,
            since,
            partitioned,
            fair,
        ) = row
        self.qid: int = qid
        self.tail: int = tail
        self.head: int = head
        self.newest: int = newest  # generation of the newest job of the file
        self.has_partitions = partitioned == 1
        self.fair: int | None = fair  # places of the fair share begin after this one; None: no fair share
        self.paused = paused == 1
        self.closed = closed == 1
        self.deltas: list[int] | None = None
        #: The rate limiter; None if the queue has no limits and no throttle.
        self.rate_limiter: RateLimiter | None = None
        self.ended_throttle = 0  # when the last throttle ended, if it has
        if limits is not None or throttled_until > now:
            self.rate_limiter = limiter(
                limits_of(limits), throttled_until, next_start, Drain(count, at, since)
            )
        else:
            self.ended_throttle = throttled_until
        self.refused = 0  # number of new jobs that this transaction refused because the queue is full
        self.miscounted = False  # True if the stored counts were found to be wrong
        self.mixed = False  # True if the deltas come from more than new jobs

    @property
    def has_dependents(self) -> bool:
        """True if a change of one job may change others; see partitions.py."""
        return self.has_partitions or self.fair is not None

    @property
    def counts(self) -> Sequence[int]:
        """The number of jobs by state, as stored at the first access."""
        if self._counts is None:
            found: Sequence[int] = self._execute(_COUNTS, (self.qid,)).fetchone()
            self._counts = found
        return self._counts

    def count(self, state: int) -> int:
        """Return the number of jobs in this state, including this transaction's changes so far."""
        return self.counts[state] + (0 if self.deltas is None else self.deltas[state])


class TransactionContext:
    """The context of verbs: call `start` before a transaction, `begin` before and `flush` after each verb.

    It is the port between the verbs and a database. Verbs never see a connection:

    - `execute(statement, values)` runs a named statement of `SQL` and returns its rows; `execute_many` runs
      it once for each tuple of values, and returns the sum of the changed rows as `rowcount`.
    - `set_savepoint()`, then `undo_to_savepoint()` to take back what was written since, and in both cases
      `release_savepoint()`. Savepoints nest: a call concerns the newest that is not released.
    - Verbs ask for queues, places and generations, and say what to count and whom to tell; how that is kept
      is not theirs.

    Here a transaction that writes excludes all others, so what it has read stays true until its commit:
    nothing is locked, and counts are columns of the queue's row. A database with several writers at a time
    may lock what `queue` and `some_queue` return, keep counts as rows of differences, and take places from
    a sequence.
    """

    __slots__ = (
        "_generation",
        "_lease_now",
        "_minted",
        "_queues",
        "_set_aside",
        "cancels",
        "changes",
        "clock",
        "ended",
        "execute",
        "execute_many",
        "expects_members",
        "flow_ends",
        "limiter",
        "namespace",
        "now",
        "release_savepoint",
        "set_savepoint",
        "signalled",
        "undo_to_savepoint",
        "work",
    )

    def __init__(
        self,
        cx: sqlite3.Connection,
        namespace: str,
        clock: Clock,
        limiter: Callable[..., RateLimiter] = RateLimiter,
    ) -> None:
        self.limiter = limiter
        self.execute = cx.execute
        self.execute_many = cx.executemany
        self.set_savepoint = partial(cx.execute, "SAVEPOINT verb")
        self.undo_to_savepoint = partial(cx.execute, "ROLLBACK TO verb")
        self.release_savepoint = partial(cx.execute, "RELEASE verb")
        self.namespace = namespace
        self.clock = clock
        self._queues: dict[str, QueueContext | None] = {}
        #: Whether the last settlements concerned jobs of flows; a wrong guess only takes longer.
        self.expects_members = False
        self._set_aside: dict[str, list[SetAside]] = {}  # by namespace: set aside, but not reported yet
        self.start()
        self.begin(namespace)

    def start(self) -> None:
        """Reset the context for a new transaction."""
        self.now = self.clock.now()
        self._lease_now: int | None = None
        #: Queues in which a job may be available or due, of which waiters must learn.
        self.work: set[str] = set()
        self.signalled = False  # True: all waiters must learn of a request to stop or of changed settings
        self.ended = False  # True: a job has ended or was removed

    def begin(self, namespace: str) -> None:
        """Clear everything cached by earlier verbs of the transaction, which may have been rolled back.

        `namespace`: that of the next verb.
        """
        self.namespace = namespace
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
            found = QueueContext(self.execute, name, row, self.now, self.limiter)
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

    def count_move(self, queue: QueueContext, old: int | None, new: int | None, n: int = 1) -> None:
        """Count n jobs that change their state; None as a state: the job does not exist (before or after)."""
        deltas = self._deltas(queue)
        queue.mixed = True
        if old is not None:
            deltas[old] -= n
            if old == RUNNING and queue.rate_limiter is not None:
                self.work.add(queue.name)  # another job may start now
        if new is None or new in ENDED:
            self.ended = True
        elif new != RUNNING:
            self.work.add(queue.name)
        if new is not None:
            deltas[new] += n

    def count_enqueued(self, queue: QueueContext, state: int, n: int) -> None:
        """Count n new jobs, which have the generations from `newest_generation() + 1` on."""
        deltas = self._deltas(queue)
        deltas[state] += n
        deltas[_ENQUEUED] += n
        queue.mixed = queue.mixed or state not in _FIRST
        self._generation += n
        self.work.add(queue.name)

    def count_attempts(self, queue: QueueContext, processed: int, failed: int) -> None:
        """Count attempts in the statistics."""
        deltas = self._deltas(queue)
        queue.mixed = True
        deltas[_PROCESSED] += processed
        deltas[_FAILED] += failed

    def newest_generation(self) -> int:
        """Return the generation of the newest job in the file; call `queue` or `some_queue` first."""
        assert self._generation >= 0
        return self._generation

    def new_generation(self) -> int:
        """Return a generation for a batch, which the totals of its queue do not count as enqueued."""
        self._generation += 1
        self._minted += 1
        return self._generation

    def places_at_tail(self, queue: QueueContext, n: int) -> int:
        """Reserve n places at the tail: those after the returned one."""
        before = queue.tail
        queue.tail += n
        self._deltas(queue)[_TAIL] += n
        return before

    def places_at_head(self, queue: QueueContext, n: int) -> int:
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
                self.work.add(queue.name)
                self.execute(_RECOUNT, (queue.qid,))
        if new:
            self.execute(_GENERATION, (new,))
        if self.cancels or self.changes:
            self.signalled = True
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
    def set_aside(self) -> list[SetAside]:
        """The records of this namespace that were set aside, but not reported yet."""
        return self._set_aside.setdefault(self.namespace, [])

    def drop_set_aside(self) -> None:
        """Forget the records that were set aside, in all namespaces: they were rolled back."""
        self._set_aside.clear()

    def take_set_aside(self) -> tuple[SetAside, ...]:
        """Return the records set aside by any verb since the last call, and clear the list."""
        found = self._set_aside.pop(self.namespace, None)
        return () if found is None else tuple(found)

    def end_queued(
        self,
        queue: QueueContext,
        seq: int,
        state: int,
        spec: NewJob | bytes,
        reason: str,
        to: State = State.CANCELLED,
        result: bytes | None = None,
    ) -> None:
        """Cancel a job that is not running, make it dead, or complete it; its caller shifts its key then."""
        if isinstance(spec, bytes):
            spec = spec_of(seq, spec)
        until = self.now + kept(spec, to)
        try:
            self.execute(_END, (seq, self.now, until, storable(reason), CODE[to], result))
        except OverflowError as error:
            raise UnreadableRow({seq: f"its end cannot be stored: {error}"}) from error
        if spec.unique is not None and to is not State.COMPLETED:
            self.execute(_FREE, (numbers([seq]),))
        if spec.flow is not None:
            self.note_flow_end(seq, outcome_of(to), result)
        self.parent_ended(seq, completed=to is State.COMPLETED)
        self.count_move(queue, state, CODE[to])

    def note_flow_end(self, seq: int, outcome: NodeState | None, result: bytes | None = None) -> None:
        """Note the end of a job that may be the job of a node; None: it had ended, and runs again."""
        (nid,) = self.execute(_NAMED_BY, (seq,)).fetchone()
        if nid is not None:
            self.flow_ends.append((nid, outcome, result))

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
