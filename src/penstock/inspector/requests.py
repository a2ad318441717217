"""Requests of an operator, and their outcomes."""

from __future__ import annotations

import msgspec

from penstock.core.errors import ConfigError, did_you_mean
from penstock.core.ids import check_id, check_queue
from penstock.core.job import Ref, State
from penstock.stores.contract import EnqueueStatus

__all__ = ["Change", "parse_address", "parse_state", "why_not_taken"]

_NOT_TAKEN = {
    EnqueueStatus.EXISTS: "the queue {} has a job with this id",
    EnqueueStatus.CLOSED: "the queue {} is closed",
    EnqueueStatus.FULL: "the queue {} is full",
    EnqueueStatus.UNREPLICATED: "too few replicas of the queue {} have confirmed it",
    EnqueueStatus.UNKNOWN: "the answer was lost, and the queue {} may have it or not",
}


class Change(msgspec.Struct, frozen=True):
    """The outcome of a change to one job. `outcome`: done, asked (a running job was asked to stop), refused,
    or missing; `says` explains it."""

    queue: str
    id: str
    outcome: str
    says: str


def why_not_taken(status: EnqueueStatus, queue: str) -> str:
    """Why the queue has not taken a job, or not safely, in words."""
    return _NOT_TAKEN.get(status, "the queue {} cannot store it").format(queue)


def parse_state(text: str) -> State:
    """Read a state's name. Raises ConfigError."""
    try:
        return State(text.lower())
    except ValueError:
        known = [s.value for s in State]
        near = did_you_mean(text.lower(), known)
        raise ConfigError(f"{text!r} is not a state{near}: one of {', '.join(known)}") from None


def parse_address(text: str) -> Ref | str:
    """Read an address: `"queue/id"` becomes a Ref; a bare id, to be looked up in all queues, stays text."""
    queue, slash, id = text.rpartition("/")
    return Ref(check_queue(queue), check_id(id)) if slash else check_id(text)
