"""Numbers shared by records, leases and scripts (see `scripts/lib/states.lua`)."""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec

from penstock.core.job import State
from penstock.core.lifecycle import QueuePosition

__all__ = [
    "ASKED",
    "ASKED_TO_STOP",
    "BATCH_TERMS",
    "CHARGED",
    "EXTRA",
    "HIGH",
    "HISTORY",
    "INLINE",
    "LEASE",
    "LONG",
    "NONE",
    "NUMBER",
    "PARTS",
    "POSITIONS",
    "STARTED",
    "STATES",
    "UNDECODABLE",
    "UNWRITABLE",
    "Counters",
    "counters_of",
]

#: The stored value of a missing number.
NONE = float(-(2**53))
#: Flags of a record.
LONG, EXTRA, INLINE, HIGH = 8, 16, 32, 192
#: Number of optional parts of a long record; the other bits of `has` are flags, e.g. a request to stop.
PARTS = 10
ASKED_TO_STOP = 32_768
#: States by their number in a record. A running job is recognised by its lease; its number is only in
#: answers.
STATES = (
    State.SCHEDULED,
    State.AVAILABLE,
    State.RETRYABLE,
    State.COMPLETED,
    State.CANCELLED,
    State.DEAD,
    State.PARKED,
    State.RUNNING,
    State.WAITING,
    State.COLLECTING,
    State.SUSPENDED,
)
NUMBER = {state: number for number, state in enumerate(STATES)}
#: Queue positions by their number in a transition (see settle.lua).
POSITIONS = {QueuePosition.HEAD: 0, QueuePosition.TAIL: 1, QueuePosition.OWN: 2}
#: Flags of a lease.
CHARGED, STARTED, ASKED = 1, 2, 4
HISTORY = struct.Struct("<IddddddIIH")
LEASE = struct.Struct("<dBH")
BATCH_TERMS = struct.Struct("<HddH")
#: Exceptions of reading damaged bytes.
UNDECODABLE = (struct.error, IndexError, TypeError, ValueError, OverflowError, msgspec.DecodeError)
#: Exceptions of writing values of wrong types.
UNWRITABLE = (*UNDECODABLE, AttributeError)

_COUNTERS = struct.Struct("<dddddB")


class Counters(NamedTuple):
    """The counters of a queue that scripts read and write together."""

    generation: int = 0
    fresh: int = 0
    enqueued: int = 0
    head: int = 0
    segments: int = 0
    special: int = 0


def counters_of(text: bytes | None) -> Counters:
    """Parse stored counters; all are 0 if they are missing or damaged."""
    if text is None or len(text) != _COUNTERS.size:
        return Counters()
    try:
        return Counters(*map(int, _COUNTERS.unpack(text)))
    except (ValueError, OverflowError):  # not a number, or infinite
        return Counters()
