"""fetch: lease the first available jobs of some queues, up to each queue's share; and the query of `wait`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from penstock.core.job import Job, NewJob, State
from penstock.core.lifecycle import EXPIRED
from penstock.stores.contract import Fetched, SetAside, Share, Wake
from penstock.stores.own_store import WakeCounts
from penstock.stores.sql import partitions
from penstock.stores.sql.rows import CANNOT_DECODE, Row, jobs_of, leased, numbers, texts, worker_of
from penstock.stores.sql.statements import AVAILABLE, PARKED, RUNNING, SQL, STATES, LeasedRow
from penstock.stores.sql.transaction_context import NEEDS_WRITE, NeedsWrite, QueueContext, TransactionContext
from penstock.stores.sql.verbs import limits
from penstock.stores.sql.verbs.batches import end_queued
from penstock.stores.sql.verbs.keys import shift_key
from penstock.stores.sql.verbs.promoting import next_due

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

#: The most expired jobs that one fetch cancels, because its transaction must stay short.
_MOST_EXPIRED = 2_000
#: Positions of these columns: just leased jobs are read as plain tuples, for speed.
_SEQ, _UNIQUE_PHASES = LeasedRow._fields.index("seq"), LeasedRow._fields.index("unique_phases")


class _Candidate(NamedTuple):
    """A job that may be leased, to be checked one by one: the columns of `fetch.ready`."""

    seq: int
    state: int
    expires_at: int | None
    spec: bytes
    unique_phases: int | None

    def is_expired(self, now: int) -> bool:
        return self.expires_at is not None and self.expires_at <= now


def probe_fetch(
    tx: TransactionContext,
    queues: Sequence[Share],
    limit: int,
    lease: int,
    worker: str,
    token: str,
    charge: bool,
) -> Fetched | NeedsWrite:
    """Answer an empty fetch by reading alone, so that idle workers do not take the write lock."""
    if not tx.same_boot() or tx.execute(_IS_UNDER, (token,)).fetchone():
        return NEEDS_WRITE
    found = tx.known([share.queue for share in queues])
    for queue in found if limit > 0 else ():
        if limits.room(tx, queue) != 0 and (queue.counts[AVAILABLE] or _wanted(tx, queue, worker)):
            return NEEDS_WRITE
    return Fetched([], tx.now, next_due(tx, found), *_kept_back(tx, found, worker))


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
        terms = LeaseTerms(int(charge), tx.now, token, worker, tx.lease_now + lease)
        starts: dict[int, int] = {}
        jobs = _take(tx, queues, limit, terms, starts)
        jobs = limits.started(jobs, starts)
    return Fetched(jobs, tx.now, next_due(tx, found), *_kept_back(tx, found, worker))


def _take(
    tx: TransactionContext, shares: Sequence[Share], limit: int, terms: LeaseTerms, starts: dict[int, int]
) -> list[Job]:
    """Lease up to each quota, then up to each cap. `starts` collects the jobs that start later, and when."""
    found = [(share, tx.queue(share.queue)) for share in shares]
    supplies = [
        (share, _Supply(tx, queue, terms, share.free, starts)) for share, queue in found if queue is not None
    ]
    if len(supplies) == 1:  # one queue needs only one pass
        share, supply = supplies[0]
        return supply.take(min(share.cap, limit))
    jobs: list[Job] = []
    for to_cap in (False, True):
        for share, supply in supplies:
            most = share.cap if to_cap else min(share.quota, share.cap)
            want = min(most - supply.taken, limit - len(jobs))
            if want > 0:
                jobs += supply.take(want)
    return jobs


class _Supply:
    """The jobs that one queue can give in one fetch."""

    __slots__ = ("_free", "_queue", "_simple", "_starts", "_tasks", "_terms", "_tx", "taken")

    def __init__(
        self,
        tx: TransactionContext,
        queue: QueueContext,
        terms: LeaseTerms,
        free: int | None,
        starts: dict[int, int],
    ) -> None:
        self._tx = tx
        self._queue = queue
        self._terms = terms
        self._free = free
        self._starts = starts
        self.taken = 0
        self._tasks = _wanted(tx, queue, terms.worker)
        self._simple = not self._tasks and not _some_expired(tx, queue)

    def take(self, want: int) -> list[Job]:
        """Lease up to `want` jobs of the queue, in its order."""
        queue = self._queue
        if queue.rate_limiter is not None:
            want = self._bounded(want)
        if want <= 0 or queue.paused:
            return []
        if self._simple:
            jobs = self._first(min(want, queue.count(AVAILABLE)))
        elif queue.has_dependents:
            jobs = self._jobs_of(self._with_dependents(want))
        else:
            jobs = self._jobs_of(self._one_by_one(want))
        self.taken += len(jobs)
        if queue.rate_limiter is not None:
            self._starts.update(limits.count_starts(self._tx, queue, [job.generation for job in jobs]))
        return jobs

    def _first(self, want: int) -> list[Job]:
        """Lease the first `want` available jobs: none has expired, and no parked job comes before them."""
        tx, queue = self._tx, self._queue
        if LEAST <= want <= MOST and not queue.has_dependents:
            jobs = lease_plain_jobs(tx, queue, want, self._terms)
            if jobs is not None:
                tx.count_move(queue, AVAILABLE, RUNNING, want)
                return jobs
        rows = tx.execute(_LEASE, (queue.qid, want, *self._terms)).fetchall() if want else []
        if len(rows) < want:  # another program has changed the counts
            queue.miscounted = True
        rows.sort()  # by priority and place, which no two of a queue share
        for row in rows:
            if row[_UNIQUE_PHASES] is not None:
                self._leave_queue(AVAILABLE, row[_SEQ], row[_UNIQUE_PHASES])
        tx.count_move(queue, AVAILABLE, RUNNING, len(rows))
        if queue.has_dependents:
            partitions.fetched(tx, queue, rows)
        return self._jobs_of(rows)

    def _jobs_of(self, rows: list[Row]) -> list[Job]:
        terms = self._terms
        return leased(rows, terms.now, terms.token, terms.worker)

    def _bounded(self, want: int) -> int:
        """Return `want`, reduced to what the queue's limits allow."""
        rate_limiter, room = self._queue.rate_limiter, limits.room(self._tx, self._queue)
        if self._free is not None and rate_limiter is not None and rate_limiter.limits.delay_starts:
            want = min(want, self._free - self.taken)
        return want if room is None else min(want, room)

    def _one_by_one(self, want: int) -> list[Row]:
        """Lease jobs one by one, because parked jobs come first or some jobs have expired."""
        tx, queue = self._tx, self._queue
        picked: list[int] = []
        for one in self._candidates(want):
            if one.is_expired(tx.now):
                end_queued(tx, queue, one.seq, one.state, one.spec, EXPIRED)
                continue
            self._pick(one, picked)
            if len(picked) == want:
                break
        return self._lease_these(picked)

    def _with_dependents(self, want: int) -> list[Row]:
        """As `_one_by_one`, if cancelling an expired job may admit another job ahead of the next ones."""
        rows: list[Row] = []
        for _ in range(_MOST_EXPIRED):
            leased, others_changed = self._until_others_change(want - len(rows))
            rows += leased
            if len(rows) == want or not others_changed:
                break
        return rows

    def _until_others_change(self, want: int) -> tuple[list[Row], bool]:
        """Lease jobs until a change of one may have changed others; return the jobs, and True if it may."""
        tx, queue = self._tx, self._queue
        picked: list[int] = []
        passed: _Candidate | None = None
        for one in self._candidates(want, 1):
            if len(picked) == want:
                break
            full = (
                one.state == PARKED
                and not one.is_expired(tx.now)
                and not partitions.has_room(tx, queue, one.seq)
            )
            if full or one.is_expired(tx.now):
                passed = one
                break
            self._pick(one, picked)
            if one.state == PARKED:
                break
        rows = self._lease_these(picked)
        partitions.fetched(tx, queue, rows)
        if passed is not None and passed.is_expired(tx.now):
            end_queued(tx, queue, passed.seq, passed.state, passed.spec, EXPIRED)
        elif passed is not None:
            partitions.wait_in_line(tx, queue, passed.seq)
        return rows, bool(rows) or passed is not None

    def _pick(self, one: _Candidate, picked: list[int]) -> None:
        """Count a job as leased; `_lease_these` leases it later."""
        picked.append(one.seq)
        if one.unique_phases is not None:
            self._leave_queue(one.state, one.seq, one.unique_phases)
        self._tx.count_move(self._queue, one.state, RUNNING)

    def _lease_these(self, picked: list[int]) -> list[Row]:
        rows = self._tx.execute(_LEASE_THESE, (numbers(picked), None, *self._terms)).fetchall()
        order = {seq: i for i, seq in enumerate(picked)}
        return sorted(rows, key=lambda row: order[row[_SEQ]])

    def _leave_queue(self, state: int, seq: int, unique_phases: int) -> None:
        """Update the unique key of a job that leaves the queue: its start may free or take the key."""
        shift_key(self._tx, self._queue, seq, unique_phases, STATES[state], STATES[RUNNING])

    def _candidates(self, want: int, more: int = _MOST_EXPIRED) -> Iterator[_Candidate]:
        execute, qid, most = self._tx.execute, self._queue.qid, want + more
        if self._tasks:
            # fetchall: statements that change jobs run during this iteration
            yield from map(_Candidate._make, execute(_PARKED, (qid, most, texts(self._tasks))).fetchall())
        yield from map(_Candidate._make, execute(_READY, (qid, most)).fetchall())


