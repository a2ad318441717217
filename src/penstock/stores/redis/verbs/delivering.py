"""Deliver jobs that the script which made them could not store: it left an entry for each in `out`.

They follow a job, or were moved, from a queue in another slot of a Cluster; or they are nodes of a flow that
starts jobs in more queues than one script takes (`flow_store.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from penstock.core.job import AttemptError, NewJob
from penstock.stores.contract import SetAside
from penstock.stores.redis.context import CallPlan, Context, command
from penstock.stores.redis.isolation import MISSING, call_each
from penstock.stores.redis.layout import UNDECODABLE, packed
from penstock.stores.redis.script_arguments import form_of, tail_of
from penstock.stores.redis.verbs.known_queues import register
from penstock.stores.redis.wire.calls import Call

#: How long (s) another process may take to deliver an entry that it read before the entry was removed.
_STILL_READ = 3_600
_CARRIED = struct.Struct("<III")
_GENERATION = struct.Struct("<d")
#: The first byte of the name of a moved job's entry.
_MOVED = b"m"
#: The answer for a moved job whose id another job of the queue has: the delivery is repeated by each prune.
_TAKEN = b"-1"
_read_new = msgspec.msgpack.Decoder(NewJob).decode
_encode = msgspec.msgpack.Encoder().encode


class MovedJob(msgspec.Struct, frozen=True, array_like=True):
    """A job that was moved to another queue, as its entry has it. Add new fields only at the end."""

    new: NewJob
    attempt: int = 0
    lost: int = 0
    errors: tuple[AttemptError, ...] = ()
    checkpoint: bytes | None = None


_read_moved = msgspec.msgpack.Decoder(MovedJob).decode


class _Entry(NamedTuple):
    """An entry of `out`, and its delivery: the call, and the name under which it is made only once."""

    queue: str
    key: bytes
    name: bytes
    to: str
    call: Call
    once: str | None


def carried_by(moved: MovedJob) -> bytes:
    """Return what a moved job brings along, as `scripts/lib/insert.lua` reads it."""
    parts = [_encode(error) for error in moved.errors]
    errors = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    head = _CARRIED.pack(moved.attempt, moved.lost, len(errors)) + errors
    return head + (b"\0" if moved.checkpoint is None else b"\1" + moved.checkpoint)


def deliver(context: Context, entries: Sequence[tuple[str, bytes]]) -> CallPlan[None]:
    """Enqueue the jobs of these entries: (queue, name) in the `out` hash of a queue.

    Delivery is at least once: if this process dies in between, the next prune of that queue delivers them.
    """
    keys = [(queue, context.redis_keys.queue(queue) + b":out", name) for queue, name in entries]
    texts = yield from call_each(
        context, [(queue, command(key, "HGET", key, name)) for queue, key, name in keys]
    )
    found: list[_Entry] = []
    for (queue, key, name), text in zip(keys, texts, strict=True):
        if text is None or text is MISSING:
            continue
        try:
            found.append(_read_entry(context, queue, key, name, text))
        except UNDECODABLE as error:
            yield from _keep_unread(
                context, queue, name, text, f"a job that follows another one cannot be read ({error})"
            )
    if found:
        yield from register(context, {entry.to for entry in found})
        gone: list[tuple[str, Call]] = []
        once: list[tuple[str, Call] | None] = []
        answers = yield from call_each(context, [(entry.to, entry.call) for entry in found])
        for entry, highest in zip(found, answers, strict=True):
            highest, unconfirmed = context.confirmed(highest)
            if highest is not MISSING and not unconfirmed and highest != _TAKEN:  # else the entry stays
                context.floor = max(context.floor, int(highest))
                gone.append((entry.queue, command(entry.key, "HDEL", entry.key, entry.name)))
                once.append(_confirmation(context, entry))
        removed = yield from call_each(context, gone)
        confirmed = [one for one, answer in zip(once, removed, strict=True) if one and answer is not MISSING]
        if confirmed:
            yield from call_each(context, confirmed)


def _read_entry(context: Context, queue: str, key: bytes, name: bytes, text: bytes) -> _Entry:
    """Read an entry; raises one of UNDECODABLE."""
    generation = int(_GENERATION.unpack_from(text)[0])
    if name.startswith(_MOVED):
        moved = _read_moved(text[8:])
        once = f"{queue}/{name.decode()}"
        return _Entry(
            queue, key, name, moved.new.queue, _receive_call(context, moved, generation, once), once
        )
    new = _read_new(text[8:])
    call = _follower_call(context, new, generation)
    return _Entry(queue, key, name, new.queue, call, _once(new, generation))


def _once(new: NewJob, generation: int) -> str | None:
    """The name under which a node of a flow is enqueued only once; see follow.lua."""
    return None if new.flow is None else f"{new.flow.id}/{new.flow.node}/{generation}"


def _confirmation(context: Context, entry: _Entry) -> tuple[str, Call] | None:
    """Let the name be forgotten when no other process can still be about to deliver the job."""
    if entry.once is None:
        return None
    return context.on_key(entry.to, f":once/{entry.once}".encode(), "EXPIRE", _STILL_READ)


def _keep_unread(context: Context, queue: str, name: bytes, text: bytes, cause: str) -> CallPlan[None]:
    """Keep an entry that cannot be read as a dead job of its queue."""
    id = f"outbox-{name.hex()}"[:128]
    call = context.call("keep_unread", [queue], [name, text, packed(id), cause])
    (kept,) = yield from call_each(context, [(queue, call)])
    if kept is not MISSING:
        context.set_asides.add(SetAside("outbox entry", queue, id, cause))


def _receive_call(context: Context, moved: MovedJob, generation: int, once: str) -> Call:
    """Return the call that stores a moved job, with the generation that its removal reserved for it."""
    new = moved.new
    digest, text = context.profiles.write(new)
    facts = (packed(new.id), form_of(new, 1), tail_of(new, digest), carried_by(moved))
    args = (generation - 1, digest, text, *facts, once)
    return context.call("receive", [new.queue], args, replicas=context.replicas_of_noted)


def _follower_call(context: Context, new: NewJob, generation: int) -> Call:
    """Return the call that stores a follower, with the generation that the settlement reserved for it."""
    digest, text = context.profiles.write(new)
    args: list[bytes | str | int] = [generation - 1, 1, digest, text]
    args += (packed(new.id), form_of(new, 1), tail_of(new, digest))
    name = _once(new, generation)
    if name is not None:
        args.append(name)
    return context.call("follow", [new.queue], args, replicas=context.replicas_of_noted)
