"""The context of all verbs: key names, the clock, and the cached state of a store object.

A verb is a `CallPlan`: a generator that yields calls, is sent their answers, and returns the verb's answer.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from typing import Any, TypeVar

from penstock.core import forks
from penstock.core.clock import Clock
from penstock.core.errors import StoreCorrupt, StoreError, StoreUnavailable
from penstock.core.job import Job
from penstock.stores.contract import SetAside
from penstock.stores.redis.layout import UNDECODABLE, RedisKeys, StoredIds, id_of
from penstock.stores.redis.profiles import Profiles, UnknownProfile
from penstock.stores.redis.records import job_of
from penstock.stores.redis.script_loader import SCRIPTS
from penstock.stores.redis.unusable_queues import CorruptQueues, Outages
from penstock.stores.redis.wire.calls import Acked, Call

R = TypeVar("R")

#: A verb as a generator: it yields calls, is sent their answers, and returns the answer of the verb.
CallPlan = Generator[list[Call], list[Any], R]
#: The queues of the most recent tokens of this process, of all store objects: the leases of a repeated token
#: are searched in all of them.
_used: dict[tuple[bytes, str], tuple[str, ...]] = {}
_used_lock = forks.lock()
_MOST_USED = 1_024
#: For this long (s) a queue of a Cluster counts as listed after it was put on the list of all queues.
_LISTED = 60.0


class Context:
    """The state of one store object: names of keys, the clock, profiles, queues that cannot be used."""

    def __init__(self, redis_keys: RedisKeys, clock: Clock | None, *, clustered: bool, replicas: int) -> None:
        self.redis_keys = redis_keys
        self.clustered = clustered
        self.replicas = replicas  # number of replicas that must acknowledge an enqueue
        #: Number of replicas that must acknowledge a write in one slot before its note in another is removed:
        #: a failover between the two must not lose it.
        self.replicas_of_noted = replicas if clustered else 0
        self.profiles = Profiles()
        self.stored_ids = StoredIds()
        #: The highest generation seen: later enqueues, to any queue, get higher ones.
        self.floor = 0
        #: Queues that this object has seen on, or put on, the list of all queues.
        self.listed: set[str] = set()
        self._listed_until, self._relisted_until = 0.0, 0.0
        self.set_asides = SetAsides()
        #: All queues that this object has used on a Cluster: a substitute while the list of queues is
        #: unavailable.
        self.used: set[str] = set()
        self.outages = Outages()
        self.corrupt = CorruptQueues()
        #: Queues whose unreadable settings have been reported.
        self.unread: set[str] = set()
        self._clock = clock
        self._clock_prefix = b"c" if clustered else b""

    @property
    def queue_by_queue(self) -> bool:
        """True if a verb over several queues needs one call per queue."""
        return self.clustered or self.corrupt.isolating

    def why_unusable(self, queue: str) -> StoreError | None:
        """Return why a queue is left out: its part of the Cluster is away, or a key has a wrong type."""
        return self.outages.why(queue) or self.corrupt.why(queue)

    @property
    def steered(self) -> bool:
        """True if a test controls the clock; else the server's clock is used."""
        return self._clock is not None

    def unlisted(self, queues: set[str]) -> set[str]:
        """Return the queues that this object has to put on the list of all queues before it uses them.

        On a single server these are new ones. On a Cluster, which may lose the list and keep the queues, they
        are put on it again after a minute.
        """
        if self.clustered and time.monotonic() >= self._listed_until:
            self._listed_until = time.monotonic() + _LISTED
            self.used |= self.listed
            self.listed.clear()
        return queues - self.listed

    def relists(self) -> bool:
        """True once a minute on a Cluster: a worker puts its queues on the lists again."""
        if not self.clustered or time.monotonic() < self._relisted_until:
            return False
        self._relisted_until = time.monotonic() + _LISTED
        return True

    def was_used(self, token: str) -> bool:
        """Whether this token was used in a fetch before."""
        return (self.redis_keys.wake_counts, token) in _used

    def used_before(self, token: str, queues: Sequence[str]) -> Sequence[str]:
        """Return the other queues for which this token was used before; store these queues for the token."""
        with _used_lock:
            before = _used.get((self.redis_keys.wake_counts, token), ())
            now = set(queues) if before else ()
            others = [queue for queue in before if queue not in now]
            while len(_used) >= _MOST_USED:
                _used.pop(next(iter(_used)))
            _used[self.redis_keys.wake_counts, token] = (*queues, *others)
        return others

    def unavailable(self, queues: Iterable[str]) -> StoreError:
        """Return the error that explains why none of these queues can be used."""
        for queue in queues:
            if error := self.why_unusable(queue):
                return (StoreCorrupt if isinstance(error, StoreCorrupt) else StoreUnavailable)(str(error))
        return StoreUnavailable("the Cluster does not answer")

    def clock_argument(self) -> bytes:
        """The first argument of every script: a test's clock, or b"" for the server's clock."""
        if self._clock is None:
            return self._clock_prefix
        clock = self._clock
        return self._clock_prefix + f"{clock.now()} {clock.lease_now()} {clock.boot_id()}".encode()

    def call(
        self,
        name: str,
        queues: Sequence[str],
        args: Iterable[bytes | str | int],
        *,
        repeatable: bool = True,
        replicas: int = 0,
    ) -> Call:
        """Return a call of a script over these queues."""
        keys = tuple(map(self.redis_keys.queue, queues))
        if self.clustered and keys:
            # A node that migrates a slot decides by the named keys. If none of them exists there it redirects
            # the call, and a queue whose other keys have not moved yet would exist twice. If one of two
            # exists it answers TRYAGAIN, as does the target node, until the whole slot has moved.
            keys = (*keys, keys[0] + b":meta")
        return Call(SCRIPTS[name], keys, [self.clock_argument(), *args], repeatable, replicas)

    def confirmed(self, answer: Any) -> tuple[Any, str]:
        """The reply in an answer, and if too few replicas have acknowledged it, how many of them."""
        if not isinstance(answer, Acked):
            return answer, ""
        few = answer.replicas < self.replicas
        return (
            answer.reply,
            f"{answer.replicas} of {self.replicas} replicas have confirmed it in time" if few else "",
        )

    def on_key(self, queue: str, part: bytes, verb: str, *words: bytes | str | int) -> tuple[str, Call]:
        """A plain command on a key of a queue, and the queue: as `call_each` and `call_any` take it."""
        key = self.redis_keys.queue(queue) + part
        return queue, command(key, verb, key, *words)

    def shared_call(self, name: str, redis_key: bytes, args: Iterable[bytes | str | int]) -> Call:
        """Return a call of a script over a key of the whole namespace."""
        return Call(SCRIPTS[name], (redis_key,), [self.clock_argument(), *args])

    def servers(self, queues: Sequence[str]) -> list[list[str]]:
        """Split queues into lists that one script can span: all together, or on a Cluster each alone."""
        if self.queue_by_queue:
            return [[queue] for queue in queues]
        return [list(queues)] if queues else []

    def read(self, queue: str, id: bytes, record: bytes) -> Job | None:
        """Read a job from its record; None if its profile is not cached or the record is damaged."""
        try:
            return job_of(self.profiles, queue, id, record, None)
        except (UnknownProfile, *UNDECODABLE):
            return None

    def note_set_aside(self, facts: Sequence[bytes]) -> None:
        """Note records that a script has set aside: 3 entries each, the queue's key, stored id, cause."""
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
        """Take the unreported records. Thread-safe: each record is returned once."""
        found = []
        while self._found:
            with contextlib.suppress(IndexError):
                found.append(self._found.popleft())
        return tuple(found)


def command(redis_key: bytes, *words: bytes | str | int) -> Call:
    """Return a call of a plain Redis command on this key."""
    return Call(None, (redis_key,), [], True, 0, words)


def int_or_zero(text: bytes | None) -> int:
    """Parse a stored number; 0 if it is missing or damaged."""
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
