"""The outcomes of an attempt; `lifecycle.decide` defines what follows from each."""

from __future__ import annotations

import enum

import msgspec

from penstock.core.job import AttemptError


class QueuePosition(enum.StrEnum):
    """The position of a job that becomes available, among the jobs of its priority in its queue."""

    HEAD = "head"
    TAIL = "tail"
    OWN = "own"  # its previous position

    __hash__ = str.__hash__


class Returned(msgspec.Struct, frozen=True):
    """The function returned."""


class Raised(msgspec.Struct, frozen=True):
    """The function raised.

    `delay` (ms) overrides the retry policy. `final`: no further attempt, by the rule that `why` names.
    `failure=False`: the task does not count this error as a failure, so it costs no attempt.
    """

    error: AttemptError
    delay: int | None = None
    final: bool = False
    why: str | None = None
    failure: bool = True


class Snoozed(msgspec.Struct, frozen=True):
    """The task asked to run later; the attempt does not count."""

    delay: int


class Suspended(msgspec.Struct, frozen=True):
    """The flow waits for a signal or a timer, at most `delay` ms, and until its deadline at most.

    The attempt does not count.
    """

    delay: int


class Throttled(msgspec.Struct, frozen=True):
    """The task hit a rate limit: all jobs of its partition, including this one, wait for `delay` ms.

    Without a partition, or with `partition=False`, the whole queue waits. The attempt does not count.
    """

    error: AttemptError
    delay: int
    partition: bool = True


class Cancelled(msgspec.Struct, frozen=True):
    """The job was cancelled, by its task or from outside."""

    reason: str = "cancelled"


class TimedOut(msgspec.Struct, frozen=True):
    """The attempt's timeout or deadline passed. `final`, `why` and `failure` as for Raised."""

    error: AttemptError
    final: bool = False
    why: str | None = None
    failure: bool = True


class LeaseLost(msgspec.Struct, frozen=True):
    """The lease was lost. `started=False` only if the function is known not to have started."""

    error: AttemptError
    started: bool = True


class DecodingFailed(msgspec.Struct, frozen=True):
    """The payload cannot be decoded, or does not fit the task: no attempt could succeed."""

    error: AttemptError


class Released(msgspec.Struct, frozen=True):
    """The job was released: by a worker that stops (to the head), or had no slot (to its own position)."""

    place: QueuePosition = QueuePosition.HEAD


class Unknown(msgspec.Struct, frozen=True):
    """The worker does not know the task or its arguments, or cannot run the job for the reason `why`."""

    why: str | None = None


class Expired(msgspec.Struct, frozen=True):
    """The job was not started before its expiry."""


class DeadlinePassed(msgspec.Struct, frozen=True):
    """The job's deadline passed before this attempt could start."""


Outcome = (
    Returned
    | Raised
    | Snoozed
    | Suspended
    | Throttled
    | Cancelled
    | TimedOut
    | LeaseLost
    | DecodingFailed
    | Released
    | Unknown
    | Expired
    | DeadlinePassed
)
