"""fetch, extend, promote, reclaim, and the look that `wait` takes between two notifications."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.core.job import Job
from penstock.core.lifecycle import EXPIRED, LOST_BY
from penstock.stores.contract import Beat, Due, Fetched, Grip, SetAside, Share, Wake
from penstock.stores.sqlite import partitions
from penstock.stores.sqlite.blobs import progress_blob, worker_of
from penstock.stores.sqlite.rows import (
    AVAILABLE,
    GROUPED,
    PARKED,
    RUNNING,
    STATES,
    Row,
    jobs_of,
    leased,
    numbers,
    spec_of,
    texts,
)
from penstock.stores.sqlite.transaction_context import SQL, Queue, TransactionContext
from penstock.stores.sqlite.verbs import limits
from penstock.stores.sqlite.verbs.batches import due_groups, end_queued, enter, flush, is_ripe, next_due
from penstock.stores.sqlite.verbs.keys import shift_key
from penstock.stores.sqlite.verbs.needs_write import NEEDS_WRITE, NeedsWrite

__all__ = [
    "Heard",
    "extend",
    "fetch",
    "heard",
    "look",
    "must_last",
    "probe_fetch",
    "probe_promote",
    "probe_reclaim",
    "promote",
    "reclaim",
]

_UNDER = SQL["fetch.under"]
_IS_UNDER = SQL["fetch.is_under"]
_LEASE = SQL["fetch.lease"]
_LEASE_THESE = SQL["fetch.lease_these"]
_READY = SQL["fetch.ready"]
_PARKED = SQL["fetch.parked"]
_IS_PARKED = SQL["fetch.is_parked"]
_PARKED_TASKS = SQL["parked.tasks"]
_EXPIRED = SQL["fetch.expired"]
_WORKER = SQL["fetch.worker"]
_BEAT = SQL["extend.beat"]
_DUE = SQL["promote.due"]
_TO_TAIL = SQL["promote.move"]
_NEXT = SQL["promote.next"]
_RUN_OUT = SQL["reclaim.run_out"]
_HELD_BY = SQL["reclaim.held_by"]
_RELEASE = SQL["reclaim.lease"]
_HEARD = SQL["counters.heard"]

#: How many expired jobs one fetch cancels on its way: its transaction must stay short.
_MOST_EXPIRED = 2_000
#: After so many members of batches a promotion leaves the rest to the next one.
_MOST_MEMBERS = 5_000


# ── fetch ────────────────────────────────────────────────────────────────────────────────────────


def probe_fetch(
    tx: TransactionContext,
    queues: Sequence[Share],
    limit: int,
    lease: int,
    worker: str,
    token: str,
    charge: bool,
) -> Fetched | NeedsWrite:
    """An idle worker must not take the write lock: is there anything at all?"""
    if not tx.same_boot() or tx.execute(_IS_UNDER, (token,)).fetchone():
        return NEEDS_WRITE
    found = tx.known([share.queue for share in queues])
    for queue in found if limit > 0 else ():
        if limits.room(tx, queue) != 0 and (queue.counts[AVAILABLE] or _wanted(tx, queue, worker)):
            return NEEDS_WRITE
    return Fetched([], tx.now, _next_due(tx, found), *_kept_back(tx, found, worker))


def fetch(
    tx: TransactionContext,
    queues: Sequence[Share],
    limit: int,
    lease: int,
    worker: str,
    token: str,
    charge: bool,
) -> Fetched:
    tx.notice_reboot()
    jobs = jobs_of(tx.execute(_UNDER, (token,)))
    found = tx.known([share.queue for share in queues])
    if not jobs and limit > 0:
        terms = (int(charge), tx.now, token, worker, tx.lease_now + lease)
        starts: dict[int, int] = {}
        jobs = leased(_take(tx, queues, limit, terms, starts), tx.now, token, worker)
        jobs = limits.started(jobs, starts)
    return Fetched(jobs, tx.now, _next_due(tx, found), *_kept_back(tx, found, worker))


_Terms = tuple[int, int, str, str, int]


def _take(
    tx: TransactionContext, shares: Sequence[Share], limit: int, terms: _Terms, starts: dict[int, int]
) -> list[Row]:
    """Leases up to each quota, then up to each cap. `starts`: which of them start later, and when."""
    found = [(share, tx.queue(share.queue)) for share in shares]
    supplies = [
        (share, _Supply(tx, queue, terms, share.free, starts)) for share, queue in found if queue is not None
    ]
    if len(supplies) == 1:  # one queue: both passes are one
        share, supply = supplies[0]
        return supply.take(min(share.cap, limit))
    rows: list[Row] = []
    for to_cap in (False, True):
        for share, supply in supplies:
            most = share.cap if to_cap else min(share.quota, share.cap)
            want = min(most - supply.taken, limit - len(rows))
            if want > 0:
                rows += supply.take(want)
    return rows


class _Supply:
    """What a queue has to give in one fetch."""

    __slots__ = ("_free", "_queue", "_simple", "_starts", "_tasks", "_terms", "_tx", "taken")

    def __init__(
        self, tx: TransactionContext, queue: Queue, terms: _Terms, free: int | None, starts: dict[int, int]
    ) -> None:
        self._tx = tx
        self._queue = queue
        self._terms = terms
        self._free = free
        self._starts = starts
        self.taken = 0
        self._tasks = _wanted(tx, queue, terms[3])
        self._simple = not self._tasks and not _some_expired(tx, queue)

    def take(self, want: int) -> list[Row]:
        """Leases up to `want` of its jobs, in their order."""
        queue = self._queue
        if queue.gate is not None:
            want = self._bounded(want)
        if want <= 0 or queue.paused:
            return []
        if self._simple:
            want = min(want, queue.count(AVAILABLE))
            rows = self._tx.cx.execute(_LEASE, (queue.qid, want, *self._terms)).fetchall() if want else []
            if len(rows) < want:  # another program has changed the counts
                queue.miscounted = True
            rows.sort()  # by priority and place, which no two of a queue share
            for row in rows:
                if row[-2] is not None:
                    self._leave_queue(AVAILABLE, row[2], row[-2])
            self._tx.move(queue, AVAILABLE, RUNNING, len(rows))
            if queue.has_dependents:
                partitions.fetched(self._tx, queue, rows)
        elif queue.has_dependents:
            rows = self._tied(want)
        else:
            rows = self._one_by_one(want)
        self.taken += len(rows)
        if queue.gate is not None:
            self._starts.update(limits.passed(self._tx, queue, [row[2] for row in rows]))
        return rows

    def _bounded(self, want: int) -> int:
        """As many as the queue's limits leave."""
        gate, room = self._queue.gate, limits.room(self._tx, self._queue)
        if self._free is not None and gate is not None and gate.limits.gates:
            want = min(want, self._free - self.taken)
        return want if room is None else min(want, room)

    def _one_by_one(self, want: int) -> list[Row]:
        """Where parked jobs come first, or expired ones stand in the way."""
        tx, queue = self._tx, self._queue
        picked: list[int] = []
        for seq, state, expires_at, spec, tied in self._candidates(want):
            if expires_at is not None and expires_at <= tx.now:
                end_queued(tx, queue, seq, state, spec, EXPIRED)
                continue
            picked.append(seq)
            if tied is not None:
                self._leave_queue(state, seq, tied)
            tx.move(queue, state, RUNNING)
            if len(picked) == want:
                break
        return self._lease_these(picked)

    def _tied(self, want: int) -> list[Row]:
        """The same where the end of one that has expired may bring another one before those that follow."""
        rows: list[Row] = []
        for _ in range(_MOST_EXPIRED):
            picked = self._until_one_is_passed(want - len(rows))
            rows += picked[0]
            if len(rows) == want or not picked[1]:
                break
        return rows

    def _until_one_is_passed(self, want: int) -> tuple[list[Row], bool]:
        """Leases jobs as long as nothing happens to others; whether something did."""
        tx, queue = self._tx, self._queue
        picked: list[int] = []
        passed: Row | None = None
        for row in self._candidates(want, 1):
            seq, state, expires_at, _, tied = row
            if len(picked) == want:
                break
            if expires_at is not None and expires_at <= tx.now:
                passed = row
                break
            if state == PARKED and not partitions.has_room(tx, queue, seq):
                passed = row
                break
            picked.append(seq)
            if tied is not None:
                self._leave_queue(state, seq, tied)
            tx.move(queue, state, RUNNING)
            if state == PARKED:
                break
        rows = self._lease_these(picked)
        partitions.fetched(tx, queue, rows)
        if passed is not None:
            seq, state, expires_at, spec, _ = passed
            if expires_at is not None and expires_at <= tx.now:
                partitions.end_queued(tx, queue, seq, state, spec, EXPIRED)
            else:
                partitions.to_lane(tx, queue, seq)
        return rows, bool(rows) or passed is not None

    def _lease_these(self, picked: list[int]) -> list[Row]:
        rows = self._tx.cx.execute(_LEASE_THESE, (numbers(picked), None, *self._terms)).fetchall()
        order = {seq: i for i, seq in enumerate(picked)}
        return sorted(rows, key=lambda row: order[row[2]])

    def _leave_queue(self, state: int, seq: int, tied: int) -> None:
        """What its start means to others that it is tied to."""
        shift_key(self._tx, self._queue, seq, tied, STATES[state], STATES[RUNNING])

    def _candidates(self, want: int, more: int = _MOST_EXPIRED) -> Iterator[Row]:
        cx, qid, most = self._tx.cx, self._queue.qid, want + more
        if self._tasks:
            # all at once: the statements that change jobs run while these are looked at
            yield from cx.execute(_PARKED, (qid, most, texts(self._tasks))).fetchall()
        yield from cx.execute(_READY, (qid, most)).fetchall()


