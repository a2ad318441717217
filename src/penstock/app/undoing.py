"""Undoing the steps of a flow whose last attempt has failed before its function could undo them.

Such a job is dead only after one more run, which calls the undo functions of its stored steps.
"""

from __future__ import annotations

from msgspec.structs import replace

from penstock.core.job import Job, State
from penstock.core.lifecycle import Transition
from penstock.core.text import text_of
from penstock.stores.contract import RecordStatus, StepRecord, Store

__all__ = ["FAILED", "UNDO", "UNDO_AFTER", "can_be_undone", "failure_of", "undo_first"]

#: The step that marks a flow that is being undone; its value is the reason.
FAILED = "failed!"
#: The name in the checkpoint of a job with steps that can be undone.
UNDO = "undo!"
#: The extra run begins this long (ms) after the failure.
UNDO_AFTER = 1_000

_MARK = f'"{UNDO}"'.encode()
#: Divides the reason in the step FAILED from the token of the lease that has stored it.
_BY = b"\x00"


def can_be_undone(checkpoint: bytes | None) -> bool:
    """Whether the job with this checkpoint may have steps that can be undone."""
    return checkpoint is not None and _MARK in checkpoint


def failure_of(value: bytes | None) -> str:
    """The reason in the step FAILED."""
    return (value or b"").partition(_BY)[0].decode(errors="replace")


async def undo_first(store: Store, job: Job, move: Transition, by: int) -> Transition:
    """The transition to apply in place of `move`, which ends the flow: it runs once more, to be undone.

    `move` itself, with a reason, if that run has been. `by`: extends the lease (ms). A repeated call has the
    same answer.
    """
    error = "" if move.error is None else move.error.message
    why = (error or text_of(move.reason or "the flow failed"))[:300]
    value = why.encode("utf-8", "replace") + _BY + job.lease.token.encode()
    (answer,) = await store.record_steps([StepRecord(job.lease, FAILED, value, by)])
    if answer.status is RecordStatus.STORED or answer.value == value:
        return Transition(State.SUSPENDED, delay=UNDO_AFTER, charge=False, error=move.error)
    return replace(move, reason=f"not undone, as its last run ended early: {why}"[:300])
