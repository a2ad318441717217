"""A job as bytes: what `scripts/lib/record.lua` reads and writes on the server's side.

    flags 1 · generation 7 · priority + 128 1 · [what has become of it] · tail
    what has become of it (flag LONG): size 4 · enqueued, run_at, place, expires, fetched, ended 6 × 8 ·
        attempt 4 · lost 4 · has 2 · of errors, result, progress, checkpoint, reason, and the ties unique,
        lane, turn, group those it has
    tail: digest 4, or (flag INLINE) the profile itself · [extra, flag EXTRA] · payload to the end

A *profile* is all that jobs of one task have in common; a queue keeps each under its digest, so that a job
carries 4 bytes of it. A lease: generation 7 · token 1+n · fetched_at 8 · flags 1 · worker 2+n · reason.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from penstock.core.batch import Group
from penstock.core.job import AttemptError, Job, Lease, NewJob, Progress, Ref, State
from penstock.core.lifecycle import Place, Transition, kept
from penstock.core.limits import NO_LIMITS, LimitChange, OnFull, QueueLimits, Rate
from penstock.core.partition import Lane, Turn
from penstock.core.retry import RetryPolicy
from penstock.core.unique import UniqueKey
from penstock.stores.redis.keys import id_of, ms_of
from penstock.stores.text_encoding import storable, storable_error, storable_progress

__all__ = [
    "NUMBER",
    "STATES",
    "UNDECODABLE",
    "UNWRITABLE",
    "CannotWrite",
    "Profile",
    "Profiles",
    "UnknownProfile",
    "form_of",
    "grip",
    "job_of",
    "leased",
    "limit_values",
    "limits_of",
    "progress_bytes",
    "readable_limits",
    "tail_of",
    "transition_bytes",
]

_NONE = float(-(2**53))
_LONG, _EXTRA, _INLINE, _HIGH = 8, 16, 32, 192
_ASKED_TO_STOP = 32_768
_PARTS = 9
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
_PLACES = {Place.HEAD: 0, Place.TAIL: 1, Place.OWN: 2}
_CHARGED, _STARTED, _ASKED = 1, 2, 4

_FATE = struct.Struct("<IddddddIIH")
_LEASE = struct.Struct("<dBH")
_FORM = struct.Struct("<dddd")
_TRANSITION = struct.Struct("<BBBBddddBB")
_LIMITS = struct.Struct("<10d")
_RULE = struct.Struct("<dBB")
_LANE = struct.Struct("<IBdI")
_GROUP = struct.Struct("<HddH")
_RUNNING = State.RUNNING


class Profile(msgspec.Struct, frozen=True, array_like=True):
    """What the jobs of one task have in common."""

    task: str
    timeout: int | None
    max_attempts: int
    retry: RetryPolicy | None
    retention: int
    at_most_once: bool
    keep_dead: int | None = None


class _Extra(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What only some jobs have."""

    delay: int = 0
    run_at: int | None = None
    expires_in: int | None = None
    expires_at: int | None = None
    deadline: int | None = None
    unique: UniqueKey | None = None
    headers: dict[str, str] | None = None
    lane: Lane | None = None
    turn: Turn | None = None


_NO_EXTRA = _Extra()
_encode = msgspec.msgpack.Encoder().encode
_decode_profile = msgspec.msgpack.Decoder(Profile).decode
_decode_extra = msgspec.msgpack.Decoder(_Extra).decode
_decode_error = msgspec.msgpack.Decoder(AttemptError).decode
_decode_progress = msgspec.msgpack.Decoder(Progress).decode


#: What reading bytes that are no record raises.
UNDECODABLE = (struct.error, IndexError, TypeError, ValueError, OverflowError, msgspec.DecodeError)
#: What writing values that are none of their types raises.
UNWRITABLE = (*UNDECODABLE, AttributeError)
#: What stands in the place of an entry of a job's error history that cannot be read.
_NO_ERROR = AttemptError(0, 0, "(unreadable)", "")


class CannotWrite(Exception):
    """A value is none that a record can hold."""


class UnknownProfile(Exception):
    """A record names a profile that this process has not seen yet."""

    def __init__(self, queue: str, digest: bytes) -> None:
        super().__init__(f"queue {queue!r} has a profile {digest.hex()} that has to be read first")
        self.queue = queue
        self.digest = digest


