"""Numbers and layouts that records, leases and scripts share (see `scripts/lib/states.lua`)."""

from __future__ import annotations

import struct

import msgspec

from penstock.core.job import State
from penstock.core.lifecycle import Place

__all__ = [
    "ASKED",
    "ASKED_TO_STOP",
    "CHARGED",
    "EXTRA",
    "GROUP",
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
]

NONE = float(-(2**53))
LONG, EXTRA, INLINE, HIGH = 8, 16, 32, 192
ASKED_TO_STOP = 32_768
PARTS = 9
#: States by their number in a record; a running one is known by its lease.
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
    State.GROUPED,
)
NUMBER = {state: number for number, state in enumerate(STATES)}
POSITIONS = {Place.HEAD: 0, Place.TAIL: 1, Place.OWN: 2}
CHARGED, STARTED, ASKED = 1, 2, 4
HISTORY = struct.Struct("<IddddddIIH")
LEASE = struct.Struct("<dBH")
GROUP = struct.Struct("<HddH")
#: What reading bytes that are no record raises.
UNDECODABLE = (struct.error, IndexError, TypeError, ValueError, OverflowError, msgspec.DecodeError)
#: What writing values that are none of their types raises.
UNWRITABLE = (*UNDECODABLE, AttributeError)
