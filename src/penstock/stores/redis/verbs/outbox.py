"""Deliver jobs that follow a job of another slot of a Cluster."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from penstock.core.job import NewJob
from penstock.stores.contract import SetAside
from penstock.stores.redis.context import CallPlan, Context, command
from penstock.stores.redis.isolation import AWAY, each
from penstock.stores.redis.keys import packed
from penstock.stores.redis.layout import UNDECODABLE
from penstock.stores.redis.script_arguments import form_of, tail_of
from penstock.stores.redis.verbs.known_queues import register
from penstock.stores.redis.wire.calls import Call

__all__ = ["deliver"]

#: How long (s) another process may take to deliver an entry that it read before the entry was removed.
_STILL_READ = 3_600
_GENERATION = struct.Struct("<d")
_read_new = msgspec.msgpack.Decoder(NewJob).decode


def deliver(context: Context, lying: Sequence[tuple[str, bytes]]) -> CallPlan[None]:
    """Enqueue jobs that follow a job of another slot; until then they are in the `out` hash of its queue.

    Delivery is at least once: if this process dies in between, the next prune of that queue delivers them.
    """
    keys = [(queue, context.redis_keys.queue(queue) + b":out", name) for queue, name in lying]
    texts = yield from each(context, [(queue, command(key, "HGET", key, name)) for queue, key, name in keys])
    found: list[tuple[str, bytes, bytes, NewJob, int]] = []
    calls: list[tuple[str, Call]] = []
    for (queue, key, name), text in zip(keys, texts, strict=True):
        if text is None or text is AWAY:
            continue
        try:
            new, generation = _read_new(text[8:]), int(_GENERATION.unpack_from(text)[0])
            calls.append((new.queue, _follower_call(context, new, generation)))
        except UNDECODABLE as error:
            yield from _keep_unread(
                context, queue, name, text, f"a job that follows another one cannot be read ({error})"
            )
            continue
        found.append((queue, key, name, new, generation))
    if found:
        yield from register(context, {queue for queue, _ in calls})
        gone: list[tuple[str, Call]] = []
        once: list[tuple[str, Call] | None] = []
        answers = yield from each(context, calls)
        for (queue, key, name, new, generation), highest in zip(found, answers, strict=True):
            highest, unconfirmed = context.confirmed(highest)
            if highest is not AWAY and not unconfirmed:  # else the entry stays for another process
                context.floor = max(context.floor, int(highest))
                gone.append((queue, command(key, "HDEL", key, name)))
                once.append(_confirmation(context, new, generation))
        removed = yield from each(context, gone)
        confirmed = [one for one, answer in zip(once, removed, strict=True) if one and answer is not AWAY]
        if confirmed:
            yield from each(context, confirmed)


def _once(new: NewJob, generation: int) -> str | None:
    """The name under which a node of a flow is enqueued only once; see follow.lua."""
    return None if new.flow is None else f"{new.flow.id}/{new.flow.node}/{generation}"


def _confirmation(context: Context, new: NewJob, generation: int) -> tuple[str, Call] | None:
    """Let the name be forgotten when no other process can still be about to deliver the job."""
    name = _once(new, generation)
    if name is None:
        return None
    key = context.redis_keys.queue(new.queue) + f":once/{name}".encode()
    return new.queue, command(key, "EXPIRE", key, _STILL_READ)


def _keep_unread(context: Context, queue: str, name: bytes, text: bytes, cause: str) -> CallPlan[None]:
    """Keep an entry that cannot be read as a dead job of its queue."""
    id = f"outbox-{name.hex()}"[:128]
    call = context.call("keep_unread", [queue], [name, text, packed(id), cause])
    (kept,) = yield from each(context, [(queue, call)])
    if kept is not AWAY:
        context.set_asides.add(SetAside("outbox entry", queue, id, cause))


def _follower_call(context: Context, new: NewJob, generation: int) -> Call:
    """Return the call that stores a follower, with the generation that the settlement reserved for it."""
    digest, text = context.profiles.write(new)
    args: list[bytes | str | int] = [generation - 1, 1, digest, text]
    args += (packed(new.id), form_of(new, 1), tail_of(new, digest))
    name = _once(new, generation)
    if name is not None:
        args.append(name)
    return context.call("follow", [new.queue], args, replicas=context.replicas_of_noted)
