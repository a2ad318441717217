"""The verb by which operators change jobs: each act is a value, and one request takes acts of any kind.

`core/changes.py` says what retry, reschedule, discard and complete make of a job in each state. An edit and a
move compare: a job changes only while it is queued and as the caller has seen it. The comparison and the
change are one step, so that of two callers one succeeds, and no attempt starts in between.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any, ClassVar, Concatenate, ParamSpec, Self, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from penstock.core.changes import ChangeKind
from penstock.core.errors import ConfigError
from penstock.core.job import AttemptError, Job, NewJob, Ref, State
from penstock.core.lifecycle import COMPLETED_BY_HAND, DISCARDED
from penstock.core.security import Secret
from penstock.stores.contract.producing import Enqueued
from penstock.stores.contract.request import SyncRequest, as_method

P = ParamSpec("P")


class StateAct(msgspec.Struct, frozen=True):
    """An act that changes the state of a job, as `changes.change_of` says of its kind."""

    verb: ClassVar[ChangeKind]

    ref: Ref

    def due(self, now: int) -> int:
        """When the job is due, if it becomes available or scheduled."""
        return now

    def check(self) -> None:
        """Raise ConfigError for an act that no job allows."""


class JobRetry(StateAct, frozen=True, kw_only=True):
    """Make ended or queued jobs available now, as if they were new.

    - Attempts and losses count from 0 again; the errors stay. With `attempts`, the job has at most this
      many attempts left (1 or more), of its `max_attempts`.
    - The job goes to the tail of its queue and is due now. Its result, reason, `ended_at` and request to
      stop are cleared. An expiry that has passed is cleared, too; `expires_in` replaces the expiry: ms
      from now, or None for none.
    - An ended job takes its unique key again, for the rest of the key's period. If another job holds the
      key, the retried job runs without it.
    - A job with a batch key that is in no finished or running batch becomes a batch of one at once. The
      members of a retried batch are COLLECTING again (docs/concepts/batches.md).
    - Batches that one call starts in several queues have no order among the queues (`search`).
    - A record that cannot be read stays DEAD (docs/concepts/unreadable-records.md).

    Answer: one state per ref, from before the call. RUNNING: the job was not changed. None: the job does
    not exist.
    """

    verb: ClassVar[ChangeKind] = ChangeKind.RETRY

    attempts: int | None = None
    expires_in: int | UnsetType | None = UNSET


class JobReschedule(StateAct, frozen=True, kw_only=True):
    """Give queued jobs a new time: `delay` ms from now, or the instant `run_at`.

    A job with a time in the future becomes SCHEDULED. Any other job becomes AVAILABLE, at the tail of its
    queue, even if it was AVAILABLE before. Parked, running and ended jobs and the members of a batch do
    not change.

    Answer: one state per ref, from before the call; None: the job does not exist.
    """

    verb: ClassVar[ChangeKind] = ChangeKind.RESCHEDULE

    delay: int = 0
    run_at: int | None = None

    def due(self, now: int) -> int:
        return now + self.delay if self.run_at is None else self.run_at


class JobDiscard(StateAct, frozen=True, kw_only=True):
    """Make queued and suspended jobs dead at once.

    - `reason` (default `lifecycle.DISCARDED`) is stored with each job that this call makes dead.
    - No attempt is counted. The attempts and errors of the job stay. Dead jobs are kept for the time that
      `lifecycle.kept` gives.
    - The members of a discarded batch are dead, too. A node of a flow ends as dead.

    Answer: one state per ref, from before the call; None: the job does not exist. A job stays as it was
    if it is RUNNING or has ended, and if it is COLLECTING as the member of a batch.
    """

    verb: ClassVar[ChangeKind] = ChangeKind.DISCARD

    reason: Annotated[str, Secret.REASON] = DISCARDED


class JobCompletion(StateAct, frozen=True, kw_only=True):
    """Complete jobs that are not running, as if their function had returned `result`.

    - `result`: as a settlement has it; None for none. `reason` (default `lifecycle.COMPLETED_BY_HAND`) is
      stored with each job that this call completes.
    - No attempt is counted. The attempts and errors of the job stay. A completed job is kept for its
      retention; without one, the next prune removes it.
    - The unique key of the job changes its phase as at the end of an attempt (docs/concepts/unique-keys.md).
    - The members of a completed batch complete, too, without a result. A node of a flow completes, and its
      successors start, also if the node was dead or cancelled before.
    - A record that cannot be read stays DEAD (docs/concepts/unreadable-records.md).

    Answer: one state per ref, from before the call; None: the job does not exist. A job stays as it was
    if it is RUNNING or COMPLETED, and if it is COLLECTING as the member of a batch.
    """

    verb: ClassVar[ChangeKind] = ChangeKind.COMPLETE

    result: Annotated[bytes | None, Secret.RESULT] = None
    reason: Annotated[str, Secret.REASON] = COMPLETED_BY_HAND


class JobEdit(msgspec.Struct, frozen=True):
    """New arguments for a queued job, which is not a batch.

    - `seen`: the job as `get` has returned it. The job changes only if it is still as it was seen
      (`changes.is_as_seen`).
    - `new`: a call of the same task. Its payload, partition, tenant and batch replace those of the job;
      nothing else of it is used.
    - The job keeps its id, place, due time, attempts, unique key and everything else that is not computed
      from its arguments. If its partition, tenant or batch changes, the job moves as by
      `changes.moves`.

    Errors: ConfigError for a batch, or a job that cannot be read.
    """

    verb: ClassVar[str] = "edit_jobs"

    seen: Job
    new: NewJob

    def check(self) -> None:
        """Raise ConfigError if the job has no arguments of its own."""
        if self.seen.members or self.seen.spec.unreadable:
            raise ConfigError(f"job {self.seen.id!r} has no arguments of its own")


class JobMove(msgspec.Struct, frozen=True):
    """A queued job, which is neither a batch nor a node of a flow, and what it is in its new queue.

    - `seen`: the job as `get` has returned it. The job moves only if it is still as it was seen
      (`changes.is_as_seen`).
    - `new`: the job with the same id in another queue (`changes.moved_spec`).
    - `errors`, `checkpoint`: those of the job.
    - The removal and the enqueue are one step. On a Cluster, the removal and an entry in the same slot are
      one step, and the enqueue follows from the entry, exactly once: by this call, or if its process dies,
      by the next `prune`. Until then the job is in neither queue.
    - The job keeps its attempts, losses, errors and checkpoint, and is due and expires at the same
      instants. The job counts as enqueued now. Its recorded steps and log lines are removed.
    - The job frees its unique key, and takes it in the new queue, unless another job holds it there.
    - A queue that is closed, is full, or has a job with this id, refuses the job. On a Cluster that is
      checked before the removal: a queue that is closed or full since then takes the job, and a job whose
      id is taken since then waits in the entry until the id is free.

    Errors: ConfigError for a batch, a node of a flow, a job that cannot be read, or a move that changes
    the id or not the queue.
    """

    verb: ClassVar[str] = "move_jobs"

    seen: Job
    new: NewJob
    errors: tuple[AttemptError, ...] = ()
    checkpoint: Annotated[bytes | None, Secret.CHECKPOINT] = None

    def check(self) -> None:
        """Raise ConfigError if the job may not have this other queue."""
        old, new = self.seen.spec, self.new
        if old.queue == new.queue or old.id != new.id:
            raise ConfigError(f"job {old.id!r}: a move is to another queue, with the same id")
        if self.seen.members or old.flow is not None or new.flow is not None or old.unreadable:
            raise ConfigError(f"job {old.id!r} is a batch, a node of a flow, or cannot be read")


AnyAct: TypeAlias = JobRetry | JobReschedule | JobDiscard | JobCompletion | JobEdit | JobMove


class Changed(msgspec.Struct, frozen=True):
    """What an act did to its job.

    - `before`: the state of the job before the act; None: the job does not exist. Of an edit or a move,
      None also says that the job was not as it was seen.
    - `changed`: whether the act has changed the job.
    - `moved`: of a move, the answer of the new queue. NEW: the job was moved. EXISTS, CLOSED or FULL: the
      new queue refuses the job, which stays. None: the job was not as it was seen, and stays.
    """

    before: State | None = None
    changed: bool = False
    moved: Enqueued | None = None


class ChangeJobs(SyncRequest[list[Changed]], frozen=True):
    """Change jobs by acts of any kind, in their order; each is one step.

    The methods `retry`, `reschedule`, `discard`, `complete`, `edit_jobs` and `move_jobs` of a store make such
    a request of acts of one kind.

    Answer: one `Changed` per act.
    Errors: ConfigError for an edit or a move that no job allows.
    """

    acts: Sequence[AnyAct]

    @property
    def called(self) -> str:
        names = {act.verb for act in self.acts or ()}
        return str(names.pop()) if len(names) == 1 else self.verb

    def checked(self) -> Self:
        for act in self.acts:
            act.check()
        return self


def act_verb(
    act: Callable[Concatenate[Ref, P], StateAct],
) -> Callable[Concatenate[Any, Sequence[Ref], P], Coroutine[Any, Any, list[State | None]]]:
    """The method of a store that does this act to jobs, with the act's arguments and docstring."""

    async def call(
        self: Any, refs: Sequence[Ref], /, *args: P.args, **options: P.kwargs
    ) -> list[State | None]:
        answers = await self.ask(ChangeJobs([act(ref, *args, **options) for ref in refs]))  # type: ignore[misc]
        return [one.before for one in answers]

    return as_method(call, ChangeJobs, act)


def sync_act_verb(
    act: Callable[Concatenate[Ref, P], StateAct],
) -> Callable[Concatenate[Any, Sequence[Ref], P], list[State | None]]:
    """The same for callers without an event loop."""

    def call(self: Any, refs: Sequence[Ref], /, *args: P.args, **options: P.kwargs) -> list[State | None]:
        answers = self.ask(ChangeJobs([act(ref, *args, **options) for ref in refs]))  # type: ignore[misc]
        return [one.before for one in answers]

    return as_method(call, ChangeJobs, act)