def _some_expired(tx: TransactionContext, queue: QueueContext) -> bool:
    return tx.execute(_EXPIRED, (queue.qid, tx.now)).fetchone() is not None


def _kept_back(
    tx: TransactionContext, queues: Sequence[QueueContext], worker: str
) -> tuple[int | None, tuple[SetAside, ...], tuple[str, ...]]:
    """Return the fields `opens_at`, `set_aside` and `kept` of `Fetched` for this worker."""
    limited = [queue for queue in queues if queue.rate_limiter is not None]
    wanted = [queue for queue in limited if _wanted(tx, queue, worker)]
    opens = limits.opens_at(tx, limited, {queue.qid for queue in wanted})
    return opens, tx.take_set_aside(), tuple(queue.name for queue in wanted if limits.full(queue))


def _wanted(tx: TransactionContext, queue: QueueContext, worker: str) -> Sequence[str]:
    """Return the tasks that this worker knows, if a job of one of them is parked here; else an empty list."""
    if not queue.count(PARKED):
        return ()
    found = tx.execute(_WORKER, (tx.namespace, worker)).fetchone()
    if found is None:
        return ()
    (blob,) = found
    info = worker_of(worker, 0, blob)
    if queue.name in info.handled:
        return [task for (task,) in tx.execute(_PARKED_TASKS, (queue.qid,))]
    return info.tasks if tx.execute(_IS_PARKED, (queue.qid, texts(info.tasks))).fetchone() else ()


