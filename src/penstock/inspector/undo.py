"""Undo of acts on single jobs: which acts can be taken back, and the acts that do it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.core.job import TERMINAL, Job, Ref, State
from penstock.inspector.job_acts import Change, JobAct, JobActs
from penstock.stores.contract import Store


class UndoStep(msgspec.Struct, frozen=True):
    """What takes an act on one job back, if the job still is as the act left it.

    | act | undone by | for jobs that were |
    |---|---|---|
    | RETRY | DISCARD or CANCEL, with the reason from before | dead or cancelled |
    | RUN_NOW, RESCHEDULE | RESCHEDULE to the time from before | available, scheduled or retryable |
    | CANCEL, DISCARD, COMPLETE | RETRY | available, and never attempted |
    | MOVE | MOVE back | in any state that can be moved |

    Other acts are not undone: those on nodes of flows and on batches, because other jobs follow from theirs;
    those on jobs with a unique key or a partition, whose place another job may have by then; and a CANCEL of
    a scheduled job, because a retried one may start before its time.

    - `queue`, `id`: where the job is after the act.
    - `states`, `attempt`: what it must still be.
    - `run_at` (ms), `to`, `reason`: arguments of `act`.
    """

    act: JobAct
    queue: str
    id: str
    states: tuple[State, ...]
    attempt: int
    run_at: int | None = None
    to: str = ""
    reason: str = ""

    @property
    def ref(self) -> Ref:
        """The address of the job."""
        return Ref(self.queue, self.id)


#: How a job has ended by an act.
_ENDS = {
    JobAct.CANCEL: State.CANCELLED,
    JobAct.DISCARD: State.DEAD,
    JobAct.COMPLETE: State.COMPLETED,
}
_LATER = (State.SCHEDULED, State.RETRYABLE, State.AVAILABLE)


def undo_step(act: JobAct, job: Job, *, to: str = "") -> UndoStep | None:
    """What takes an act back that is about to be done to this job; None if it cannot be undone."""
    spec = job.spec
    if spec.flow is not None or spec.batch_terms is not None or job.members or job.batch is not None:
        return None
    if act is JobAct.MOVE and job.state not in TERMINAL:
        return UndoStep(JobAct.MOVE, to, job.id, _LATER, job.attempt, to=job.queue)
    if spec.unique is not None or spec.partition is not None:
        return None
    if act is JobAct.RETRY and job.state in (State.DEAD, State.CANCELLED):
        back = JobAct.DISCARD if job.state is State.DEAD else JobAct.CANCEL
        return UndoStep(back, job.queue, job.id, (State.AVAILABLE,), 0, reason=job.reason or "")
    if act in (JobAct.RUN_NOW, JobAct.RESCHEDULE) and job.state in _LATER:
        return UndoStep(JobAct.RESCHEDULE, job.queue, job.id, _LATER, job.attempt, run_at=job.run_at)
    after = _ENDS.get(act)
    if after is not None and job.state is State.AVAILABLE and job.attempt == 0:
        return UndoStep(JobAct.RETRY, job.queue, job.id, (after,), 0)
    return None


async def undo(store: Store, steps: Sequence[UndoStep]) -> list[Change]:
    """Take acts back for the jobs that are still as the acts left them; the others are refused."""
    jobs = await store.get([step.ref for step in steps])
    changes: list[Change] = []
    for step, job in zip(steps, jobs, strict=True):
        if job is None:
            changes.append(Change(step.queue, step.id, "missing", "no such job"))
        elif job.state not in step.states or job.attempt != step.attempt:
            why = f"not undone: it is {job.state.value}"
            changes.append(Change(step.queue, step.id, "refused", why))
        else:
            acts = JobActs(store, run_at=step.run_at, to=step.to, reason=step.reason)
            changes += await acts.apply(step.act, [step.ref])
    return changes
