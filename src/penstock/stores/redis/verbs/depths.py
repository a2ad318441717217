"""Samples of the depths of queues on Redis: a hash per queue and resolution, which has a place per period."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from penstock.core.queue_depth import QueueDepth
from penstock.stores.contract import DepthPage, DepthRow, Resolution
from penstock.stores.redis.batching import chunks
from penstock.stores.redis.context import CallPlan, Context, command
from penstock.stores.redis.isolation import AWAY, any_of, each, isolated
from penstock.stores.redis.verbs.known_queues import known, now_of

__all__ = ["depth_keys", "read_depths", "sample_depths"]

#: Most queues of one script, which then blocks the server for at most 5 ms, and of one round trip that reads.
_SAMPLED, _READ = 50, 100
_RESOLUTIONS = [word for one in Resolution for word in (one.value, one.length, one.kept)]
_MINUTE = Resolution.MINUTE.length
#: Period, and the fields of a `QueueDepth`.
_decode = msgspec.msgpack.Decoder(tuple[int, int, int, int, int, int]).decode


@isolated
def sample_depths(context: Context) -> CallPlan[int]:
    """Sample all queues, some in each script, in one round trip."""
    names = yield from known(context)
    groups = [[name] for name in names] if context.apart else chunks(names, _SAMPLED)
    calls = [(few[0], context.call("sample_depths", few, _RESOLUTIONS)) for few in groups]
    if calls:
        yield from any_of(context, calls)
    return _MINUTE - int((yield from now_of(context))) % _MINUTE


@isolated
def read_depths(
    context: Context, resolution: Resolution, span: int, queue: str | None
) -> CallPlan[DepthPage]:
    """Read the depths of each queue by one command."""
    names = (yield from known(context)) if queue is None else [queue]
    now, length = int((yield from now_of(context))), resolution.length
    periods = range(max(resolution.oldest(now), (now - span) // length), now // length + 1)
    rows: list[DepthRow] = []
    for some in chunks(names, _READ):
        keys = [_key(context, name, resolution) for name in some]
        calls = [(name, command(key, "HVALS", key)) for name, key in zip(some, keys, strict=True)]
        answers = yield from each(context, calls)
        for name, answer in zip(some, answers, strict=True):
            found = [] if answer is AWAY else sorted(_depths(answer))
            rows += [DepthRow(name, at * length, QueueDepth(*of)) for at, *of in found if at in periods]
    return DepthPage(rows, now)


def depth_keys(context: Context, queue: str) -> list[bytes]:
    """The keys of a queue's depths."""
    return [_key(context, queue, one) for one in Resolution]


def _key(context: Context, queue: str, resolution: Resolution) -> bytes:
    return context.redis_keys.queue(queue) + f":depth/{resolution.value}".encode()


def _depths(values: Sequence[bytes]) -> Iterator[tuple[int, ...]]:
    for value in values:
        try:
            yield _decode(value)
        except msgspec.DecodeError:
            continue  # not written by Penstock
