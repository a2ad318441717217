"""What all verbs stand on: the names of keys, the scripts, the clock, what this store object has learned."""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from penstock.core import forks
from penstock.core.clock import Clock
from penstock.core.errors import StoreCorrupt, StoreError, StoreUnavailable
from penstock.core.job import Job, Ref
from penstock.stores.contract import SetAside
from penstock.stores.redis.keys import Keys, id_of, packed
from penstock.stores.redis.outages import SHARED, Outages
from penstock.stores.redis.records import UNDECODABLE, Profiles, UnknownProfile, job_of
from penstock.stores.redis.spoiled import Spoiled
from penstock.stores.redis.wire.calls import Call, Script
from penstock.stores.redis.wire.faults import ReplyLost
from penstock.stores.statements import Statements

__all__ = [
    "AWAY",
    "BATCH",
    "SHARED",
    "Ground",
    "Talk",
    "alone",
    "any_of",
    "by_queue",
    "chunks",
    "each",
    "in_bytes",
    "isolated",
    "jobs_from",
    "parts_of",
    "sure",
]

R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")

#: A verb on its way: it yields calls, gets their answers, and returns its own.
Talk = Generator[list[Call], list[Any], R]

#: A script works on so many jobs at most, so that it does not hold the server for more than 5 ms ...
BATCH = 2_000
#: ... and on so many where each costs more.
HEAVY = 250
#: The payloads, results … of one script are so many bytes at most; what is larger goes alone.
MOST_BYTES = 1 << 20

#: In place of an answer: the part of the Cluster that would give it is away, or its queue is spoiled, and
#: others may be there.
AWAY: Any = object()

#: What stands where this stands. Inside of a function: what is seldom needed, and costs nothing until then.
_INCLUDE = re.compile(r"^ *-- include: (.+)$", re.MULTILINE)
_COMMENTS = re.compile(r"^\s*--.*\n", re.MULTILINE)


def _scripts() -> dict[str, Script]:
    files = Statements("penstock.stores.redis", "scripts", ".lua")
    shared = Statements("penstock.stores.redis.scripts", "lib", ".lua")
    found = {}
    for key in files:
        name = key.partition(".")[0]
        whole = files[key]
        while _INCLUDE.search(whole):  # what is included may include in its turn
            whole = _INCLUDE.sub(lambda line: "\n".join(shared[part] for part in line[1].split()), whole)
        found[name] = Script(name, _COMMENTS.sub("", whole))
    return found


SCRIPTS = _scripts()


#: The queues that the last tokens of this process were used for, whatever store object used them: one that
#: comes again is looked for in all of them.
_used: dict[tuple[bytes, str], tuple[str, ...]] = {}
_used_lock = forks.lock()
_MOST_USED = 1_024