def _some_expired(tx: TransactionContext, queue: Queue) -> bool:
    return tx.execute(_EXPIRED, (queue.qid, tx.now)).fetchone() is not None


def _kept_back(
    tx: TransactionContext, queues: Sequence[Queue], worker: str
) -> tuple[int | None, tuple[SetAside, ...], tuple[str, ...]]:
    """When a gate opens behind which there is something for this worker, which knows some parked jobs; what
    was set aside; and which queues with such jobs are full."""
    gated = [queue for queue in queues if queue.gate is not None]
    wanted = [queue for queue in gated if _wanted(tx, queue, worker)]
    opens = limits.opens(tx, gated, {queue.qid for queue in wanted})
    return opens, tx.told(), tuple(queue.name for queue in wanted if limits.full(queue))


def _wanted(tx: TransactionContext, queue: Queue, worker: str) -> Sequence[str]:
    """The tasks that this worker knows, if jobs of one of them are parked here; none otherwise."""
    if not queue.count(PARKED):
        return ()
    found = tx.execute(_WORKER, (tx.namespace, worker)).fetchone()
    if found is None:
        return ()
    info = worker_of(worker, 0, found[0])
    if queue.name in info.handled:
        return [task for (task,) in tx.execute(_PARKED_TASKS, (queue.qid,))]
    return info.tasks if tx.execute(_IS_PARKED, (queue.qid, texts(info.tasks))).fetchone() else ()


