"""Jobs that came leased with the wake-up call: kept until the fetch that they were leased for asks for them.

A wait with an offer may be told of a job that is its own already (`scripts/enqueue.lua`). Who made the offer
fetches next; what nobody comes for goes back to the head of its queue.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.job import Lease
from penstock.stores.redis.keys import id_of

__all__ = ["Handover", "Handovers", "read_handover"]

_SIZES = struct.Struct(">BBBd")
#: How long a job waits for its fetch (s); it follows the wake-up at once, unless its worker is stopping.
_PATIENCE = 0.25


class Handover(NamedTuple):
    """A job as it came."""

    queue: str
    stored: bytes  # its id
    token: str
    now: int  # the server's clock when it was leased
    record: bytes

    @property
    def lease(self) -> Lease:
        return Lease(self.queue, id_of(self.stored), self.token, int.from_bytes(self.record[1:8], "big"))


def read_handover(message: bytes) -> Handover:
    """What `handed_over` in `enqueue.lua` has published."""
    name, id, token, now = _SIZES.unpack_from(message, 1)
    at = 1 + _SIZES.size
    queue = message[at : at + name].decode()
    at += name
    stored = message[at : at + id]
    at += id
    return Handover(queue, stored, message[at : at + token].decode(), int(now), message[at + token :])


class Handovers:
    """Those of one event loop, by token."""

    def __init__(self, give_back: Callable[[Sequence[Handover]], None]) -> None:
        self._give_back = give_back
        self._kept: dict[str, list[Handover]] = {}

    def keep(self, one: Handover) -> None:
        kept = self._kept.get(one.token)
        if kept is None:
            kept = self._kept[one.token] = []
            asyncio.get_running_loop().call_later(_PATIENCE, self._nobody_came, one.token)
        kept.append(one)

    def refuse(self, one: Handover) -> None:
        """Nobody here has offered this, or no longer."""
        self._give_back([one])

    def take(self, token: str) -> list[Handover]:
        """What was leased under this token."""
        return self._kept.pop(token, [])

    def _nobody_came(self, token: str) -> None:
        if left := self._kept.pop(token, None):
            self._give_back(left)
