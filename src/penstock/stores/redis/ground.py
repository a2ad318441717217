"""What all verbs stand on: the names of keys, the scripts, the clock, what this store object has learned."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, TypeVar

from penstock.clock import Clock
from penstock.errors import StoreCorrupt
from penstock.job import Job, Ref
from penstock.stores.redis.calls import Call, Script
from penstock.stores.redis.keys import Keys, packed
from penstock.stores.redis.records import Profiles, UnknownProfile, job_of
from penstock.stores.statements import Statements

__all__ = ["BATCH", "Ground", "Talk", "by_queue", "chunks", "jobs_from", "parts_of", "sure"]

R = TypeVar("R")
T = TypeVar("T")

#: A verb on its way: it yields calls, gets their answers, and returns its own.
Talk = Generator[list[Call], list[Any], R]

#: A script works on so many jobs at most, so that it does not hold the server for more than 5 ms ...
BATCH = 2_000
#: ... and on so many where each costs more.
HEAVY = 250

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
        while _INCLUDE.search(whole):  # what is included may include more
            whole = _INCLUDE.sub(lambda line: "\n".join(shared[part] for part in line[1].split()), whole)
        found[name] = Script(name, _COMMENTS.sub("", whole))
    return found


SCRIPTS = _scripts()


#: The queues that the last tokens of this process were used for, whatever store object used them: one that
#: comes again is looked for in all of them.
_used: dict[tuple[bytes, str], tuple[str, ...]] = {}
_used_lock = threading.Lock()
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
        self._clock = clock
        self._told = b"c" if clustered else b""

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
        if self.clustered:
            return [[queue] for queue in queues]
        return [list(queues)] if queues else []

    def jobs(self, queue: str, rows: Iterable[tuple[bytes, bytes, bytes | None]]) -> Talk[list[Job]]:
        """Jobs from (stored id, record, lease)."""
        rows = list(rows)
        profiles = self.profiles
        return (
            yield from self.learning(
                lambda: [job_of(profiles, queue, id, record, held) for id, record, held in rows]
            )
        )

    def read(self, queue: str, id: bytes, record: bytes) -> Job | None:
        """A job from its record, if all is here that it takes to read it."""
        try:
            return job_of(self.profiles, queue, id, record, None)
        except UnknownProfile:
            return None

    def learning(self, read: Callable[[], T]) -> Talk[T]:
        """The answer of `read`, which may need profiles that have to be asked for."""
        while True:
            try:
                return read()
            except UnknownProfile as unknown:
                key = self.keys.queue(unknown.queue) + b":profiles"
                (text,) = sure((yield [ask(key, "HGET", key, unknown.digest)]))
                if text is None:
                    raise StoreCorrupt(
                        f"queue {unknown.queue!r}: the profile {unknown.digest.hex()} of its jobs is gone; "
                        f"was the key {key.decode()} deleted?"
                    ) from None
                self.profiles.learn(unknown.queue, unknown.digest, text)


def ask(key: bytes, *command: bytes | str | int) -> Call:
    """A plain command about this key."""
    return Call(None, (key,), [], True, 0, command)


def sure(answers: list[Any]) -> list[Any]:
    """The answers, none of which may be an error."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


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


def jobs_from(answer: list[Any]) -> list[tuple[bytes, bytes, bytes | None]]:
    """Rows of three: id, record, lease."""
    return list(zip(answer[0::3], answer[1::3], answer[2::3], strict=True))


def id_list(refs: Sequence[Ref], places: Sequence[int]) -> list[bytes | str | int]:
    return [packed(refs[place].id) for place in places]
