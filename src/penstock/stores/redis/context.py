"""The context of all verbs: key names, the clock, and what this store object has learned.

A verb is a `CallPlan`: a generator that yields calls, is sent their answers, and returns the verb's answer.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from typing import Any, TypeVar

from penstock.core import forks
from penstock.core.clock import Clock
from penstock.core.errors import StoreCorrupt, StoreError, StoreUnavailable
from penstock.core.job import Job
from penstock.stores.contract import SetAside
from penstock.stores.redis.keys import Keys, id_of
from penstock.stores.redis.layout import UNDECODABLE
from penstock.stores.redis.outages import Outages
from penstock.stores.redis.profiles import Profiles, UnknownProfile
from penstock.stores.redis.records import job_of
from penstock.stores.redis.script_loader import SCRIPTS
from penstock.stores.redis.spoiled import Spoiled
from penstock.stores.redis.wire.calls import Call

__all__ = ["CallPlan", "Context", "command", "int_or_zero", "raise_errors"]

R = TypeVar("R")

#: A verb as a generator: it yields calls, is sent their answers, and returns the answer of the verb.
CallPlan = Generator[list[Call], list[Any], R]
#: The queues for which the last tokens of this process were used, by any store object: a repeated token is
#: looked for in all of them.
_used: dict[tuple[bytes, str], tuple[str, ...]] = {}
_used_lock = forks.lock()
_MOST_USED = 1_024


class Context:
    """What one store object knows: names of keys, the clock, profiles, queues that cannot be used."""

    def __init__(self, keys: Keys, clock: Clock | None, *, clustered: bool, replicas: int) -> None:
        self.keys = keys
        self.clustered = clustered
        self.replicas = replicas  # how many of them have to acknowledge an enqueue
        self.profiles = Profiles()
        #: The highest generation seen: what is enqueued after it, anywhere, shall count as later.
        self.floor = 0
        #: Queues whose names are on the list of all queues, as far as this object knows.
        self.listed: set[str] = set()
        self.set_asides = SetAsides()
        #: All queues that this object has had to do with on a Cluster: what is known if the list is away.
        self.met: set[str] = set()
        self.outages = Outages()
        self.spoiled = Spoiled()
        #: Queues whose unreadable settings have been reported.
        self.unread: set[str] = set()
        self._clock = clock
        self._told = b"c" if clustered else b""

    @property
    def apart(self) -> bool:
        """Whether a verb over several queues needs one call per queue."""
        return self.clustered or self.spoiled.apart

    def why(self, queue: str) -> StoreError | None:
        """Why a queue is left out: its part of the Cluster is away, or one of its keys is spoiled."""
        return self.outages.why(queue) or self.spoiled.why(queue)

    @property
    def steered(self) -> bool:
        """Whether a test steers the clock; else the server's clock rules."""
        return self._clock is not None

    def used_before(self, token: str, queues: Sequence[str]) -> Sequence[str]:
        """The other queues for which this token was used before; remembers these queues for it."""
        with _used_lock:
            before = _used.get((self.keys.news, token), ())
            others = [queue for queue in before if queue not in queues]
            while len(_used) >= _MOST_USED:
                _used.pop(next(iter(_used)))
            _used[self.keys.news, token] = (*queues, *others)
        return others

    def unavailable(self, queues: Iterable[str]) -> StoreError:
        """The error that says why none of these queues can be used."""
        for queue in queues:
            if error := self.why(queue):
                return (StoreCorrupt if isinstance(error, StoreCorrupt) else StoreUnavailable)(str(error))
        return StoreUnavailable("the Cluster does not answer")

    def now_told(self) -> bytes:
        """The first argument of every script: a steered clock, or nothing where the server's clock rules."""
        if self._clock is None:
            return self._told
        clock = self._clock
        return self._told + f"{clock.now()} {clock.lease_now()} {clock.boot_id()}".encode()

    def call(
        self,
        name: str,
        queues: Sequence[str],
        args: Iterable[bytes | str | int],
        *,
        repeatable: bool = True,
        replicas: int = 0,
    ) -> Call:
        """A call of a script over these queues."""
        keys = tuple(map(self.keys.queue, queues))
        if self.clustered and keys:
            # A node that is giving a slot away judges by the keys that are named. If none is there it sends
            # us on, and a queue whose other keys are still here would be in two places. If only one of two is
            # there we are to wait (TRYAGAIN), and so at the other end, until the whole slot has moved.
            keys = (*keys, keys[0] + b":meta")
        return Call(SCRIPTS[name], keys, [self.now_told(), *args], repeatable, replicas)

    def shared_call(self, name: str, key: bytes, args: Iterable[bytes | str | int]) -> Call:
        """A call of a script over a key of the whole namespace."""
        return Call(SCRIPTS[name], (key,), [self.now_told(), *args])

    def servers(self, queues: Sequence[str]) -> list[list[str]]:
        """Groups of queues that one script can span: all of them, or on a Cluster each alone."""
        if self.apart:
            return [[queue] for queue in queues]
        return [list(queues)] if queues else []

    def read(self, queue: str, id: bytes, record: bytes) -> Job | None:
        """Read a job from its record; None if its profile is unknown here or the record is damaged."""
        try:
            return job_of(self.profiles, queue, id, record, None)
        except (UnknownProfile, *UNDECODABLE):
            return None

    def note_set_aside(self, facts: Sequence[bytes]) -> None:
        """Note what a script has set aside: 3 entries each, the queue's key, stored id, cause."""
        for key, id, cause in zip(facts[0::3], facts[1::3], facts[2::3], strict=True):
            queue = key.decode().rpartition("/")[2].removesuffix("}")
            self.set_asides.add(SetAside("job", queue, id_of(id), cause.decode(errors="backslashreplace")))


class SetAsides:
    """Jobs that were set aside and are not reported yet; at most the newest 1 000."""

    def __init__(self) -> None:
        self._found: deque[SetAside] = deque(maxlen=1_000)

    def add(self, one: SetAside) -> None:
        self._found.append(one)

    def take(self) -> tuple[SetAside, ...]:
        """Take what is not reported yet; safe from any thread, each is returned once."""
        found = []
        while self._found:
            with contextlib.suppress(IndexError):
                found.append(self._found.popleft())
        return tuple(found)


def command(key: bytes, *words: bytes | str | int) -> Call:
    """A plain Redis command about this key, as a call."""
    return Call(None, (key,), [], True, 0, words)


def int_or_zero(text: bytes | None) -> int:
    """A number as the server keeps it; 0 if it is missing or damaged."""
    try:
        return int(text or 0)
    except ValueError:
        return 0


def raise_errors(answers: list[Any]) -> list[Any]:
    """Raise the first error among the answers, else return them."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers
