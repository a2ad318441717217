"""wait: check for work, offer to take a job directly, pass wake-ups on, and notify all waiters.

All waiters are notified of requests to stop and of changes of settings: the namespace counts them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.core.errors import StoreError, StoreTooOld, StoreUnavailable
from penstock.stores.contract import MOST_FETCHED, WorkerOffer
from penstock.stores.own_store import WakeCounts
from penstock.stores.redis.context import CallPlan, Context, command, int_or_zero, raise_errors
from penstock.stores.redis.isolation import MISSING, call_any, call_each, skips_corrupt_queues
from penstock.stores.redis.layout import LAYOUT
from penstock.stores.redis.script_arguments import chunks
from penstock.stores.redis.unusable_queues import SHARED
from penstock.stores.redis.verbs.known_queues import highest
from penstock.stores.redis.wire.calls import Call

_log = logging.getLogger("penstock.stores")


def counts_call(context: Context) -> Call:
    """Return the call that reads the counts of requests to stop and of changes of settings."""
    key = context.redis_keys.wake_counts
    return command(key, "HMGET", key, "cancels", "changes")


def notify_all_waiters(context: Context, what: str) -> CallPlan[None]:
    """Count a request to stop or a change of settings, then notify all waiters.

    The change is stored, so nothing here fails the call: if this process dies in between, or the notification
    fails, heartbeats and the re-checks of waiters find the change.
    """
    try:
        yield from _notify_all_waiters(context, what)
    except StoreError as error:
        _log.warning("waiters were not notified of a change; they find it at their next check: %s", error)


def _notify_all_waiters(context: Context, what: str) -> CallPlan[None]:
    keys = context.redis_keys
    count = command(keys.wake_counts, "HINCRBY", keys.wake_counts, what, 1)
    publish = command(keys.wake_counts, "PUBLISH", keys.notice_channel, what)
    try:
        yield from call_each(context, [(SHARED, count), (SHARED, publish)])
    except StoreUnavailable:
        raise
    except StoreError:  # another program has overwritten the count: continue above all counts reported so far
        (now,) = yield from call_each(context, [(SHARED, context.shared_call("now", keys.wake_counts, ()))])
        if now is not MISSING:
            anew = command(keys.wake_counts, "HSET", keys.wake_counts, what, int(now))
            yield from call_each(context, [(SHARED, anew), (SHARED, publish)])


def begin(context: Context) -> CallPlan[Any]:
    """Read the counts at the first verb of a store object; no wait reports events from before it.

    Raises StoreTooOld if the namespace has queues in the layout of an earlier version.
    """
    earlier = context.redis_keys.queues_of_earlier
    looks = [(SHARED, command(key, "EXISTS", key)) for key in earlier.values()]
    counts, *found = yield from call_each(context, [(SHARED, counts_call(context)), *looks])
    for layout, queues in zip(earlier, found, strict=True):
        if queues is not MISSING and queues:
            raise _old_layout(context, layout)
    if context.steered:
        yield from highest(context)
    return (None, None) if counts is MISSING else counts


def _old_layout(context: Context, layout: int) -> StoreTooOld:
    keys = context.redis_keys
    return StoreTooOld(
        f"{keys.name_of_namespace} was written by an earlier version of Penstock (key layout {layout}; this "
        f"version has {LAYOUT}): finish its jobs and delete its queues with that version, or use another "
        f"namespace"
    )


#: Most queues of a worker that makes offers.
_MOST_OFFERED = 100


class LookAnswer(NamedTuple):
    """What a wait has found."""

    work: bool
    till: str  # the instant at which the wait ends
    counts: WakeCounts
    dues: list[tuple[int, int]]  # by server: the first instant at which something is due, and its clock


def offer_of(context: Context, queues: Sequence[str], offer: WorkerOffer) -> str:
    """Return a worker's offer in the form that producers read; "" on a Cluster, or for many queues.

    There are no offers on a Cluster, because no script could withdraw one from the queues of other slots.
    Each of the queues stores the offer, with the names of all.
    """
    if context.clustered or len(queues) > _MOST_OFFERED:
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


@skips_corrupt_queues
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
    if context.queue_by_queue or len(queues) > MOST_FETCHED:
        more = () if context.clustered else (context.redis_keys.wake_counts,)
        calls = []
        for part in chunks(queues, 1 if context.queue_by_queue else MOST_FETCHED):
            known = [n for n, queue in enumerate(part, 1) if queue in parked]
            call = context.call("look", part, [*args, *known])
            calls.append((part[0], call._replace(redis_keys=(*call.redis_keys, *more))))
        counts, *answers = yield from call_any(context, [(SHARED, counts_call(context)), *calls])
        counts = (None, None) if counts is MISSING else counts
        answers = [answer for answer in answers if answer is not MISSING]
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
    raise_errors((yield [context.call("pass_on", [queue], [kind])]))