# ── many plain jobs ──────────────────────────────────────────────────────────────────────────────

# The fast path: read in one step and leased in another. `sqlite3` gives the GIL away at each step of a
# statement, and waits for up to 5 ms to have it back while the worker runs jobs in another thread.
# `UPDATE … RETURNING` takes a step per job; these statements take two.


_READY_PLAIN = SQL["fetch.ready_plain"]
_LEASE_PLAIN = SQL["fetch.lease_plain"]

#: For fewer jobs, one statement costs less than two; more would need too much memory at once.
LEAST, MOST = 16, 4_000

_RUNNING = State.RUNNING
_spec_of = msgspec.msgpack.Decoder(NewJob).decode
#: -priority, place, seq, attempt, lost, enqueued_at, due, expires_at, cancel_asked, length of the spec
_Row = tuple[int, int, int, int, int, int, int, int | None, int, int]
_rows_of = msgspec.json.Decoder(list[_Row]).decode


class LeaseTerms(NamedTuple):
    """The last parameters of the statements that lease jobs."""

    charge: int
    now: int
    token: str
    worker: str
    until: int


def lease_plain_jobs(
    tx: TransactionContext, queue: QueueContext, want: int, terms: LeaseTerms
) -> list[Job] | None:
    """Lease the first `want` (LEAST to MOST) available jobs of a queue.

    Returns None, and changes nothing, if there are fewer, or if one is not plain, is large or cannot be read.
    """
    seqs, rows_json, specs_hex, special = tx.execute(_READY_PLAIN, (queue.qid, want)).fetchone()
    if special != 0:  # None: there is no job
        return None
    try:
        rows = _rows_of(rows_json)
        specs = _specs_in(bytes.fromhex(specs_hex), rows)
    except CANNOT_DECODE:
        return None
    if len(rows) != want or rows != sorted(rows) or not _lease(tx, seqs, terms, want):
        return None
    charge, now, token, worker, _ = terms
    return [
        Job(
            spec,
            _RUNNING,
            seq,
            attempt + charge,
            lost,
            enqueued_at,
            due,
            now,
            None,
            expires_at,
            token,
            worker,
            False,
            asked == 1,
        )
        for spec, (_, _, seq, attempt, lost, enqueued_at, due, expires_at, asked, _) in zip(
            specs, rows, strict=True
        )
    ]


