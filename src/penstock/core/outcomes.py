"""The ways in which an attempt can end; `lifecycle.decide` says what follows from each."""

from __future__ import annotations

import enum

import msgspec

from penstock.core.job import AttemptError

__all__ = [
    "Cancelled",
    "DeadlinePassed",
    "DecodingFailed",
    "Expired",
    "LeaseLost",
    "Outcome",
    "QueuePosition",
    "Raised",
    "Released",
    "Returned",
    "Snoozed",
    "Throttled",
    "TimedOut",
    "Unknown",
]


class QueuePosition(enum.StrEnum):
    """Where in its queue's order, among jobs of its priority, a job that becomes available stands."""

    HEAD = "head"
    TAIL = "tail"
    OWN = "own"  # where it stood before

    __hash__ = str.__hash__


class Returned(msgspec.Struct, frozen=True):
    """The function came back."""


class Raised(msgspec.Struct, frozen=True):
    """It raised. `delay` (ms) overrules the policy; `final` rules out another attempt, and `why` says by
    what rule. `failure=False`: its task calls this error no failure, so it costs no attempt."""

    error: AttemptError
    delay: int | None = None
    final: bool = False
    why: str | None = None
    failure: bool = True


class Snoozed(msgspec.Struct, frozen=True):
    """It asked to run later; the attempt does not count."""

    delay: int


class Throttled(msgspec.Struct, frozen=True):
    """What it needs is used too fast: it, and all of its lane, shall wait for `delay` ms; without a lane, or
    with `lane=False`, all of its queue. The attempt does not count."""

    error: AttemptError
    delay: int
    lane: bool = True


class Cancelled(msgspec.Struct, frozen=True):
    """It was cancelled, by itself or from outside."""

    reason: str = "cancelled"


class TimedOut(msgspec.Struct, frozen=True):
    """Its timeout or deadline passed. `final`, `why` and `failure` as for Raised."""

    error: AttemptError
    final: bool = False
    why: str | None = None
    failure: bool = True


class LeaseLost(msgspec.Struct, frozen=True):
    """Its holder is gone. `started=False` only where it is known that the function had not begun."""

    error: AttemptError
    started: bool = True


class DecodingFailed(msgspec.Struct, frozen=True):
    """Its payload is none, or holds values that do not fit the task: no attempt could ever succeed."""

    error: AttemptError


class Released(msgspec.Struct, frozen=True):
    """Given back: by a worker that stops (to the head), or by one that had no slot (to its own place)."""

    place: QueuePosition = QueuePosition.HEAD


class Unknown(msgspec.Struct, frozen=True):
    """This worker does not know the task, or not these arguments of it; or it cannot run the job for another
    reason, which is none of the job's: `why`."""

    why: str | None = None


class Expired(msgspec.Struct, frozen=True):
    """It was not started in time."""


class DeadlinePassed(msgspec.Struct, frozen=True):
    """The deadline of all its attempts passed before this one could start."""


Outcome = (
    Returned
    | Raised
    | Snoozed
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
