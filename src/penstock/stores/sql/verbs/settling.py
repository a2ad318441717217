"""settle: plain completions together, all other settlements one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from penstock.core.flow import NodeState, outcome_of
from penstock.core.job import MAX_ERRORS, TERMINAL, AttemptError, Lease, Ref, State
from penstock.core.lifecycle import Transition
from penstock.core.outcomes import QueuePosition
from penstock.stores.contract import Settled, Settlement, no_outcome
from penstock.stores.sql import partitions
from penstock.stores.sql.rows import Row, RowBefore, UnreadableRow, errors_blob, errors_of, numbers
from penstock.stores.sql.statements import AVAILABLE, CODE, COMPLETED, RUNNING, SQL, SUSPENDED
from penstock.stores.sql.transaction_context import QueueContext, TransactionContext
from penstock.stores.sql.verbs import limits
from penstock.stores.sql.verbs.batches import drop_members, end_members
from penstock.stores.sql.verbs.keys import forget_key, shift_key
from penstock.stores.sql.verbs.producing import enqueue_one
from penstock.stores.sql.verbs.stepping import drop_memory, state_after
from penstock.stores.text_encoding import reason_after, storable

_LOOK = SQL["settle.look"]
_MOVE = SQL["settle.move"]
_DROP = SQL["settle.drop"]

#: The first columns of `settle.look`.
_SEQ, _STATE, _TOKEN = 0, 1, 2


def settle(tx: TransactionContext, settlements: Sequence[Settlement]) -> list[Settled]:
    if len(settlements) == 1:
        no_outcome(settlements[0].transition)
        return [_settle_one(tx, settlements[0], _heads(tx, settlements))]
    completions, rest = completions_of(tx, settlements)
    answers = [Settled.APPLIED] * len(settlements)
    passed_over = None if completions is None else completions.settle(tx)
    if passed_over is None:
        rest = list(range(len(settlements)))
    elif passed_over:
        more = (n for n, one in enumerate(settlements) if _generation(one) in passed_over)
        rest = sorted({*rest, *more})
    if rest:
        heads = _heads(tx, [settlements[place] for place in rest])
        for place in rest:
            answers[place] = _settle_one(tx, settlements[place], heads)
    return answers


def _generation(one: Settlement) -> int:
    return one.lease.generation if isinstance(one.lease, Lease) else -1


# ── one by one ───────────────────────────────────────────────────────────────────────────────────


def _heads(tx: TransactionContext, settlements: Sequence[Settlement]) -> dict[str, int]:
    """Reserve the places at the head of each queue for this call, so that its jobs keep their order.

    Returns the first place per queue.
    """
    needed: dict[str, int] = {}
    for one in settlements:
        if one.transition.place is QueuePosition.HEAD:
            needed[one.lease.queue] = needed.get(one.lease.queue, 0) + 1
    found = {name: tx.queue(name) for name in needed}
    return {
        name: tx.places_at_head(queue, needed[name]) for name, queue in found.items() if queue is not None
    }


def _settle_one(tx: TransactionContext, one: Settlement, heads: dict[str, int]) -> Settled:
    lease = one.lease
    queue = tx.queue(lease.queue)
    row = None if queue is None else tx.execute(_LOOK, (queue.qid, lease.id)).fetchone()
    if queue is None or row is None:
        return Settled.GONE
    if not _holds(lease, row[_SEQ], row[_STATE], row[_TOKEN]):
        return Settled.STALE
    head = 0
    if one.transition.place is QueuePosition.HEAD:
        head = heads[lease.queue]
        heads[lease.queue] += 1
    try:
        _apply(tx, queue, row, one, head)
    except OverflowError as error:
        raise UnreadableRow({row[_SEQ]: f"its end cannot be stored: {error}"}) from error
    for new in one.then:
        enqueue_one(tx, new, follows=True)
    return Settled.APPLIED


def _holds(lease: Lease | Ref, seq: int, state: int, token: str) -> bool:
    """Return True if this is the lease of the running job; a Ref matches any lease."""
    if state != RUNNING:
        return False
    return not isinstance(lease, Lease) or (seq == lease.generation and token == lease.token)


def _apply(tx: TransactionContext, queue: QueueContext, row: Row, one: Settlement, head: int) -> None:
    seq, _, token, attempt, charged, lost, place, due, errors, unique_phases, is_batch, *rest = row
    asked, because, flow, has_steps = rest
    to, now = one.transition, tx.now
    reason = reason_after(to, bool(asked), because)
    if to.throttle:
        limits.throttle(tx, queue, to.throttle)
    before = _throttled(tx, queue, seq, to) if queue.has_dependents else None
    tx.count_attempts(queue, int(to.charge), int(to.error is not None))
    code = CODE[to.state]
    if code == SUSPENDED:
        code = state_after(tx, seq, asked=bool(asked))
    ended = to.state in TERMINAL
    if unique_phases is not None:
        shift_key(tx, queue, seq, unique_phases, State.RUNNING, to.state)
    if flow is not None and ended:
        tx.flow_ends.append((flow, outcome_of(to.state), one.result))
    if ended and has_steps:
        tx.parent_ended(seq, completed=to.state is State.COMPLETED)
    if ended and to.keep <= 0:
        tx.execute(_DROP, (seq, token))
        if has_steps:
            drop_memory(tx, [seq])
        tx.count_move(queue, RUNNING, None)
        if unique_phases is not None:
            forget_key(tx, seq, code, unique_phases)
        if is_batch:
            end_members(tx, queue, one.lease.id, code, now, reason)
            drop_members(tx, queue, one.lease.id, forgotten=True)
        if before is not None:
            partitions.became(tx, queue, before, None, place)
        return
    if to.place is not QueuePosition.OWN:
        place = head if to.place is QueuePosition.HEAD else tx.places_at_tail(queue, 1) + 1
    tx.execute(
        _MOVE,
        (
            seq,
            code,
            attempt - (1 if charged and not to.charge else 0),
            lost + to.lost,
            place,
            _due(to, due, now) if code != AVAILABLE or to.state is State.AVAILABLE else now,
            now if ended else None,
            now + to.keep if ended else None,
            errors if to.error is None else _with(errors, to.error),
            one.result if ended else None,
            reason,
            token,
        ),
    )
    if is_batch and ended:
        end_members(tx, queue, one.lease.id, code, now + to.keep, reason)
    after: int | None = code
    if before is not None:
        after = partitions.became(tx, queue, before, code, place, at_tail=to.place is QueuePosition.TAIL)
    tx.count_move(queue, RUNNING, after)


def _throttled(tx: TransactionContext, queue: QueueContext, seq: int, to: Transition) -> RowBefore:
    """Return the job's row, and throttle its partition if the transition does."""
    before = partitions.look(tx, seq)
    if before.partition is None or to.throttle_partition <= 0:
        return before
    until = tx.now + to.throttle_partition
    return partitions.throttle(tx, queue, before, before.partition, until, back=to.state is State.AVAILABLE)


