"""promote: make due jobs available."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.stores.contract import Due
from penstock.stores.redis.context import CallPlan, Context, command, raise_errors
from penstock.stores.redis.isolation import AWAY, alone, any_of, isolated

__all__ = ["first_in_order", "promote"]

#: Most jobs that one script promotes.
_PROMOTED = 1_000


@isolated
def promote(context: Context, queues: Sequence[str], limit: int) -> CallPlan[Due]:
    """Make due jobs available, the earliest first over all queues."""
    if not context.apart or len(queues) < 2:
        due = (yield from _promote(context, queues, limit))[0]
        return msgspec.structs.replace(due, set_aside=context.set_asides.take())
    moved, now, again = 0, 0, True
    dues: list[int] = []
    while again:  # the parts of the limit that some queues did not use are offered to all queues again
        firsts = yield from first_in_order(context, queues, ":due", limit)
        dues, again, left = [], False, limit
        for queue in queues:
            promoted = yield from alone(context, queue, _promote(context, [queue], firsts.count(queue)))
            if promoted is AWAY:
                continue
            part, used, skipped = promoted
            moved, now, left = moved + part.moved, max(now, part.now), left - used
            again = again or skipped
            if part.next is not None:
                dues.append(part.next)
        limit, again = left, again and left > 0
    return Due(moved, min(dues, default=None), now, context.set_asides.take())


def _promote(context: Context, queues: Sequence[str], limit: int) -> CallPlan[tuple[Due, int, bool]]:
    """Promote in steps that block the server for at most 5 ms.

    Returns the result, how much of the limit was used, and whether some entries became due later meanwhile.
    """
    moved, used = 0, 0
    while True:
        step = min(_PROMOTED, limit - used)
        (answer,) = raise_errors((yield [context.call("promote", queues, [step, context.floor])]))
        moved, used = moved + answer[0], used + answer[3]
        context.floor = max(context.floor, int(answer[5]))
        context.note_set_aside(answer[6:])
        if answer[3] < step or used >= limit:
            due = Due(moved, int(answer[1]) if answer[1] else None, int(answer[2]))
            return due, used, answer[4] == 1


def first_in_order(context: Context, queues: Sequence[str], order: str, limit: int) -> CallPlan[list[str]]:
    """Return the queues of the first `limit` entries of an index, over several slots."""
    calls = []
    for queue in queues:
        key = context.redis_keys.queue(queue) + order.encode()
        calls.append((queue, command(key, "ZRANGE", key, 0, max(0, limit - 1), "WITHSCORES")))
    entries = [
        (float(answer[i + 1]), answer[i], queue)
        for queue, answer in zip(queues, (yield from any_of(context, calls)), strict=True)
        if answer is not AWAY
        for i in range(0, len(answer), 2)
    ]
    return [queue for _, _, queue in sorted(entries)[: max(0, limit)]]