def _next_due(tx: TransactionContext, queues: Sequence[Queue]) -> int | None:
    """When the next scheduled or retryable job of these queues is due."""
    least: int | None = None
    for queue in queues:
        if queue.count(0) or queue.count(1):
            due = tx.execute(_NEXT, (queue.qid,)).fetchone()[0]
            if due is not None and (least is None or due < least):
                least = due
        for due in (partitions.next_due(tx, queue), next_due(tx, queue)):
            if due is not None and (least is None or due < least):
                least = due
    return least


# ── extend ───────────────────────────────────────────────────────────────────────────────────────


def extend(tx: TransactionContext, beats: Sequence[Beat]) -> list[Grip]:
    tx.notice_reboot()
    return [_extend(tx, beat) for beat in beats]


def must_last(beats: Sequence[Beat]) -> bool:
    """Whether one of them records what a power cut must not take back."""
    return any(beat.lasting for beat in beats)


def _extend(tx: TransactionContext, beat: Beat) -> Grip:
    lease = beat.lease
    queue = tx.queue(lease.queue)
    if queue is None:
        return Grip.LOST
    progress = None if beat.progress is None else progress_blob(beat.progress)
    held = (lease.generation, queue.qid, lease.id, lease.token)
    said = (tx.lease_now + beat.by, int(beat.started), progress, beat.checkpoint)
    asked = tx.execute(_BEAT, (*held, *said)).fetchall()
    if not asked:
        return Grip.LOST
    return Grip.CANCEL_ASKED if asked[0][0] else Grip.HELD


