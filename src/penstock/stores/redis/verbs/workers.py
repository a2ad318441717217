"""announce, retire and workers: the list of running workers."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from penstock.stores.contract import WorkerInfo
from penstock.stores.redis.context import CallPlan, Context, command
from penstock.stores.redis.isolation import MISSING, call_any, call_each
from penstock.stores.redis.layout import UNDECODABLE
from penstock.stores.redis.unusable_queues import SHARED
from penstock.stores.redis.verbs.known_queues import list_again
from penstock.stores.redis.wire.calls import Call

SILENT = 60_000
_worker_decode = msgspec.msgpack.Decoder(WorkerInfo).decode


def announce(context: Context, worker: WorkerInfo) -> CallPlan[None]:
    """Store the announcement of a worker, with the time."""
    text = msgspec.msgpack.encode(worker)
    context.used.update(worker.queues)
    yield from _of_workers(
        context, context.shared_call("announce", context.redis_keys.workers, [worker.id, text])
    )
    if context.relists():
        yield from list_again(context, worker.queues)


def _of_workers(context: Context, call: Call) -> CallPlan[Any]:
    """Run a call on the list of workers; return MISSING if only that list is away on a Cluster."""
    (answer,) = yield from call_each(context, [(SHARED, call)])
    if answer is MISSING:
        others = sorted(context.used - {SHARED})
        if not others:
            raise context.unavailable([SHARED])
        yield from call_any(context, [context.on_key(queue, b":meta", "EXISTS") for queue in others])
    return answer


def retire(context: Context, worker: str) -> CallPlan[None]:
    """Remove a worker from the list."""
    key = context.redis_keys.workers
    yield from call_each(context, [(SHARED, command(key, "HDEL", key, worker))])


def workers(context: Context) -> CallPlan[list[WorkerInfo]]:
    """Return the workers announced within the last minute, the oldest first."""
    answer = yield from _of_workers(
        context, context.shared_call("workers", context.redis_keys.workers, [SILENT, 0])
    )
    if answer is MISSING:
        return []
    found = [_worker_of(id, text) for id, text in zip(answer[1::2], answer[2::2], strict=True)]
    return sorted(found, key=lambda worker: (worker.started_at, worker.id))


def _worker_of(id: bytes, text: bytes) -> WorkerInfo:
    """Decode an entry of the list of workers."""
    seen = int(struct.unpack_from("<d", text)[0])
    try:
        return msgspec.structs.replace(_worker_decode(text[8:]), seen_at=seen)
    except UNDECODABLE:
        return WorkerInfo.unreadable(id.decode(errors="backslashreplace"), seen)
