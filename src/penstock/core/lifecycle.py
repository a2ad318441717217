"""The state machine: from an attempt's outcome to the job's transition.

What an error means to the rules of its task (`retry_on`, `is_failure` …) is decided in `app/outcome.py`;
whether and when the job runs again is decided here, and nowhere else.

Pure functions: no store, no clock, no random numbers; `now` and `luck` are passed in. A store applies the
transition and decides nothing. `docs/lifecycle.md` prints the table `LEGAL`; every store is tested against
it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Annotated

import msgspec

from penstock.core.job import DEAD_KEPT, FINISHED_KEPT, AttemptError, Job, NewJob, State
from penstock.core.outcomes import (
    Cancelled,
    DeadlinePassed,
    DecodingFailed,
    Expired,
    LeaseLost,
    Outcome,
    QueuePosition,
    Raised,
    Released,
    Returned,
    Snoozed,
    Suspended,
    Throttled,
    TimedOut,
    Unknown,
)
from penstock.core.retry import wait_ms
from penstock.core.security import Secret
from penstock.core.text import number


class Transition(msgspec.Struct, frozen=True):
    """A change of a running job's state, for a store to apply.

    - `delay`: ms from the store's now until the job is due (for scheduled, retryable and suspended).
    - `charge=False`: the attempt does not count.
    - `lost`: adds 1 to the job's count of lost leases.
    - `keep`: retention of the ended job (ms); 0 removes it in the same step.
    - `reason`: the reason as text.
    - `throttle`: time (ms) for which the queue starts no jobs; 0: none.
    - `throttle_partition`: time (ms) for which no job of its partition is admitted, nor itself; 0: none.
    """

    state: State
    delay: int = 0
    place: QueuePosition = QueuePosition.TAIL
    charge: bool = True
    lost: bool = False
    keep: int = 0
    error: AttemptError | None = None
    reason: Annotated[str | None, Secret.REASON] = None
    throttle: int = 0
    throttle_partition: int = 0


EXPIRED = "expired: not started in time"
DEADLINE_PASSED = "its deadline has passed"
ASK_CANCELLED = "cancelled before it started"
RUNNING_CANCELLED = "cancelled while running"
#: Reasons of parked jobs: followed by the name of a task that the worker does not know, or by the cause why
#: it cannot read the job. These reasons quote nothing of the job's contents.
UNKNOWN_TASK = "no worker here knows the task "
CANNOT_BE_READ = "cannot be read here: "
OPERATOR_CANCELLED = "cancelled by an operator"
#: The reason of a job that an operator has made dead, if no other reason is given.
DISCARDED = "discarded by an operator"
#: The reason of a job that an operator has completed; further words of the operator follow after a colon.
COMPLETED_BY_HAND = "completed by an operator"
#: The reason of a job that its periodic entry has replaced by the next one.
REPLACED = "replaced by the next one of its periodic entry"
#: Followed by a worker's id: the reason of a job that was reclaimed from that worker and is not decided yet.
LOST_BY = "lost by "
#: Followed by the cause: the reason of a job that is dead because its record cannot be read (`set_aside`).
UNREADABLE = "unreadable record: "
#: For this long (ms) after a job was first due, throttling and errors that its task does not count as
#: failures cost no attempt. After that they do, so that every job ends.
NO_FAILURE_FOR = 7 * 86_400_000
#: Minimum wait (ms) before a job runs again without the cost of an attempt: a job that snoozes for 0 s for
#: ever would use a large part of a core. Throttles have the same minimum.
SHORTEST_FREE_WAIT = 100
_MAYBE_RAN = "at-most-once: its attempt was lost after it may have started"


def decide(
    job: Job, outcome: Outcome, now: int, luck: float = 0.5, *, keep_dead: int = DEAD_KEPT
) -> Transition:
    """The transition that follows from an outcome of the job's current attempt.

    `job` is the job as it was leased (its `attempt` is the current one's number), `now` is the store's clock,
    `luck` in [0, 1) sets the jitter of a retry policy, and `keep_dead` is the retention of dead jobs that
    have none of their own.
    """
    match outcome:
        case Returned():
            return completed(job.spec.retention)
        case Raised(error, delay, final, why, failure):
            move = _dead(job, error, why) if final else _run_again(job, error, now, luck, delay, failure)
        case TimedOut(error, final, why, failure):
            move = _dead(job, error, why) if final else _run_again(job, error, now, luck, None, failure)
        case LeaseLost(error, started):
            move = _lost(job, error, started, now, luck)
        case DecodingFailed(error):
            move = _dead(job, error)
        case Snoozed(delay):
            return Transition(State.SCHEDULED, delay=max(delay, SHORTEST_FREE_WAIT), charge=False)
        case Suspended(delay):
            if job.spec.deadline is not None:
                # due just after the deadline: an earlier run would find that it has not passed yet
                delay = min(delay, max(job.spec.deadline - now, 0) + SHORTEST_FREE_WAIT)
            return Transition(State.SUSPENDED, delay=max(delay, 0), charge=False)
        case Throttled(error, delay, partition):
            move = _throttled(job, error, delay, now, luck)
            if partition and job.spec.partition is not None:
                move = msgspec.structs.replace(move, throttle=0, throttle_partition=delay)
        case Cancelled(reason):
            return _cancelled(job, reason)
        case Expired():
            return _cancelled(job, EXPIRED, charge=False)
        case DeadlinePassed():
            move = _deadline_passed(job, now)
        case Unknown(why):
            reason = f"{UNKNOWN_TASK}{job.task!r}" if why is None else why[:300]
            return Transition(State.PARKED, place=QueuePosition.OWN, charge=False, reason=reason)
        case Released(place):
            return released(place)
    if move.error is not None:
        move = msgspec.structs.replace(move, error=_of_attempt(job, move.error))
    if move.state is State.DEAD and keep_dead != DEAD_KEPT and job.spec.keep_dead is None:
        return msgspec.structs.replace(move, keep=max(job.spec.retention, keep_dead))
    return move


def _of_attempt(job: Job, error: AttemptError) -> AttemptError:
    """The error with the worker that ran the attempt, and since when it had the job."""
    worker = job.worker or ""
    if job.reason is not None and job.reason.startswith(LOST_BY):
        worker = job.reason.removeprefix(LOST_BY)  # the job was reclaimed from it
    return msgspec.structs.replace(error, worker=worker, fetched_at=job.fetched_at)


def starts_on_record(job: Job) -> bool:
    """Whether the start of this attempt must be stored before its function is called.

    True for an at-most-once job and for the last allowed attempt. If no start was stored, the function of
    such a job has not started, and a lost lease costs nothing; if one was, it may have started. Never for a
    job whose fetch starts it.
    """
    if job.spec.fetch_starts:
        return False
    return job.spec.at_most_once or job.attempt >= job.spec.max_attempts


def too_late(job: Job, now: int) -> Expired | DeadlinePassed | None:
    """The reason why a leased job must not start any more at the store's time `now`; None: it may start."""
    if job.expires_at is not None and now >= job.expires_at:
        return Expired()
    if job.spec.deadline is not None and now >= job.spec.deadline:
        return DeadlinePassed()
    return None


def limit_passed(job: Job, seconds: float) -> str:
    """Which limit has ended an attempt, `seconds` after its start: its timeout, or its job's deadline."""
    timeout, deadline = job.spec.timeout, job.spec.deadline
    if deadline is not None and (timeout is None or round(seconds * 1000) < timeout):
        return DEADLINE_PASSED
    return f"the attempt timed out after {number(seconds)} s"


@functools.lru_cache(maxsize=256)
def completed(keep: int) -> Transition:
    """The transition of a job that returned: a shared value, which stores send once per batch.

    `keep` is the job's retention (ms).
    """
    return Transition(State.COMPLETED, keep=keep)


def released(place: QueuePosition) -> Transition:
    """Release to the queue, uncharged: the transition of `Released`, for callers that have only the lease."""
    return Transition(State.AVAILABLE, place=place, charge=False)


def set_aside(cause: str) -> Transition:
    """The transition of a job, in any state, whose record cannot be decoded, encoded or moved.

    `LEGAL` does not list this step, because it is not requested: every verb that finds such a record takes
    the step and continues with the other jobs.
    """
    return Transition(State.DEAD, keep=DEAD_KEPT, reason=(UNREADABLE + cause)[:300])


def attempts_counted(spec: NewJob, left: int | None) -> int:
    """The count of attempts of a retried job that is to have this many left; None: all."""
    return 0 if left is None else max(0, spec.max_attempts - max(1, left))


def _run_again(
    job: Job, error: AttemptError, now: int, luck: float, delay: int | None, failure: bool = True
) -> Transition:
    spec = job.spec
    free = not failure and now < _first_due(spec, job.enqueued_at) + NO_FAILURE_FOR
    if spec.at_most_once:
        return _dead(job, error, "at-most-once: a started attempt never starts again")
    if job.attempt >= spec.max_attempts and not free:
        spent = "the only attempt" if spec.max_attempts == 1 else f"all {spec.max_attempts} attempts"
        return _dead(job, error, f"{spent} failed")
    if spec.deadline is not None and now >= spec.deadline:
        return _dead(job, error, DEADLINE_PASSED)
    wait = max(
        wait_ms(spec.retry, job.attempt, luck) if delay is None else delay, SHORTEST_FREE_WAIT if free else 0
    )
    if spec.deadline is not None and now + wait >= spec.deadline:
        return _dead(job, error, "its deadline passes before its next attempt")
    state = State.RETRYABLE if wait > 0 else State.AVAILABLE
    if free:
        reason = f"no failure: {error.kind}: {error.message}"[:300]
        return Transition(state, delay=wait, charge=False, reason=reason)
    return Transition(state, delay=wait, error=error)


def _throttled(job: Job, error: AttemptError, delay: int, now: int, luck: float) -> Transition:
    if now >= _first_due(job.spec, job.enqueued_at) + NO_FAILURE_FOR:
        move = _run_again(job, error, now, luck, delay)
        return msgspec.structs.replace(move, throttle=delay)
    reason = f"throttled: {error.message}"[:300]
    return Transition(State.AVAILABLE, place=QueuePosition.HEAD, charge=False, reason=reason, throttle=delay)


def _first_due(spec: NewJob, enqueued_at: int) -> int:
    """When the job was first due."""
    return max(enqueued_at + spec.delay, spec.run_at or 0)


def _lost(job: Job, error: AttemptError, started: bool, now: int, luck: float) -> Transition:
    if not started and not job.spec.fetch_starts:
        return Transition(State.AVAILABLE, place=QueuePosition.HEAD, charge=False, lost=True)
    if job.spec.at_most_once:
        return msgspec.structs.replace(_dead(job, error, _MAYBE_RAN), lost=True)
    if job.spec.fetch_starts:
        return msgspec.structs.replace(_run_again(job, error, now, luck, 0), lost=True)
    # after the first loss the job runs again at once, as the worker is the likely cause; later the job may be
    delay = 0 if job.lost == 0 else None
    again = _run_again(job, error, now, luck, delay)
    place = QueuePosition.HEAD if again.state is State.AVAILABLE else again.place
    return msgspec.structs.replace(again, lost=True, place=place)


def _dead(job: Job, error: AttemptError, why: str | None = None) -> Transition:
    reason = why or f"{error.kind}: {error.message}"
    return Transition(State.DEAD, keep=kept(job.spec, State.DEAD), error=error, reason=reason[:300])


def _deadline_passed(job: Job, now: int) -> Transition:
    error = AttemptError.bounded(job.attempt, now, "DeadlinePassed", "it was not started before its deadline")
    return msgspec.structs.replace(_dead(job, error, DEADLINE_PASSED), charge=False)


def asked_to_stop(job: Job) -> Transition:
    """The transition of a leased job that was asked to stop before its attempt began."""
    return _cancelled(job, ASK_CANCELLED, charge=False)


def _cancelled(job: Job, reason: str, *, charge: bool = True) -> Transition:
    keep = kept(job.spec, State.CANCELLED)
    return Transition(State.CANCELLED, keep=keep, reason=reason[:300], charge=charge)


def kept(spec: NewJob, state: State) -> int:
    """The retention (ms) of a job that ended in this state."""
    if state is State.COMPLETED:
        return spec.retention
    if state is State.CANCELLED:  # as long as a flow can be retried that has cancelled it
        return max(spec.retention, FINISHED_KEPT if spec.flow is None else DEAD_KEPT)
    return max(spec.retention, DEAD_KEPT) if spec.keep_dead is None else spec.keep_dead


def first_state(spec: NewJob, now: int) -> tuple[State, int]:
    """The first state of a new job, and when it is due."""
    due = spec.run_at if spec.run_at is not None else now + spec.delay
    if due > now:
        return State.SCHEDULED, due
    if spec.batch_terms is not None:
        return State.COLLECTING, now
    return State.AVAILABLE, now if spec.run_at is None else due


def batch_of(id: str, members: Sequence[NewJob]) -> NewJob:
    """The job that runs these jobs together: its only argument is the list of their payloads.

    Its priority is the highest of theirs; its other options are those of the first member.
    """
    first = members[0]
    return NewJob(
        id=id,
        task=first.task,
        payload=b"[[" + b",".join([member.payload for member in members]) + b"]]",
        queue=first.queue,
        priority=max(member.priority for member in members),
        timeout=first.timeout,
        max_attempts=first.max_attempts,
        retry=first.retry,
        retention=first.retention,
        at_most_once=first.at_most_once,
        headers=first.headers,
        batch_terms=first.batch_terms,
        keep_dead=first.keep_dead,
        fetch_starts=first.fetch_starts,
    )


#: Not a state: before a job is stored, and after it is removed.
NEW = None

_S, _A, _R, _T = State.SCHEDULED, State.AVAILABLE, State.RUNNING, State.RETRYABLE
_C, _X, _D, _P = State.COMPLETED, State.CANCELLED, State.DEAD, State.PARKED
_W, _G, _U = State.WAITING, State.COLLECTING, State.SUSPENDED

#: Every transition between states, and the verb that makes it. No store may make another one.
LEGAL: dict[tuple[State | None, State | None], str] = {
    (NEW, _S): "enqueue with a delay",
    (NEW, _A): "enqueue; a collecting batch starts",
    (_S, _A): "promote when due; retry, reschedule to now; cancel, to be undone",
    (_S, _S): "reschedule",
    (_S, _X): "cancel; expiry",
    (_S, _D): "discard",
    (_A, _R): "fetch",
    (_A, _S): "reschedule",
    (_A, _A): "retry, reschedule to now: to the tail",
    (_A, _X): "cancel; expiry",
    (_A, _D): "discard",
    (_A, _W): "enqueue: its unique call moves it into a partition that has no room",
    (_R, _C): "settle: returned",
    (_R, _X): "settle: cancelled, expired",
    (_R, _D): "settle: attempts spent, or not retryable",
    (_R, _T): "settle: failed, due again later",
    (_R, _A): "settle: released, or again at once",
    (_R, _S): "settle: snoozed",
    (_R, _P): "settle: unknown task",
    (_R, _R): "reclaim: leased to the reclaimer",
    (_R, None): "settle with nothing to keep; delete, if running jobs are included",
    (_T, _A): "promote when due; retry, reschedule to now; cancel, to be undone",
    (_T, _S): "reschedule",
    (_T, _X): "cancel; expiry",
    (_T, _D): "discard",
    (_P, _R): "fetch by a worker that knows the task",
    (_P, _A): "retry by an operator; cancel, to be undone",
    (_P, _S): "enqueue: a unique call sets a later time",
    (_P, _X): "cancel; expiry",
    (_P, _D): "discard",
    (_D, _A): "retry by an operator",
    (_X, _A): "retry by an operator",
    (_C, _A): "retry by an operator",
    (NEW, _W): "enqueue into a partition that has no room",
    (_S, _W): "promote when due; retry, reschedule to now; cancel, to be undone: its partition has no room",
    (_T, _W): "promote when due; retry, reschedule to now; cancel, to be undone: its partition has no room",
    (_P, _W): "fetch by a worker that knows the task, retry; cancel, to be undone: its partition has no room",
    (_R, _W): "settle: again as soon as the throttle of its partition ends",
    (_D, _W): "retry by an operator: its partition has no room",
    (_X, _W): "retry by an operator: its partition has no room",
    (_C, _W): "retry by an operator: its partition has no room",
    (_W, _A): "its partition has room: another job has left, or its rate allows a start; enqueue: its "
    "unique call moves it out of its partition",
    (_W, _W): "retry, reschedule to now: to the tail of its partition",
    (_W, _S): "reschedule",
    (_W, _X): "cancel; expiry",
    (_W, _D): "discard",
    (NEW, _G): "enqueue of a batch task's job",
    (NEW, _X): "enqueue: past its expiry as its batch starts",
    (_S, _G): "promote when due; retry, reschedule to now",
    (_G, _G): "reschedule to now: joins its batch again; retry: a batch of it alone",
    (_G, _S): "reschedule",
    (_G, _C): "its batch has completed; complete",
    (_G, _X): "cancel; expiry; its batch is cancelled",
    (_G, _D): "its batch is dead; discard",
    (_D, _G): "retry by an operator",
    (_X, _G): "retry by an operator",
    (_C, _G): "retry by an operator",
    (_G, None): "its batch has ended with nothing to keep; delete, purge",
    (_R, _U): "settle: a flow waits",
    (_U, _A): "promote when due; a signal comes; retry by an operator; cancel, to be undone",
    (
        _U,
        _W,
    ): "promote when due; a signal comes; retry by an operator; cancel, to be undone: its partition has "
    "no room",
    (_U, _X): "cancel",
    (_U, _D): "discard",
    **{(s, _C): "complete" for s in (_S, _A, _T, _P, _W, _U, _D, _X)},
    **{(s, None): "delete, purge" for s in (_S, _A, _T, _P, _W, _U)},
    **{(s, None): "prune, delete, purge" for s in (_D, _X, _C)},
}