# ── promote ──────────────────────────────────────────────────────────────────────────────────────


def probe_promote(tx: TransactionContext, queues: Sequence[str], limit: int) -> Due | NeedsWrite:
    due = _next_due(tx, tx.known(queues))
    if limit > 0 and due is not None and due <= tx.now:
        return NEEDS_WRITE
    return Due(0, due, tx.now, tx.told())


def promote(tx: TransactionContext, queues: Sequence[str], limit: int) -> Due:
    found = {queue.qid: queue for queue in tx.known(queues)}
    due: list[Row] = []
    for queue in found.values():
        due += tx.execute(_DUE, (queue.qid, tx.now, max(0, limit))).fetchall()
        due += [
            (at, 0, queue.qid, key, None, None, None)
            for at, key in partitions.lanes_due(tx, queue, max(0, limit))
        ]
    due.sort()  # by due time, then by generation
    if any(queue.count(GROUPED) for queue in found.values()) or any(row[6] is not None for row in due):
        moved_here = _promote_with_groups(tx, found, due, limit)
        return Due(moved_here, _next_due(tx, list(found.values())), tx.now, tx.told())
    moved: dict[int, list[int]] = {}
    admitted = 0
    for row in due[: max(0, limit)]:
        _, seq, qid, state, expires_at, _, _ = row
        if found[qid].has_dependents or (expires_at is not None and expires_at <= tx.now):
            admitted += _promote_one(tx, found[qid], row)
        else:
            moved.setdefault(qid, []).append(seq)
            tx.move(found[qid], state, AVAILABLE)
    for qid, seqs in moved.items():
        tx.execute(_TO_TAIL, (tx.tails(found[qid], len(seqs)), numbers(seqs)))
    admitted += sum(map(len, moved.values()))
    return Due(admitted, _next_due(tx, list(found.values())), tx.now, tx.told())


def _promote_with_groups(
    tx: TransactionContext, found: dict[int, Queue], jobs: Sequence[Row], limit: int
) -> int:
    """One by one, in the order of their times: a member that joins may put its group off, or complete it."""
    turns: list[tuple[int, bool, int, str, str, str, Row]] = [
        (row[0], False, row[1], "", "", "", row) for row in jobs
    ]
    for queue in found.values():
        # some may not be due any more when it is their turn: as many as members join before them
        for due, task, key in due_groups(tx, queue, 2 * max(0, limit)):
            turns.append((due, True, 0, task, key, queue.name, (queue.qid,)))
    moved, handled = 0, 0
    for _, is_group, _, task, key, _, row in sorted(turns, key=lambda turn: turn[:6]):
        if limit <= 0 or handled >= _MOST_MEMBERS:
            break
        if is_group:
            queue = found[row[0]]
            if not is_ripe(tx, queue, task, key, full=False):
                continue
            made, n = flush(tx, queue, task, key)
            handled += n
            moved += made is not None
        else:
            moved += _promote_one(tx, found[row[2]], row)
        limit -= 1
    return moved