class Ground:
    """Of one store object."""

    def __init__(self, keys: Keys, clock: Clock | None, *, clustered: bool, replicas: int) -> None:
        self.keys = keys
        self.clustered = clustered
        self.replicas = replicas  # an enqueue is acknowledged by so many of them
        self.profiles = Profiles()
        #: The highest generation seen: what is enqueued after it, anywhere, shall count as later.
        self.floor = 0
        #: Queues whose names are on the list of all queues, as far as this object knows.
        self.listed: set[str] = set()
        self.asides = Asides()
        #: All queues that this object has had to do with on a Cluster: what is known if the list is away.
        self.met: set[str] = set()
        self.outages = Outages()
        self.spoiled = Spoiled()
        #: Queues of which we have said that their settings cannot be read.
        self.unread: set[str] = set()
        self._clock = clock
        self._told = b"c" if clustered else b""

    @property
    def apart(self) -> bool:
        """Whether verbs over several queues have to go queue by queue."""
        return self.clustered or self.spoiled.apart

    def why(self, queue: str) -> StoreError | None:
        """Why a queue is left out: its part of the Cluster is away, or one of its keys is spoiled."""
        return self.outages.why(queue) or self.spoiled.why(queue)

    @property
    def steered(self) -> bool:
        """Whether somebody else than the server says what time it is."""
        return self._clock is not None

    def used_before(self, token: str, queues: Sequence[str]) -> Sequence[str]:
        """The other queues that this token was used for, which it is from now on for these."""
        with _used_lock:
            before = _used.get((self.keys.news, token), ())
            others = [queue for queue in before if queue not in queues]
            while len(_used) >= _MOST_USED:
                _used.pop(next(iter(_used)))
            _used[self.keys.news, token] = (*queues, *others)
        return others

    def unavailable(self, queues: Iterable[str]) -> StoreError:
        """Why none of these can be reached."""
        for queue in queues:
            if error := self.why(queue):
                return (StoreCorrupt if isinstance(error, StoreCorrupt) else StoreUnavailable)(str(error))
        return StoreUnavailable("the Cluster does not answer")

    def now_told(self) -> bytes:
        """The clock, as scripts read it: nothing said, the server's counts."""
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
        """A script over these queues."""
        keys = tuple(map(self.keys.queue, queues))
        if self.clustered and keys:
            # A node that is giving a slot away judges by the keys that are named. If none is there it sends
            # us on, and a queue whose other keys are still here would be in two places. If only one of two is
            # there we are to wait (TRYAGAIN), and so at the other end, until the whole slot has moved.
            keys = (*keys, keys[0] + b":meta")
        return Call(SCRIPTS[name], keys, [self.now_told(), *args], repeatable, replicas)

    def shared_call(self, name: str, key: bytes, args: Iterable[bytes | str | int]) -> Call:
        """A script over a key of the whole namespace."""
        return Call(SCRIPTS[name], (key,), [self.now_told(), *args])

    def servers(self, queues: Sequence[str]) -> list[list[str]]:
        """The queues, in groups that one script can span: all of them, or on a Cluster each alone."""
        if self.apart:
            return [[queue] for queue in queues]
        return [list(queues)] if queues else []

    def read(self, queue: str, id: bytes, record: bytes) -> Job | None:
        """A job from its record, if all is here that it takes to read it."""
        try:
            return job_of(self.profiles, queue, id, record, None)
        except (UnknownProfile, *UNDECODABLE):
            return None

    def told(self, facts: Sequence[bytes]) -> None:
        """A script has set these aside: 3 entries each, the queue's key, stored id, cause."""
        for key, id, cause in zip(facts[0::3], facts[1::3], facts[2::3], strict=True):
            queue = key.decode().rpartition("/")[2].removesuffix("}")
            self.asides.add(SetAside("job", queue, id_of(id), cause.decode(errors="backslashreplace")))


class Asides:
    """What a store object has set aside, and has not said yet; the newest, if nobody asks."""

    def __init__(self) -> None:
        self._found: deque[SetAside] = deque(maxlen=1_000)

    def add(self, one: SetAside) -> None:
        self._found.append(one)

    def take(self) -> tuple[SetAside, ...]:
        """From any thread: each is said once."""
        found = []
        while self._found:
            with contextlib.suppress(IndexError):
                found.append(self._found.popleft())
        return tuple(found)


def ask(key: bytes, *command: bytes | str | int) -> Call:
    """A plain command about this key."""
    return Call(None, (key,), [], True, 0, command)


def whole(text: bytes | None) -> int:
    """A number as the server keeps it; 0 if there is none."""
    try:
        return int(text or 0)
    except ValueError:
        return 0