def _due(to: Transition, due: int, now: int) -> int:
    if to.state in (State.SCHEDULED, State.RETRYABLE, State.SUSPENDED):
        return now + to.delay
    if to.state is State.AVAILABLE and to.place is not QueuePosition.OWN:
        return now
    return due


def _with(blob: bytes | None, error: AttemptError) -> bytes:
    return errors_blob((*errors_of(blob), error)[-MAX_ERRORS:])


# ── completed jobs without dependents, together ──────────────────────────────────────────────────

# The fast path: a few statements settle all of a call.


_REMOVE = SQL["settle.remove"]
_LEFT = SQL["settle.left"]
_KEEP = SQL["settle.keep"]

_COMPLETED = State.COMPLETED
#: The first parameters of `settle.keep`: one tuple per job.
_KEPT_SEQ, _KEPT_QID, _KEPT_RESULT = 0, 1, 6
#: The unique_phases of the job of a node without a unique key.
_MEMBER = 0
_decode_nodes = msgspec.json.Decoder(list[tuple[int, int | None]]).decode


class Completions:
    """Completed jobs that concern nobody else, or nobody but their flow: only a result has to be stored."""

    __slots__ = ("gone", "kept", "members", "queues", "results", "with_dependents")

    def __init__(self) -> None:
        self.gone: dict[tuple[int, str], list[int]] = {}  # generations, by queue and token
        self.kept: list[Row] = []
        self.queues: dict[int, QueueContext] = {}
        self.results: dict[int, bytes] = {}  # of jobs that are not kept, by generation
        self.members: dict[int, int] = {}  # the nodes of jobs of flows, by generation
        self.with_dependents: set[int] = set()  # generations

    def settle(self, tx: TransactionContext) -> set[int] | None:
        """Settle all jobs except those with dependents; return the generations of those.

        Returns None, and settles nothing, if one of the leases is no longer held.
        """
        tx.set_savepoint()
        try:
            all_hold = self._remove(tx) and self._keep(tx)
        except OverflowError:  # settling the jobs one by one will find the job that causes it
            all_hold = False
        if not all_hold:
            tx.undo_to_savepoint()
        tx.release_savepoint()
        if not all_hold:
            return None
        tx.expects_members = bool(self.members)
        self._count(tx)
        return self.with_dependents

    def _remove(self, tx: TransactionContext) -> bool:
        for (qid, token), seqs in self.gone.items():
            done = tx.execute(_REMOVE, (numbers(seqs), qid, token, None)).rowcount
            if done != len(seqs):
                left = self._look(tx, qid, token, seqs)
                members = [seq for seq in seqs if seq in self.members]
                if members:
                    done += tx.execute(_REMOVE, (numbers(members), qid, token, _MEMBER)).rowcount
                if done + len(left) != len(seqs):
                    return False
                seqs[:] = [seq for seq in seqs if seq not in left]
        return True

    def _keep(self, tx: TransactionContext) -> bool:
        if not self.kept:
            return True
        done, look_first = 0, tx.expects_members  # jobs of flows, which a first attempt would miss
        if not look_first:
            done = tx.execute_many(_KEEP, self.kept).rowcount
            if done == len(self.kept):
                return True
        under: dict[tuple[int, str], list[int]] = {}
        for seq, qid, _, token, *_ in self.kept:
            under.setdefault((qid, token), []).append(seq)
        left: set[int] = set()
        for (qid, token), seqs in under.items():
            left |= self._look(tx, qid, token, seqs)
        members = self.members
        rows = [(*row[:-1], _MEMBER) if row[_KEPT_SEQ] in members else row for row in self.kept]
        if left:
            rows = self.kept = [row for row in rows if row[_KEPT_SEQ] not in left]
        if not look_first:
            rows = [row for row in rows if row[_KEPT_SEQ] in members]
        done += tx.execute_many(_KEEP, rows).rowcount
        return done == len(self.kept)

    def _look(self, tx: TransactionContext, qid: int, token: str, seqs: list[int]) -> set[int]:
        """Return the jobs with dependents among those whose lease is held; note those of nodes."""
        (found,) = tx.execute(_LEFT, (numbers(seqs), qid, token)).fetchone()
        nodes = _decode_nodes(found)
        left = {seq for seq, nid in nodes if nid is None}
        self.members |= {seq: nid for seq, nid in nodes if nid}
        self.with_dependents |= left
        return left

    def _count(self, tx: TransactionContext) -> None:
        for (qid, _), seqs in self.gone.items():
            tx.count_move(self.queues[qid], RUNNING, None, len(seqs))
            tx.count_attempts(self.queues[qid], len(seqs), 0)
        for qid, n in Counter([row[_KEPT_QID] for row in self.kept]).items():
            tx.count_move(self.queues[qid], RUNNING, COMPLETED, n)
            tx.count_attempts(self.queues[qid], n, 0)
        if self.members:
            results = {row[_KEPT_SEQ]: row[_KEPT_RESULT] for row in self.kept} | self.results
            done = NodeState.COMPLETED
            tx.flow_ends += [(nid, done, results.get(seq)) for seq, nid in self.members.items()]