def _promote_one(tx: TransactionContext, queue: Queue, row: Row) -> int:
    """How many became available, or joined a group: of a lane several, none of one that has expired."""
    _, seq, _, state, expires_at, spec, gkey = row
    if not seq:
        return partitions.advance(tx, queue, state)
    if expires_at is not None and expires_at <= tx.now:
        end_queued(tx, queue, seq, state, spec, EXPIRED)
        return 0
    if gkey is None and queue.has_dependents:
        partitions.to_tail(tx, queue, seq)
    elif gkey is None:
        tx.execute(_TO_TAIL, (tx.tails(queue, 1), numbers([seq])))
        tx.move(queue, state, AVAILABLE)
    else:
        tx.move(queue, state, GROUPED)
        enter(tx, queue, seq, spec_of(seq, spec))
    return 1


# ── reclaim ──────────────────────────────────────────────────────────────────────────────────────


def probe_reclaim(
    tx: TransactionContext,
    queues: Sequence[str],
    limit: int,
    lease: int,
    worker: str,
    token: str,
    of: Sequence[str] | None,
) -> Fetched | NeedsWrite:
    if not tx.same_boot() or tx.execute(_IS_UNDER, (token,)).fetchone():
        return NEEDS_WRITE
    return NEEDS_WRITE if _lost(tx, queues, min(limit, 1), of) else Fetched([], tx.now, set_aside=tx.told())


def reclaim(
    tx: TransactionContext,
    queues: Sequence[str],
    limit: int,
    lease: int,
    worker: str,
    token: str,
    of: Sequence[str] | None,
) -> Fetched:
    tx.notice_reboot()
    jobs = jobs_of(tx.execute(_UNDER, (token,)))
    if not jobs:
        seqs = _lost(tx, queues, limit, of)
        jobs = _lease_anew(tx, seqs, lease, worker, token)
    return Fetched(jobs, tx.now, set_aside=tx.told())


def _lost(tx: TransactionContext, queues: Sequence[str], limit: int, of: Sequence[str] | None) -> list[int]:
    limit = max(0, limit)
    if of is not None:
        rows = tx.execute(_HELD_BY, (texts(of), tx.namespace, limit))
    else:
        running = [queue.qid for queue in tx.known(queues) if queue.count(RUNNING)]
        if not running:
            return []
        rows = tx.execute(_RUN_OUT, (tx.lease_now, numbers(running), limit))
    return [seq for (seq,) in rows]


def _lease_anew(tx: TransactionContext, seqs: list[int], lease: int, worker: str, token: str) -> list[Job]:
    if not seqs:
        return []
    until = tx.lease_now + lease
    rows = tx.execute(_RELEASE, (numbers(seqs), worker, token, until, LOST_BY)).fetchall()
    order = {seq: i for i, seq in enumerate(seqs)}
    return jobs_of(sorted(rows, key=lambda row: order[row[2]]))


# ── wait ─────────────────────────────────────────────────────────────────────────────────────────


class Heard(NamedTuple):
    """How many requests to stop, and changes of settings, there had been."""

    cancels: int
    changes: int


def heard(tx: TransactionContext) -> Heard:
    row = tx.execute(_HEARD, (tx.namespace,)).fetchone()
    return Heard(0, 0) if row is None else Heard(*row)


def look(
    tx: TransactionContext, queues: Sequence[str], until: int, before: Heard, parked: Sequence[str]
) -> tuple[Wake, Heard]:
    """What there is for a wait that ends at `until` and had heard of `before`; `parked`: as `wait` says."""
    wake = Wake.NOTHING
    found = tx.known(queues)
    if any(limits.gives(tx, queue, parked=queue.name in parked) for queue in found):
        wake |= Wake.WORK
    else:
        for due in (_next_due(tx, found), limits.opens(tx, found)):
            if due is not None and (due <= tx.now or due < until):
                wake |= Wake.WORK
    now = heard(tx)
    if now.cancels > before.cancels:
        wake |= Wake.CANCEL
    if now.changes > before.changes:
        wake |= Wake.SETTINGS
    return wake, now
