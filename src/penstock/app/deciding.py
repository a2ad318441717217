"""Decide what follows from an outcome, by the lifecycle: a transition, or an extra run that undoes steps.

Imports little: supervisors use it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from penstock.core.errors import StoreError
from penstock.core.job import DEAD_KEPT, AttemptError, Job, State
from penstock.core.lifecycle import Transition, decide, kept, set_aside, starts_on_record
from penstock.core.outcomes import LeaseLost, Outcome, TimedOut
from penstock.core.text import text_of
from penstock.stores.contract import (
    STEP_UNDO,
    Capability,
    Fetched,
    HeartbeatRequest,
    RecordStatus,
    Settled,
    Settlement,
    StepRecord,
    Store,
)

#: When a job that cannot run here is due again (ms), on a store that cannot park jobs.
_UNPARKED = 60_000


def decided(
    job: Job,
    outcome: Outcome,
    now: int,
    keep_dead: int = DEAD_KEPT,
    *,
    undoes: bool = False,
    store: Store | None = None,
) -> Transition:
    """What follows from an outcome by the lifecycle. Never raises: a job with invalid terms is set aside.

    `undoes`: the attempt only undid the steps of its flow, which its deadline does not end.
    `store`: the store of the transition. If it cannot park jobs or throttle queues, the job is due later.
    """
    if undoes:
        job = replace(job, spec=replace(job.spec, deadline=None))
    try:
        move = decide(job, outcome, now, random.random(), keep_dead=keep_dead)  # noqa: S311 (jitter, no secret)
        return move if store is None else _supported(move, store)
    except Exception as wrong:  # noqa: BLE001  # boundary: invalid terms must affect only their own job
        move = set_aside(f"its outcome cannot be decided: {text_of(wrong)}")
        return replace(move, error=getattr(outcome, "error", None))


def _supported(move: Transition, store: Store) -> Transition:
    if move.state is State.PARKED and not store.can(Capability.PARKING):
        return replace(move, state=State.SCHEDULED, delay=_UNPARKED)
    if move.throttle and not store.can(Capability.LIMITS):
        state = State.SCHEDULED if move.state is State.AVAILABLE else move.state
        return replace(move, state=state, delay=max(move.delay, move.throttle), throttle=0)
    return move


# ── undoing steps ────────────────────────────────────────────────────────────────────────────────

# The steps of a flow that has ended before its function could undo them. Such a job ends only after one more
# run, which calls the undo functions of its stored steps.


#: The step that marks a flow that is being undone; its value is the reason.
STEP_FAILED = "failed!"
#: The extra run begins this long (ms) after the failure.
UNDO_AFTER = 1_000

#: In the checkpoint of a job with steps that can be undone: the name of an entry.
_MARK = f'"{STEP_UNDO}"'.encode()
#: Divides the reason in the step STEP_FAILED from the token of the lease that has stored it.
_BY = b"\x00"


def can_be_undone(checkpoint: bytes | None) -> bool:
    """Whether the job with this checkpoint may have steps that can be undone."""
    return checkpoint is not None and _MARK in checkpoint


def failure_of(value: bytes | None) -> str:
    """The reason in the step STEP_FAILED."""
    return (value or b"").partition(_BY)[0].decode(errors="replace")


async def undo_first(store: Store, job: Job, move: Transition, by: int, *, again: bool = False) -> Transition:
    """The transition to apply in place of `move`, which ends the flow: it runs once more, to be undone.

    If that run has been, the job is dead with the reason of `move`, unless it runs `again`: the next run is
    one that nothing from outside ends. `by`: extends the lease (ms). A repeated call has the same answer.
    """
    error = "" if move.error is None else move.error.message
    why = (error or text_of(move.reason or "the flow failed"))[:300]
    value = why.encode("utf-8", "replace") + _BY + job.lease.token.encode()
    (answer,) = await store.record_steps([StepRecord(job.lease, STEP_FAILED, value, by)])
    if again or answer.status is RecordStatus.STORED or answer.value == value:
        return Transition(State.SUSPENDED, delay=UNDO_AFTER, charge=False, error=move.error)
    keep = move.keep if move.state is State.DEAD else kept(job.spec, State.DEAD)
    reason = f"not undone, as its last run ended early: {why}"[:300]
    return replace(move, state=State.DEAD, keep=keep, reason=reason)


# ── reclaimed jobs ───────────────────────────────────────────────────────────────────────────────

# The process that reclaims a job decides its outcome and settles it.


_log = logging.getLogger("penstock")

#: The lease (ms) of a reclaimed job from the storing of its failure to its settlement.
_UNDO_LEASE = 15_000


def _unknown(_: Job) -> None:
    """What a reclaimer says of an attempt of which it knows only what the store has recorded."""


class Loss(msgspec.Struct, frozen=True):
    """Why jobs are reclaimed, and what their reclaimer knows of the lost attempts.

    Only `kind` and `cause` are always known. A supervisor also knows what its worker process was doing when
    it died, from the lease table that both share.
    """

    #: The kind and the message of the error that each lost attempt gets, as in "WorkerLost", "worker … died".
    kind: str
    cause: str
    #: How long (ms) jobs that die by it are kept, unless they say so themselves.
    keep_dead: int = DEAD_KEPT
    #: Whether the function of a job had started; None: unknown, and what the store has recorded counts. The
    #: store may lack the record: a server that is killed may lose its last moments.
    started: Callable[[Job], bool | None] = _unknown
    #: The timeout message of a job for which the worker was killed; None for the others.
    timeout_message: Callable[[Job], str | None] = _unknown
    #: Whether to leave a job with this transition to another reclaimer, which may take it at once.
    leave: Callable[[Transition], bool] = lambda _: False
    #: Called with each job that was decided, and the transition that the store applied.
    on_decided: Callable[[Job, Transition], None] = lambda *_: None


async def settle_reclaimed(store: Store, found: Fetched, loss: Loss) -> None:
    """Settle reclaimed jobs by the lifecycle's decision. Jobs not settled in time are reclaimed again."""
    decided_jobs: list[Job] = []
    settlements: list[Settlement] = []
    left: list[HeartbeatRequest] = []
    for job in found.jobs:
        started = loss.started(job)
        if started is None:
            started = job.started or not starts_on_record(job)
        timeout_message = loss.timeout_message(job) if started else None
        outcome: LeaseLost | TimedOut
        if timeout_message is not None:
            outcome = TimedOut(AttemptError.bounded(job.attempt, found.now, "Timeout", timeout_message))
        else:
            error = AttemptError.bounded(job.attempt, found.now, loss.kind, loss.cause)
            outcome = LeaseLost(error, started=started)
        late = job.spec.deadline is not None and found.now >= job.spec.deadline
        undoes = late and can_be_undone(job.checkpoint)
        move = decided(job, outcome, found.now, loss.keep_dead, undoes=undoes)
        if loss.leave(move):
            left.append(HeartbeatRequest(job.lease, 1))
        else:
            if move.state is State.DEAD and can_be_undone(job.checkpoint):
                move = await _undone_first(store, job, move)
            decided_jobs.append(job)
            settlements.append(Settlement(job.lease, move))
    if left:
        await store.extend(left)
    if settlements:
        answers = await _settled(store, settlements)
        for job, one, answer in zip(decided_jobs, settlements, answers, strict=True):
            if answer is Settled.APPLIED:
                loss.on_decided(job, one.transition)


async def _undone_first(store: Store, job: Job, move: Transition) -> Transition:
    try:
        return await undo_first(store, job, move, _UNDO_LEASE)
    except StoreError:
        raise
    except Exception:  # noqa: BLE001  # boundary: one flow that cannot be undone must not block the others
        _log.exception("job %s: its steps are not undone", job.id)
        return move


async def _settled(store: Store, settlements: list[Settlement]) -> Sequence[Settled | None]:
    """The answers; None for a settlement that the store cannot take: its job is reclaimed again later."""
    try:
        return await store.settle(settlements)
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001  # boundary: one settlement that cannot be stored must not block the others
        if len(settlements) > 1:
            return [answer for one in settlements for answer in await _settled(store, [one])]
        _log.exception("job %s: its reclaim could not be stored: %s", settlements[0].lease.id, text_of(error))
        return [None]
