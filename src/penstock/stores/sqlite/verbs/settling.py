"""settle: plain completions together, all other settlements one by one."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.flow import outcome_of
from penstock.core.job import MAX_ERRORS, TERMINAL, AttemptError, Lease, Ref, State
from penstock.core.lifecycle import QueuePosition, Transition
from penstock.stores.contract import Settled, Settlement, no_outcome
from penstock.stores.sqlite import partitions
from penstock.stores.sqlite.blobs import errors_blob, errors_of
from penstock.stores.sqlite.queue_context import QueueContext
from penstock.stores.sqlite.rows import Row, RowBefore, UnreadableRow
from penstock.stores.sqlite.sql import SQL
from penstock.stores.sqlite.states import AVAILABLE, CODE, RUNNING, SUSPENDED
from penstock.stores.sqlite.transaction_context import TransactionContext
from penstock.stores.sqlite.verbs import limits
from penstock.stores.sqlite.verbs.batches import drop_members, end_members
from penstock.stores.sqlite.verbs.completing import completions_of
from penstock.stores.sqlite.verbs.keys import forget_key, shift_key
from penstock.stores.sqlite.verbs.producing import enqueue_one
from penstock.stores.sqlite.verbs.stepping import forget_steps, state_after
from penstock.stores.text_encoding import reason_after

__all__ = ["settle"]

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
    return {name: tx.heads(queue, needed[name]) for name, queue in found.items() if queue is not None}


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
    tx.settled(queue, int(to.charge), int(to.error is not None))
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
            forget_steps(tx, [seq])
        tx.move(queue, RUNNING, None)
        if unique_phases is not None:
            forget_key(tx, seq, code, unique_phases)
        if is_batch:
            end_members(tx, queue, one.lease.id, code, now, reason)
            drop_members(tx, queue, one.lease.id, forgotten=True)
        if before is not None:
            partitions.became(tx, queue, before, None, place)
        return
    if to.place is not QueuePosition.OWN:
        place = head if to.place is QueuePosition.HEAD else tx.tails(queue, 1) + 1
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
    tx.move(queue, RUNNING, after)


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
