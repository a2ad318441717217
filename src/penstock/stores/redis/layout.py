"""The layout in Redis: names of keys, stored ids, generations, and the numbers that records and scripts have.

Everything of one queue begins with `PREFIX:4:{NAMESPACE/QUEUE}`; the braces make it one slot of a Cluster.
The keys of the whole namespace begin with `PREFIX:4:{NAMESPACE/}`. Neither name can contain a brace or a
slash. The 4 is the version of the layout: versions of Penstock with different layouts never use the same
keys.

A *generation* counts 4096 per millisecond since 2020. So it orders jobs over queues, servers and a `drop`,
fits a double until 2089, and contains the time of the enqueue.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from penstock.core.job import State
from penstock.core.outcomes import QueuePosition

#: The version of the layout of keys and records; a change that other versions would misread increments it.
LAYOUT = 4

EPOCH = 1_577_836_800_000  # 2020-01-01, ms
PER_MS = 4_096

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").fullmatch
#: The ids that Penstock makes until 2039, without the digits that are the same in all of them: 28 digits.
_OWN = re.compile(r"01([0-9a-f]{6})-([0-9a-f]{4})-7([0-9a-f]{3})-8([0-9a-f]{3})-([0-9a-f]{12})").fullmatch


class RedisKeys:
    """The names of one namespace."""

    def __init__(self, prefix: str, namespace: str) -> None:
        self._head = f"{prefix}:{LAYOUT}:{{{namespace}/"
        shared = f"{self._head}}}"
        #: The lists of queues of earlier layouts, by their version; the keys of layout 1 named none.
        self.queues_of_earlier = {
            1: f"{prefix}:{{{namespace}/}}:queues".encode(),
            **{n: f"{prefix}:{n}:{{{namespace}/}}:queues".encode() for n in range(2, LAYOUT)},
        }
        self.queues = f"{shared}:queues".encode()  # set: the names of all queues
        #: Set: the queues that have flows, or jobs of flows.
        self.flow_queues = f"{shared}:flows".encode()
        #: How messages name the namespace.
        self.name_of_namespace = (
            f"the namespace {namespace!r}" if namespace else "the namespace without a name"
        )
        self.workers = f"{shared}:workers".encode()  # hash: id → announcement
        self.wake_counts = f"{shared}:news".encode()  # hash: counts of cancel requests and settings changes
        self.notice_channel = f"{shared}:news"  # messages that these counts have grown
        self._documents = f"{shared}:documents/"
        self._logs = f"{shared}:log/"
        self._quotas = f"{shared}:quota/"
        self.signals = (
            f"{shared}:signals".encode()
        )  # and keys that begin with it: see scripts/lib/signals.lua
        self._wake = f"{shared}:wake:"
        self._queues: dict[str, bytes] = {}

    def queue(self, name: str) -> bytes:
        """Return the prefix of the keys of this queue."""
        key = self._queues.get(name)
        if key is None:
            key = f"{self._head}{name}}}".encode()
            if len(self._queues) < 10_000:
                self._queues[name] = key
        return key

    def documents(self, kind: str) -> bytes:
        """Return the key of the documents of a kind: a hash, with the version of the kind in VERSION."""
        return f"{self._documents}{kind}".encode()

    def log(self, name: str) -> bytes:
        """Return the key of a log: a list, newest entry first."""
        return f"{self._logs}{name}".encode()

    def quota(self, name: str) -> bytes:
        """Return the key of a quota, which expires with its window."""
        return f"{self._quotas}{name}".encode("utf-8", "surrogatepass")

    def channel(self, listener: str) -> str:
        """Return the channel for messages to one listener."""
        return self._wake + listener


def encoded(text: str) -> bytes:
    """Return the stored form of a name or key: UTF-8, also for a text that is no valid Unicode."""
    return text.encode("utf-8", "surrogatepass")


def decoded(stored: bytes) -> str:
    """Return the text with this stored form."""
    return stored.decode("utf-8", "surrogatepass")


def packed(id: str) -> bytes:
    """Return the stored form of an id: 14 bytes for an id of Penstock's, 16 for another UUID.

    With 14 bytes, the field of a hash takes 16 bytes of Redis' memory; with 16 bytes it takes 32. Any
    other id is stored after one or two zero bytes, so that its form is never 14 or 16 bytes long.
    """
    own = _OWN(id)
    if own:
        return bytes.fromhex("".join(own.groups()))
    if len(id) == 36 and _UUID(id):
        return bytes.fromhex(id.replace("-", ""))
    raw = id.encode()
    return b"\0\0" + raw if len(raw) in {13, 15} else b"\0" + raw


class StoredIds:
    """The stored forms of the ids of fetched jobs: to make one again when its job is settled costs 0.6 µs."""

    _MOST = 10_000  # a full cache is cleared

    def __init__(self) -> None:
        self._forms: dict[str, bytes] = {}

    def add(self, ids: Iterable[tuple[str, bytes]]) -> None:
        """Add ids with their stored forms."""
        if len(self._forms) > self._MOST:
            self._forms.clear()
        self._forms.update(ids)

    def take(self, id: str) -> bytes:
        """Return the stored form of an id, and forget it."""
        return self._forms.pop(id, None) or packed(id)


def id_of(stored: bytes) -> str:
    """Return the id of a stored form: the inverse of `packed`."""
    h = stored.hex()
    if len(stored) == 14:
        return f"01{h[:6]}-{h[6:10]}-7{h[10:13]}-8{h[13:16]}-{h[16:]}"
    if len(stored) != 16:
        return stored.lstrip(b"\0").decode(errors="backslashreplace")
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def ms_of(generation: int) -> int:
    """Return the instant (ms since the epoch) of a generation."""
    return (generation >> 12) + EPOCH


# ── numbers, as in `scripts/lib/states.lua` ──


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