def sure(answers: list[Any]) -> list[Any]:
    """The answers, none of which may be an error."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


# ── where a part of a Cluster may be away, or a queue is spoiled ─────────────────────────────────


def each(ground: Ground, asked: Sequence[tuple[str, Call]]) -> Talk[list[Any]]:
    """The answers to calls about queues (or SHARED). AWAY stands for those that do not come: on a Cluster, or
    once a step over several queues has failed by one."""
    if not ground.apart:
        return sure((yield [call for _, call in asked]))
    answers: list[Any] = [AWAY] * len(asked)
    ground.met.update(queue for queue, _ in asked)
    open = [n for n, (queue, _) in enumerate(asked) if ground.why(queue) is None]
    if open:
        replies = yield [asked[n][1]._replace(brief=ground.clustered) for n in open]
        for n, reply in zip(open, replies, strict=True):
            if isinstance(reply, Exception):
                _lost(ground, asked[n][0], reply)
            else:
                answers[n] = reply
                ground.spoiled.well(asked[n][0])
    return answers


def any_of(ground: Ground, asked: Sequence[tuple[str, Call]]) -> Talk[list[Any]]:
    """As `each`. Raises StoreError if all are AWAY: then it is the store that is."""
    answers = yield from each(ground, asked)
    if answers and all(answer is AWAY for answer in answers):
        raise ground.unavailable(queue for queue, _ in asked)
    return answers


def alone(ground: Ground, queue: str, talk: Talk[T]) -> Talk[T]:
    """What one verb does with one queue of several; AWAY as in `each`.

    Raises ReplyLost where something may have been done: the verb is repeated, and finds it or goes without.
    """
    if not ground.apart:
        return (yield from talk)
    ground.met.add(queue)
    try:
        if ground.why(queue) is None:
            found = yield from (_briefly(talk) if ground.clustered else talk)
            ground.spoiled.well(queue)
            return found
    except (StoreUnavailable, StoreCorrupt) as error:
        _lost(ground, queue, error)
        if isinstance(error, ReplyLost):
            raise
    away: T = AWAY
    return away


def _lost(ground: Ground, queue: str, error: Exception) -> None:
    """This queue is left out for a while; raises what is no such thing."""
    if isinstance(error, StoreCorrupt):
        ground.spoiled.lost(queue, error)
    elif isinstance(error, StoreUnavailable) and ground.clustered:
        ground.outages.lost(queue, error)
    else:
        raise error


_Verb = Callable[Concatenate[Ground, P], Talk[T]]


def isolated(verb: _Verb[P, T]) -> _Verb[P, T]:
    """A verb over several queues that can be repeated: if one is spoiled it does without that one."""

    @wraps(verb)
    def isolating(ground: Ground, *args: P.args, **options: P.kwargs) -> Talk[T]:
        try:
            return (yield from verb(ground, *args, **options))
        except StoreCorrupt:
            if ground.apart:
                raise
            ground.spoiled.met()
        return (yield from verb(ground, *args, **options))

    return cast("_Verb[P, T]", isolating)


def _briefly(talk: Talk[T]) -> Talk[T]:
    try:
        calls = next(talk)
        while True:
            calls = talk.send((yield [call._replace(brief=True) for call in calls]))
    except StopIteration as end:
        found: T = end.value
        return found


def by_queue(refs: Sequence[Ref]) -> dict[str, list[int]]:
    """The places of the questions, queue by queue."""
    groups: dict[str, list[int]] = {}
    for place, ref in enumerate(refs):
        groups.setdefault(ref.queue, []).append(place)
    return groups


def parts_of(refs: Sequence[Ref], most: int) -> list[tuple[str, Sequence[int]]]:
    """The same in parts of `most` at most: the queue, and the places of its questions."""
    return [(queue, part) for queue, places in by_queue(refs).items() for part in chunks(places, most)]


def chunks(items: Sequence[T], most: int) -> list[Sequence[T]]:
    if len(items) <= most:
        return [items] if items else []
    return [items[i : i + most] for i in range(0, len(items), most)]


def in_bytes(places: Sequence[int], sizes: Sequence[int]) -> list[Sequence[int]]:
    """The same places, in order, in parts of MOST_BYTES at most; `sizes` has one for every place there is."""
    starts, room = [0], MOST_BYTES
    for n, place in enumerate(places):
        room -= sizes[place]
        if room < 0 and n > starts[-1]:
            starts.append(n)
            room = MOST_BYTES - sizes[place]
    return [places[start:end] for start, end in zip(starts, [*starts[1:], len(places)], strict=True)]


def jobs_from(answer: list[Any]) -> list[tuple[bytes, bytes, bytes | None]]:
    """Rows of three: id, record, lease."""
    return list(zip(answer[0::3], answer[1::3], answer[2::3], strict=True))


def id_list(refs: Sequence[Ref], places: Sequence[int]) -> list[bytes | str | int]:
    return [packed(refs[place].id) for place in places]
