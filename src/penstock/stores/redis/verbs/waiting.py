"""wait: check for work, offer to take a job directly, pass wake-ups on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.stores.contract import WorkerOffer
from penstock.stores.redis.context import CallPlan, Context, command, int_or_zero, raise_errors
from penstock.stores.redis.isolation import AWAY, any_of, isolated
from penstock.stores.redis.outages import SHARED
from penstock.stores.redis.verbs.wake_counts import counts_call
from penstock.stores.wake_counts import WakeCounts

__all__ = ["LookAnswer", "look", "pass_on"]


class LookAnswer(NamedTuple):
    """What a wait has found."""

    work: bool
    till: str  # the instant at which the wait ends
    counts: WakeCounts
    dues: list[tuple[int, int]]  # by server: the first instant at which something is due, and its clock


def offer_of(context: Context, queues: Sequence[str], offer: WorkerOffer) -> str:
    """Return a worker's offer in the form that producers read; "" on a Cluster.

    There are no offers on a Cluster, because no script could withdraw one from the queues of other slots.
    """
    if context.clustered:
        return ""
    parts = [
        str(offer.lease),
        offer.token,
        offer.worker,
        *(context.redis_keys.queue(q).decode() for q in queues),
    ]
    fits = len(offer.token.encode()) < 256 and not any("\n" in part for part in parts)
    return "\n".join(parts) if fits else ""


def withdraw(context: Context, queues: Sequence[str], channel: str) -> CallPlan[None]:
    """Remove a channel from the waiters and offers of these queues."""
    calls = []
    for key in map(context.redis_keys.queue, queues):
        calls.append(command(key, "ZREM", key + b":waiters", channel))
        calls.append(command(key, "HDEL", key + b":offers", channel))
    yield calls


@isolated
def look(
    context: Context,
    queues: Sequence[str],
    timeout: int,
    till: str,
    channel: str,
    offer: str,
    parked: Sequence[str] = (),
    ends_at_due: bool = True,
) -> CallPlan[LookAnswer]:
    """Check for work; if there is none, add the channel to the waiters of these queues.

    `ends_at_due`: whether what is due before the end of the wait is work.
    """
    args: list[bytes | str | int] = [timeout, till, channel, offer, int(ends_at_due)]
    if context.apart:
        more = () if context.clustered else (context.redis_keys.wake_counts,)
        calls = []
        for queue in queues:
            call = context.call("look", [queue], [*args, *([1] if queue in parked else [])])
            calls.append((queue, call._replace(redis_keys=(*call.redis_keys, *more))))
        counts, *answers = yield from any_of(context, [(SHARED, counts_call(context)), *calls])
        counts = (None, None) if counts is AWAY else counts
        answers = [answer for answer in answers if answer is not AWAY]
    else:
        call = context.call(
            "look", queues, args + [n for n, queue in enumerate(queues, 1) if queue in parked]
        )
        answers = raise_errors(
            (yield [call._replace(redis_keys=(*call.redis_keys, context.redis_keys.wake_counts))])
        )
        counts = answers[0][2]
    said = till or (answers[0][1].decode() if answers else "")
    dues = [(int(answer[3]), int(answer[4])) for answer in answers if len(answer) > 3 and answer[3]]
    work = any(answer[0] for answer in answers)
    return LookAnswer(work, said, WakeCounts(*map(int_or_zero, counts)), dues)


def pass_on(context: Context, queue: str, kind: bytes) -> CallPlan[None]:
    """Pass a wake-up whose wait has ended on to the next waiter of its queue."""
    raise_errors((yield [context.call("pass", [queue], [kind])]))