def completions_of(
    tx: TransactionContext, settlements: Sequence[Settlement]
) -> tuple[Completions | None, list[int]]:
    """Split a call into plain completions and the positions of the other settlements.

    Jobs that are settled once and have no `then` do not affect each other, so their order is free. Otherwise
    all must be settled in the order of the call, and the first value is None.
    """
    completions, rest = Completions(), []
    gone, kept, queues, now = completions.gone, completions.kept, completions.queues, tx.now
    results = completions.results
    in_order = False
    name, queue, token = "", None, ""
    seqs: list[int] = []
    heap: list[int] = []  # generations of the current queue and token
    for place, one in enumerate(settlements):
        lease, to = one.lease, one.transition
        if type(lease) is not Lease or one.then:
            in_order = True
            no_outcome(one.transition)
            continue
        seqs.append(lease.generation)
        if lease.queue != name:
            name, queue, token = lease.queue, tx.queue(lease.queue), ""
            if queue is not None:
                queues[queue.qid] = queue
        if (
            queue is not None
            and not queue.has_partitions
            and to.state is _COMPLETED
            and to.error is None
            and to.charge
            and not to.lost
        ):
            if to.keep > 0:
                held = (lease.generation, queue.qid, lease.id, lease.token)
                reason = to.reason and storable(to.reason)
                kept.append((*held, now, now + to.keep, one.result, reason, None))
            else:
                if lease.token != token:
                    token = lease.token
                    heap = gone.setdefault((queue.qid, token), [])
                heap.append(lease.generation)
                if one.result is not None:
                    results[lease.generation] = one.result
        else:
            no_outcome(one.transition)
            rest.append(place)
    if in_order or len(set(seqs)) != len(seqs):
        return None, rest
    return completions, rest