class Profiles:
    """The profiles that this process knows: those of its own jobs to write, those it meets to read."""

    _MOST = 4_096  # forgotten all together beyond that: they are read again

    def __init__(self) -> None:
        self._written: dict[tuple[Any, ...], tuple[bytes, bytes]] = {}
        self._read: dict[tuple[str, bytes], Profile] = {}

    def write(self, job: NewJob) -> tuple[bytes, bytes]:
        """Digest and bytes of the profile of this job."""
        facts = (
            job.task,
            job.timeout,
            job.max_attempts,
            job.retry,
            job.retention,
            job.at_most_once,
            job.keep_dead,
        )
        found = self._written.get(facts)
        if found is None:
            if len(self._written) >= self._MOST:
                self._written.clear()
            task = job.task.encode()
            keep = float(kept(job, State.CANCELLED))
            text = struct.pack("<dH", keep, len(task)) + task + _encode(Profile(*facts))
            found = self._written[facts] = blake2b(text, digest_size=4).digest(), text
        return found

    def get(self, queue: str, digest: bytes) -> Profile:
        """The profile; raises UnknownProfile, whereupon it is to be learned."""
        try:
            return self._read[queue, digest]
        except KeyError:
            raise UnknownProfile(queue, digest) from None

    def learn(self, queue: str, digest: bytes, text: bytes) -> None:
        if len(self._read) >= self._MOST:
            self._read.clear()
        self._read[queue, digest] = _profile_of(text)


def _profile_of(text: bytes) -> Profile:
    (size,) = struct.unpack_from("<H", text, 8)
    return _decode_profile(text[10 + size :])


# ── into the store ───────────────────────────────────────────────────────────────────────────────


def tail_of(job: NewJob, digest: bytes) -> bytes:
    """The tail, with its flags in front."""
    extra = _Extra(
        job.delay,
        job.run_at,
        job.expires_in,
        job.expires_at,
        job.deadline,
        job.unique,
        job.headers,
        job.lane,
        job.turn,
    )
    if extra == _NO_EXTRA:
        return b"\0" + digest + job.payload
    text = _encode(extra)
    return b"\x10" + digest + len(text).to_bytes(4, "little") + text + job.payload


def form_of(job: NewJob, queue: int) -> bytes:
    """What the script has to know to place the job; `queue` is the number of its queue in the call."""
    place = bytes((queue, job.priority + 100))
    if (
        job.delay == 0
        and job.run_at is None
        and job.expires_in is None
        and job.expires_at is None
        and job.unique is None
        and job.lane is None
        and job.turn is None
        and job.group is None
    ):
        return place
    return (
        place
        + _FORM.pack(
            job.delay,
            _or_none(job.run_at),
            _or_none(job.expires_in),
            _or_none(job.expires_at),
        )
        + b"".join(len(tie).to_bytes(2, "little") + tie for tie in _ties(job))
    )


def _ties(job: NewJob) -> tuple[bytes, bytes, bytes, bytes]:
    """What ties the job to others: its unique key, lane, turn, group; b"" for what it has not."""
    unique = job.unique
    key = b""
    if unique is not None:
        key = _RULE.pack(_or_none(unique.period), unique.states, unique.replace) + unique.key.encode()
    group = b"" if job.group is None else _group_tie(job.group)
    return key, _lane_bytes(job.lane), _turn_bytes(job.turn), group


def _lane_bytes(lane: Lane | None) -> bytes:
    """A key and its terms, as `scripts/lib/lanes.lua` reads them."""
    if lane is None:
        return b""
    step, burst = (0.0, 0) if lane.rate is None else (lane.rate.step, lane.rate.burst)
    return _LANE.pack(lane.most, lane.ordered, step, burst) + lane.key.encode()


def _turn_bytes(turn: Turn | None) -> bytes:
    return b"" if turn is None else turn.step.to_bytes(2, "little") + turn.key.encode()


def _group_tie(group: Group) -> bytes:
    key = group.key.encode()
    return _GROUP.pack(group.size, _or_none(group.wait), _or_none(group.grace), len(key)) + key


def _or_none(value: int | None) -> float:
    return _NONE if value is None else float(value)


def grip(lease: Lease | Ref) -> bytes:
    """What the lease on the server begins with, if it is this one."""
    if isinstance(lease, Ref):
        return b""
    token = lease.token.encode()
    if not 0 <= lease.generation < 1 << 56 or len(token) > 255:
        return b"\xff"  # no lease begins so
    return lease.generation.to_bytes(7, "big") + bytes((len(token),)) + token


def transition_bytes(to: Transition) -> bytes:
    head = _TRANSITION.pack(
        NUMBER[to.state],
        _PLACES[to.place],
        to.charge,
        to.lost,
        to.delay,
        to.keep,
        to.hold,
        to.hold_lane,
        to.error is not None,
        to.reason is not None,
    )
    if to.error is not None:
        head += _sized(_encode(storable_error(to.error)))
    if to.reason is not None:
        head += _sized(storable(to.reason).encode())
    return head


