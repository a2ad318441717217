"""The verbs by which operators change queued jobs: discard them, edit their arguments, or move them.

`edit_jobs` and `move_jobs` compare: a job changes only while it is queued and as the caller has seen it. The
comparison and the change are one step, so that of two callers one succeeds, and no attempt starts in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from penstock.core.errors import ConfigError
from penstock.core.job import AttemptError, Job, NewJob, Ref, State
from penstock.stores.contract.producing import Enqueued

__all__ = ["Changing", "JobEdit", "JobMove", "check_edits", "check_moves"]


class JobEdit(msgspec.Struct, frozen=True):
    """New arguments for a queued job, which is not a batch.

    - `seen`: the job as `get` has returned it.
    - `new`: a call of the same task. Its payload, partition, tenant and batch replace those of the job;
      nothing else of it is used.
    """

    seen: Job
    new: NewJob


class JobMove(msgspec.Struct, frozen=True):
    """A queued job, which is neither a batch nor a node of a flow, and what it is in its new queue.

    - `seen`: the job as `get` has returned it.
    - `new`: the job with the same id in another queue (`job_changes.moved_spec`).
    - `errors`, `checkpoint`: those of the job.
    """

    seen: Job
    new: NewJob
    errors: tuple[AttemptError, ...] = ()
    checkpoint: bytes | None = None


def check_edits(edits: Sequence[JobEdit]) -> Sequence[JobEdit]:
    """Return the edits if each is of a job with arguments of its own. Raises ConfigError."""
    for one in edits:
        if one.seen.members or one.seen.spec.unreadable:
            raise ConfigError(f"job {one.seen.id!r} has no arguments of its own")
    return edits


def check_moves(moves: Sequence[JobMove]) -> Sequence[JobMove]:
    """Return the moves if each is of a job that may have another queue. Raises ConfigError."""
    for one in moves:
        old, new = one.seen.spec, one.new
        if old.queue == new.queue or old.id != new.id:
            raise ConfigError(f"job {old.id!r}: a move is to another queue, with the same id")
        if one.seen.members or old.flow is not None or new.flow is not None or old.unreadable:
            raise ConfigError(f"job {old.id!r} is a batch, a node of a flow, or cannot be read")
    return moves


class Changing(Protocol):
    """The verbs by which operators change queued jobs."""

    async def discard(self, refs: Sequence[Ref], *, reason: str = ...) -> list[State | None]:
        """Make queued and suspended jobs dead at once.

        - `reason` (default `lifecycle.DISCARDED`) is stored with each job that this call makes dead.
        - No attempt is counted. The attempts and errors of the job stay. Dead jobs are kept for the time that
          `lifecycle.kept` gives.
        - The members of a discarded batch are dead, too. A node of a flow ends as dead.

        Answer: one state per ref, from before the call; None: the job does not exist. A job stays as it was
        if it is RUNNING or has ended, and if it is COLLECTING as the member of a batch.
        """
        ...

    async def edit_jobs(self, edits: Sequence[JobEdit]) -> list[bool]:
        """Give queued jobs new arguments, if they are still as they were seen (`job_changes.is_as_seen`).

        - The job keeps its id, place, due time, attempts, unique key and everything else that is not computed
          from its arguments. If its partition, tenant or batch changes, the job moves as by
          `unique_rules.moves`.

        Answer: True for each job that was changed. False: the job was not as it was seen, and stays.
        Errors: ConfigError for a batch, or a job that cannot be read.
        """
        ...

    async def move_jobs(self, moves: Sequence[JobMove]) -> list[Enqueued | None]:
        """Move queued jobs to another queue, if they are still as they were seen (`job_changes.is_as_seen`).

        - The removal and the enqueue are one step. On a Cluster, the removal and a note in the same slot are
          one step, and the enqueue follows from the note, exactly once: by this call, or if its process dies,
          by the next `prune`. Until then the job is in neither queue.
        - The job keeps its attempts, losses, errors and checkpoint, and is due and expires at the same
          instants. The job counts as enqueued now. Its recorded steps and log lines are removed.
        - The job frees its unique key, and takes it in the new queue, unless another job holds it there.
        - A queue that is closed, is full, or has a job with this id, refuses the job. On a Cluster that is
          checked before the removal: a queue that is closed or full since then takes the job, and a job whose
          id is taken since then waits in the note until the id is free.

        Answer: one per move. NEW: the job was moved. EXISTS, CLOSED or FULL: the new queue refuses the job,
        which stays. None: the job was not as it was seen, and stays.
        Errors: ConfigError for a batch, a node of a flow, a job that cannot be read, or a move that changes
        the id or not the queue.
        """
        ...
