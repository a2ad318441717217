"""Samples of the depths of queues on Redis: a hash per queue and resolution, which has a place per period."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import msgspec

from penstock.core.queue_depth import QueueDepth, enqueued_between
from penstock.stores.contract import DepthPage, DepthRow, Resolution
from penstock.stores.redis.batching import chunks
from penstock.stores.redis.context import CallPlan, Context, command
from penstock.stores.redis.isolation import AWAY, any_of, each, isolated
from penstock.stores.redis.layout import counters_of
from penstock.stores.redis.verbs.known_queues import known, now_of
from penstock.stores.redis.wire.calls import Call

__all__ = ["depth_keys", "read_depths", "sample_depths"]

#: Most queues of one script, which then blocks the server for at most 5 ms, and of one round trip that reads.
_SAMPLED, _READ = 50, 100
_RESOLUTIONS = [word for one in Resolution for word in (one.value, one.length, one.kept)]
_MINUTE = Resolution.MINUTE.length


class _Record(msgspec.Struct, array_like=True, frozen=True):
    """A period with its depth, as a script stores it; see `QueueDepth`."""

    period: int
    samples: int
    available: int
    running: int
    later: int
    peak: int
    #: The total of enqueued jobs at the first sample of the period; None in older records.
    total: int | None = None

    def depth(self, enqueued: int | None) -> QueueDepth:
        return QueueDepth(self.samples, self.available, self.running, self.later, self.peak, enqueued)


_decode = msgspec.msgpack.Decoder(_Record).decode


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
    """Read the depths of each queue by one command, and its total of enqueued jobs by another."""
    names = (yield from known(context)) if queue is None else [queue]
    now, length = int((yield from now_of(context))), resolution.length
    periods = range(max(resolution.oldest(now), (now - span) // length), now // length + 1)
    rows: list[DepthRow] = []
    for some in chunks(names, _READ):
        calls = [call for name in some for call in _reads(context, name, resolution)]
        answers = yield from each(context, calls)
        for name, records, counters in zip(some, answers[0::2], answers[1::2], strict=True):
            if records is AWAY or counters is AWAY:
                continue
            found = [one for one in _records(records) if one.period in periods]
            enqueued = enqueued_between([one.total for one in found], counters_of(counters).enqueued)
            rows += [
                DepthRow(name, one.period * length, one.depth(number))
                for one, number in zip(found, enqueued, strict=True)
            ]
    return DepthPage(rows, now)


def depth_keys(context: Context, queue: str) -> list[bytes]:
    """The keys of a queue's depths."""
    return [_key(context, queue, one) for one in Resolution]


def _key(context: Context, queue: str, resolution: Resolution) -> bytes:
    return context.redis_keys.queue(queue) + f":depth/{resolution.value}".encode()


def _reads(context: Context, queue: str, resolution: Resolution) -> list[tuple[str, Call]]:
    """The commands that read its depths, and its counters."""
    depths, meta = _key(context, queue, resolution), context.redis_keys.queue(queue) + b":meta"
    return [(queue, command(depths, "HVALS", depths)), (queue, command(meta, "HGET", meta, "counters"))]


def _records(values: Sequence[bytes]) -> list[_Record]:
    """The records of a queue, oldest first."""
    found = []
    for value in values:
        try:
            found.append(_decode(value))
        except msgspec.DecodeError:
            continue  # not written by Penstock
    return sorted(found, key=attrgetter("period"))