def limit_values(change: LimitChange) -> list[int | float | str]:
    """The limits as the scripts have them, in the order of `limits.lua`; "": as it is."""

    def number(value: float | UnsetType | None) -> float | str:
        return "" if value is UNSET else _NONE if value is None else value

    waits = "" if change.on_full is UNSET else int(change.on_full is OnFull.WAIT)
    rate = change.rate
    pace: list[float | str] = ["", "", ""] if rate is UNSET else [_NONE] * 3
    if isinstance(rate, Rate):
        pace = [rate.count, rate.per_ms, "" if change.keep_burst else rate.burst]
    kept = (change.keep_finished, change.keep_dead, change.keep_finished_for, change.keep_dead_for)
    return [number(change.max_size), waits, number(change.max_running), *pace, *map(number, kept)]


def limits_of(text: bytes) -> QueueLimits:
    """The limits of a queue as the scripts keep them; none, if that cannot be read."""
    return (readable_limits(text) if text else None) or NO_LIMITS


def readable_limits(text: bytes) -> QueueLimits | None:
    """The same, None if they cannot be read."""
    try:
        return _limits(*_LIMITS.unpack(text))
    except UNDECODABLE:
        return None


def _limits(size: float, waits: float, running: float, count: float, per: float, *rest: float) -> QueueLimits:
    burst, *kept = rest
    numbers = [None if value == _NONE else int(value) for value in (size, running, *kept)]
    rate = None if count == _NONE else Rate(count, int(per), int(burst))
    return QueueLimits(
        numbers[0], OnFull.WAIT if waits == 1 else OnFull.REJECT, numbers[1], rate, *numbers[2:]
    )


def _sized(text: bytes) -> bytes:
    return len(text).to_bytes(4, "little") + text


def progress_bytes(progress: Progress | None) -> bytes:
    """Nothing for one that no reader could read: a lease must not be lost for what its job says of itself."""
    if progress is None:
        return b""
    try:
        text = _encode(storable_progress(progress))
        _decode_progress(text)
    except UNWRITABLE:
        return b""
    return b"=" + text


# ── out of the store ─────────────────────────────────────────────────────────────────────────────


class _Tied(NamedTuple):
    """What a record says of groups: whose member it is, or who its members are."""

    group: Group | None = None
    batch: str | None = None
    members: tuple[str, ...] = ()


_UNTIED = _Tied()


def _tied_of(text: bytes) -> _Tied:
    size, wait, grace, length = _GROUP.unpack_from(text)
    at = _GROUP.size + length
    key = text[_GROUP.size : at].decode()
    group = Group(key, size, None if wait == _NONE else int(wait), None if grace == _NONE else int(grace))
    part = text[at:]
    if part[:1] == b"m":
        return _Tied(group, id_of(part[1:]))
    return _Tied(group, None, tuple(_ids_in(part[1:])))


def _ids_in(text: bytes) -> Iterable[str]:
    at = 0
    while at < len(text):
        end = at + 1 + text[at]
        yield id_of(text[at + 1 : end])
        at = end


class _Fate(NamedTuple):
    """What has become of a job, as its record says."""

    enqueued_at: int
    run_at: int
    expires_at: int | None
    fetched_at: int | None
    ended_at: int | None
    attempt: int
    lost: int
    asked: bool
    errors: tuple[AttemptError, ...]
    result: bytes | None
    progress: Progress | None
    checkpoint: bytes | None
    reason: str | None
    tied: _Tied = _UNTIED


def _fate_of(record: bytes) -> tuple[_Fate, int]:
    """And where the tail begins."""
    size, enqueued, run, _, expires, fetched, ended, attempt, lost, has = _FATE.unpack_from(record, 9)
    at, parts = 71, []
    for bit in range(_PARTS):
        part = None
        if has >> bit & 1:
            length = int.from_bytes(record[at : at + 4], "little")
            part = record[at + 4 : at + 4 + length]
            at += 4 + length
        parts.append(part)
    errors, result, progress, checkpoint, reason, *_, tie = parts
    fate = _Fate(
        int(enqueued),
        int(run),
        None if expires == _NONE else int(expires),
        None if fetched == _NONE else int(fetched),
        None if ended == _NONE else int(ended),
        attempt,
        lost,
        has >= _ASKED_TO_STOP,
        () if errors is None else tuple(map(_error_of, _split(errors))),
        result,
        None if progress is None else _progress_of(progress),
        checkpoint,
        None if reason is None else reason.decode(errors="backslashreplace"),
        _UNTIED if tie is None else _tied_of(tie),
    )
    return fate, 9 + size


