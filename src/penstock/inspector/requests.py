"""What an operator asks for, and what came of it."""

from __future__ import annotations

import msgspec

from penstock.core.errors import ConfigError, did_you_mean
from penstock.core.ids import check_id, check_queue
from penstock.core.job import Ref, State

__all__ = ["Bulk", "Change", "Filter", "parse_address", "parse_state"]


class Filter(msgspec.Struct, frozen=True):
    """Which jobs; what is None does not matter."""

    queue: str | None = None
    state: State | None = None
    task: str | None = None
    worker: str | None = None


class Change(msgspec.Struct, frozen=True):
    """What became of one job that was to be changed. `outcome`: done, asked (a running job that shall
    stop), refused, or missing; `says` is that in words."""

    queue: str
    id: str
    outcome: str
    says: str


class Bulk(msgspec.Struct, frozen=True):
    """What became of all jobs that a filter found. `limited`: there may be more, the limit was reached."""

    done: int
    asked: int
    refused: int
    limited: bool


def parse_state(text: str) -> State:
    """A state by its name."""
    try:
        return State(text.lower())
    except ValueError:
        known = [s.value for s in State]
        near = did_you_mean(text.lower(), known)
        raise ConfigError(f"{text!r} is not a state{near}: one of {', '.join(known)}") from None


def parse_address(text: str) -> Ref | str:
    """`"queue/id"` is a Ref; a bare id, which has to be searched, stays one."""
    queue, slash, id = text.rpartition("/")
    return Ref(check_queue(queue), check_id(id)) if slash else check_id(text)
