"""The arguments of scripts: parts that block the server for 5 ms at most, and values as bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from penstock.core.job import Lease, NewJob, Progress, Ref
from penstock.core.lifecycle import Transition
from penstock.core.relations import BatchTerms, FlowMember, Partition, Tenant
from penstock.stores.redis.context import Context
from penstock.stores.redis.layout import BATCH_TERMS, NONE, NUMBER, POSITIONS, UNWRITABLE, packed
from penstock.stores.redis.profiles import extra_of
from penstock.stores.text_encoding import storable, storable_error, storable_progress

T = TypeVar("T")

#: Most jobs of one script, which then blocks the server for at most 5 ms.
BATCH = 2_000
#: Most jobs of one script where each job costs more.
HEAVY = 250
#: Most jobs that one script of an operator changes, or prune removes: up to 55 µs for each, and two to three
#: times as long beside a busy worker on the same cores.
CHANGED = 40
#: Most bytes of payloads, results etc. in one script; a job with more is sent alone.
MOST_BYTES = 1 << 20


def by_queue(refs: Sequence[Ref]) -> dict[str, list[int]]:
    """Return the positions of refs in a call, by queue."""
    groups: dict[str, list[int]] = {}
    for place, ref in enumerate(refs):
        groups.setdefault(ref.queue, []).append(place)
    return groups


def parts_of(refs: Sequence[Ref], most: int) -> list[tuple[str, Sequence[int]]]:
    """Return queues and positions as `by_queue` does, in parts of at most `most` positions."""
    return [(queue, part) for queue, places in by_queue(refs).items() for part in chunks(places, most)]


def chunks(items: Sequence[T], most: int) -> list[Sequence[T]]:
    """Split items into parts of at most `most`."""
    if len(items) <= most:
        return [items] if items else []
    return [items[i : i + most] for i in range(0, len(items), most)]


def in_bytes(places: Sequence[int], sizes: Sequence[int]) -> list[Sequence[int]]:
    """Split positions, in order, into parts of at most MOST_BYTES; `sizes`: bytes at each position."""
    starts, room = [0], MOST_BYTES
    for n, place in enumerate(places):
        room -= sizes[place]
        if room < 0 and n > starts[-1]:
            starts.append(n)
            room = MOST_BYTES - sizes[place]
    return [places[start:end] for start, end in zip(starts, [*starts[1:], len(places)], strict=True)]


def id_list(refs: Sequence[Ref], places: Sequence[int]) -> list[bytes | str | int]:
    """Return the stored ids of the refs at these positions."""
    return [packed(refs[place].id) for place in places]


def numbered(context: Context, queues: Sequence[str]) -> Iterator[tuple[dict[str, int], list[str]]]:
    """Yield lists of queues that one script can span, each with the numbers of its queues in the script."""
    names = list(dict.fromkeys(queues))
    most = 1 if context.queue_by_queue else 250
    for some in chunks(names, most):
        yield {name: n for n, name in enumerate(some, 1)}, list(some)


# ── values as bytes ──


_FORM = struct.Struct("<dddd")
_NO_KEYS = bytes(10)  # the lengths of five keys
_RULE = struct.Struct("<dBB")
_PARTITION = struct.Struct("<IBdI")
_TRANSITION = struct.Struct("<BBBBddddBB")
_encode = msgspec.msgpack.Encoder().encode
_decode_progress = msgspec.msgpack.Decoder(Progress).decode


class CannotWrite(Exception):
    """Raised for a value that a record cannot hold."""


def tail_of(job: NewJob, digest: bytes) -> bytes:
    """Return the tail of a record, with its flags in front."""
    extra = extra_of(job)
    if extra is None:
        return b"\0" + digest + job.payload
    text = _encode(extra)
    return b"\x10" + digest + len(text).to_bytes(4, "little") + text + job.payload


def form_of(job: NewJob, queue: int) -> bytes:
    """Return the form of a job, as enqueue.lua describes it; `queue`: the number of its queue in the call."""
    place = bytes((queue, job.priority + 100))
    if (
        job.delay == 0
        and job.run_at is None
        and job.expires_in is None
        and job.expires_at is None
        and job.unique is None
        and job.partition is None
        and job.tenant is None
        and job.batch_terms is None
        and job.flow is None
    ):
        return place
    times = _FORM.pack(job.delay, _or_none(job.run_at), _or_none(job.expires_in), _or_none(job.expires_at))
    if not (job.unique or job.partition or job.tenant or job.batch_terms or job.flow):
        return place + times + _NO_KEYS
    return place + times + b"".join(len(key).to_bytes(2, "little") + key for key in _shared_keys(job))


def _shared_keys(job: NewJob) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """Return unique key, partition, tenant, batch and flow of a job; b"" for each that it does not have."""
    unique = job.unique
    key = b""
    if unique is not None:
        key = _RULE.pack(_or_none(unique.period), unique.phases, unique.replace) + unique.key.encode()
    batch = b"" if job.batch_terms is None else _batch_bytes(job.batch_terms)
    flow = b"" if job.flow is None else flow_bytes(job.flow)
    return key, _partition_bytes(job.partition), _tenant_bytes(job.tenant), batch, flow


def flow_bytes(member: FlowMember) -> bytes:
    """Encode a node: its number, and the queue and id of its flow."""
    home = member.queue.encode()
    return member.node.to_bytes(4, "little") + bytes((len(home),)) + home + member.id.encode()


def _partition_bytes(partition: Partition | None) -> bytes:
    """Encode a partition key and its rules, as `scripts/lib/partitions.lua` reads them."""
    if partition is None:
        return b""
    step, burst = (0.0, 0) if partition.rate is None else (partition.rate.step, partition.rate.burst)
    return _PARTITION.pack(partition.most, partition.ordered, step, burst) + partition.key.encode()


def _tenant_bytes(tenant: Tenant | None) -> bytes:
    return b"" if tenant is None else tenant.step.to_bytes(2, "little") + tenant.key.encode()


def _batch_bytes(terms: BatchTerms) -> bytes:
    key = terms.key.encode()
    return BATCH_TERMS.pack(terms.size, _or_none(terms.wait), _or_none(terms.grace), len(key)) + key


def _or_none(value: int | None) -> float:
    return NONE if value is None else float(value)


def lease_prefix(lease: Lease | Ref) -> bytes:
    """Return the first bytes of a stored lease, which identify its holder."""
    if isinstance(lease, Ref):
        return b""
    token = lease.token.encode()
    if not 0 <= lease.generation < 1 << 56 or len(token) > 255:
        return b"\xff"  # no stored lease begins with this byte
    return lease.generation.to_bytes(7, "big") + bytes((len(token),)) + token


def transition_bytes(to: Transition) -> bytes:
    """Encode a transition, as settle.lua reads it."""
    head = _TRANSITION.pack(
        NUMBER[to.state],
        POSITIONS[to.place],
        to.charge,
        to.lost,
        to.delay,
        to.keep,
        to.throttle,
        to.throttle_partition,
        to.error is not None,
        to.reason is not None,
    )
    if to.error is not None:
        head += _sized(_encode(storable_error(to.error)))
    if to.reason is not None:
        head += _sized(storable(to.reason).encode())
    return head


def _sized(text: bytes) -> bytes:
    return len(text).to_bytes(4, "little") + text


def progress_bytes(progress: Progress | None) -> bytes:
    """Encode progress, with "=" in front; b"" if it cannot be stored, so that the lease is still extended."""
    if progress is None:
        return b""
    try:
        text = _encode(storable_progress(progress))
        _decode_progress(text)
    except UNWRITABLE:
        return b""
    return b"=" + text