def _error_of(text: bytes) -> AttemptError:
    try:
        return _decode_error(text)
    except UNDECODABLE:
        return _NO_ERROR


def _progress_of(text: bytes) -> Progress | None:
    try:
        return _decode_progress(text)
    except UNDECODABLE:
        return None


def _split(parts: bytes) -> Iterable[bytes]:
    at = 0
    while at < len(parts):
        size = int.from_bytes(parts[at : at + 4], "little")
        yield parts[at + 4 : at + 4 + size]
        at += 4 + size


def _spec_of(
    profiles: Profiles, queue: str, id: str, record: bytes, at: int, group: Group | None = None
) -> NewJob:
    flags = record[0]
    if flags & _INLINE:
        size = int.from_bytes(record[at : at + 2], "little")
        profile = _profile_of(record[at + 2 : at + 2 + size])
        at += 2 + size
    else:
        profile = profiles.get(queue, record[at : at + 4])
        at += 4
    extra = _NO_EXTRA
    if flags & _EXTRA:
        size = int.from_bytes(record[at : at + 4], "little")
        extra = _decode_extra(record[at + 4 : at + 4 + size])
        at += 4 + size
    return NewJob(
        id,
        profile.task,
        record[at:],
        queue,
        record[8] - 128,
        extra.delay,
        extra.run_at,
        extra.expires_in,
        extra.expires_at,
        profile.timeout,
        extra.deadline,
        profile.max_attempts,
        profile.retry,
        extra.unique,
        profile.retention,
        profile.at_most_once,
        extra.headers,
        extra.lane,
        extra.turn,
        group,
        profile.keep_dead,
    )


def leased(
    profiles: Profiles,
    queue: str,
    stored: bytes,
    record: bytes,
    now: int,
    worker: str,
    token: str,
    charge: int,
) -> Job:
    """A job that has just been fetched: its lease is known here, and need not travel."""
    generation = int.from_bytes(record[1:8], "big")
    if record[0] & _LONG:
        fate, at = _fate_of(record)
        spec = _spec_of(profiles, queue, id_of(stored), record, at, fate.tied.group)
        return Job(
            spec,
            _RUNNING,
            generation,
            fate.attempt + charge,
            fate.lost,
            fate.enqueued_at,
            fate.run_at,
            now,
            None,
            fate.expires_at,
            token,
            worker,
            False,
            fate.asked,
            fate.errors,
            None,
            None,
            fate.checkpoint,
            None,
            None,
            fate.tied.members,
        )
    enqueued = ms_of(generation)
    spec = _spec_of(profiles, queue, id_of(stored), record, 9)
    return Job(spec, _RUNNING, generation, charge, 0, enqueued, enqueued, now, None, None, token, worker)


def _state_of(record: bytes) -> State:
    number = record[0] & 7
    return STATES[number + 8 if record[0] & _HIGH == _HIGH else number]


def job_of(profiles: Profiles, queue: str, stored: bytes, record: bytes, held: bytes | None) -> Job:
    """A job as it lies in the store."""
    generation = int.from_bytes(record[1:8], "big")
    if record[0] & _LONG:
        fate, at = _fate_of(record)
    else:
        enqueued = ms_of(generation)
        fate, at = _Fate(enqueued, enqueued, None, None, None, 0, 0, False, (), None, None, None, None), 9
    spec = _spec_of(profiles, queue, id_of(stored), record, at, fate.tied.group)
    job = Job(
        spec,
        _state_of(record),
        generation,
        fate.attempt,
        fate.lost,
        fate.enqueued_at,
        fate.run_at,
        fate.fetched_at,
        fate.ended_at,
        fate.expires_at,
        None,
        None,
        False,
        fate.asked,
        fate.errors,
        fate.result,
        fate.progress,
        fate.checkpoint,
        fate.reason,
        fate.tied.batch,
        fate.tied.members,
    )
    return job if held is None else _with_lease(job, held)


def _with_lease(job: Job, held: bytes) -> Job:
    size = held[7]
    fetched, flags, length = _LEASE.unpack_from(held, 8 + size)
    at = 8 + size + 11
    return msgspec.structs.replace(
        job,
        state=_RUNNING,
        attempt=job.attempt + (flags & _CHARGED),
        fetched_at=int(fetched),
        token=held[8 : 8 + size].decode(),
        worker=held[at : at + length].decode(),
        started=bool(flags & _STARTED),
        cancel_asked=bool(flags & _ASKED),
        reason=held[at + length :].decode(errors="backslashreplace") or None,
    )