def _specs_in(joined: bytes, rows: list[_Row]) -> list[NewJob]:
    """Decode each spec by itself: two damaged ones could be readable together."""
    specs, at = [], 0
    for row in rows:
        end = at + row[-1]
        specs.append(_spec_of(joined[at:end]))
        at = end
    return specs


def _lease(tx: TransactionContext, seqs: str, terms: LeaseTerms, want: int) -> bool:
    """Lease these jobs; if another program's trigger keeps one from it, lease none."""
    tx.set_savepoint()
    all_leased = tx.execute(_LEASE_PLAIN, (seqs, *terms)).rowcount == want
    if not all_leased:
        tx.undo_to_savepoint()
    tx.release_savepoint()
    return all_leased


# ── wait ─────────────────────────────────────────────────────────────────────────────────────────

# The query between two notifications: whether there is something to do.


_WAKE_COUNTS = SQL["counters.wake_counts"]


def wake_counts(tx: TransactionContext) -> WakeCounts:
    row = tx.execute(_WAKE_COUNTS, (tx.namespace,)).fetchone()
    return WakeCounts(0, 0) if row is None else WakeCounts(*row)


class LookResult(NamedTuple):
    """What a wait has found."""

    wake: Wake
    counts: WakeCounts
    due: int | None  # the first instant at which something is due; None if the wait ends
    now: int


def look(
    tx: TransactionContext,
    queues: Sequence[str],
    until: int,
    before: WakeCounts,
    parked: Sequence[str],
    ends_at_due: bool,
) -> LookResult:
    """Return the flags of a wait that ends at `until`, and the counts so far.

    - `before`: the counts that were reported last; `parked`: as in `Wait`.
    - `ends_at_due`: whether what is due before the end is work.
    """
    wake, first = Wake.NOTHING, None
    found = tx.known(queues)
    if any(limits.has_startable(tx, queue, parked=queue.name in parked) for queue in found):
        wake |= Wake.WORK
    else:
        first = next_due(tx, found)
        for due in (first if ends_at_due else None, limits.opens_at(tx, found)):
            if due is not None and (due <= tx.now or due < until):
                wake |= Wake.WORK
    now = wake_counts(tx)
    return LookResult(wake | now.wake_since(before), now, first, tx.now)
