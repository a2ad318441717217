"""Decides the outcome of reclaimed jobs and settles them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypedDict

from msgspec.structs import replace

from penstock.app.undoing import can_be_undone, undo_first
from penstock.core.job import DEAD_KEPT, AttemptError, Job, State
from penstock.core.lifecycle import Transition, decide, set_aside, starts_on_record
from penstock.core.outcomes import LeaseLost, TimedOut
from penstock.stores.contract import Fetched, HeartbeatRequest, Settled, Settlement, Store

__all__ = ["OnDecided", "SettleOptions", "settle_reclaimed"]

#: Called with each reclaimed job that was decided, and the transition that the store applied.
OnDecided = Callable[[Job, Transition], None]


#: The lease (ms) of a reclaimed job from the storing of its failure to its settlement.
_UNDO_LEASE = 15_000


class SettleOptions(TypedDict, total=False):
    """The options of `settle_reclaimed`, for callers that pass them on."""

    started: Callable[[Job], bool | None]
    overdue: Callable[[Job], str | None]
    keep_dead: int
    on_decided: OnDecided
    leave: Callable[[Transition], bool]


async def settle_reclaimed(
    store: Store,
    found: Fetched,
    kind: str,
    cause: str,
    *,
    started: Callable[[Job], bool | None] = lambda _: None,
    overdue: Callable[[Job], str | None] = lambda _: None,
    keep_dead: int = DEAD_KEPT,
    on_decided: OnDecided = lambda *_: None,
    leave: Callable[[Transition], bool] = lambda _: False,
) -> None:
    """Settle reclaimed jobs by the lifecycle's decision. Jobs not settled in time are reclaimed again.

    `started`: whether the function of a job had started; None: the caller does not know, and what the store
    has recorded counts. It may lack the record: a server that is killed may lose its last moments.
    Jobs for whose transition `leave` is true are left to another reclaimer, which may take them at once.
    """
    decided_jobs: list[Job] = []
    settlements: list[Settlement] = []
    left: list[HeartbeatRequest] = []
    for job in found.jobs:
        was_started = started(job)
        if was_started is None:
            was_started = job.started or not starts_on_record(job)
        timeout_message = overdue(job) if was_started else None
        outcome: LeaseLost | TimedOut
        if timeout_message is not None:
            outcome = TimedOut(AttemptError.bounded(job.attempt, found.now, "Timeout", timeout_message))
        else:
            error = AttemptError.bounded(job.attempt, found.now, kind, cause)
            outcome = LeaseLost(error, started=was_started)
        move = _decided(job, outcome, found.now, keep_dead)
        if leave(move):
            left.append(HeartbeatRequest(job.lease, 1))
        else:
            if move.state is State.DEAD and can_be_undone(job.checkpoint):
                move = await undo_first(store, job, move, _UNDO_LEASE)
            decided_jobs.append(job)
            settlements.append(Settlement(job.lease, move))
    if left:
        await store.extend(left)
    if settlements:
        answers = await store.settle(settlements)
        for job, one, answer in zip(decided_jobs, settlements, answers, strict=True):
            if answer is Settled.APPLIED:
                on_decided(job, one.transition)


def _decided(job: Job, outcome: LeaseLost | TimedOut, now: int, keep_dead: int) -> Transition:
    try:
        return decide(job, outcome, now, random.random(), keep_dead=keep_dead)  # noqa: S311 (jitter, no secret)
    except Exception as error:  # noqa: BLE001  # boundary: invalid terms must affect only their own job
        move = set_aside(f"its outcome cannot be decided: {error}")
        return replace(move, error=outcome.error)
