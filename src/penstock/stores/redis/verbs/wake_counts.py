"""Counts of requests to stop and of changes of settings, and the notification of all waiters about them."""

from __future__ import annotations

from typing import Any

from penstock.core.errors import StoreError, StoreTooOld, StoreUnavailable
from penstock.stores.redis.context import CallPlan, Context, command
from penstock.stores.redis.isolation import AWAY, each
from penstock.stores.redis.keys import LAYOUT
from penstock.stores.redis.outages import SHARED
from penstock.stores.redis.verbs.known_queues import highest
from penstock.stores.redis.wire.calls import Call

__all__ = ["begin", "counts_call", "notify_all_waiters"]


def counts_call(context: Context) -> Call:
    """Return the call that reads the counts of requests to stop and of changes of settings."""
    key = context.redis_keys.wake_counts
    return command(key, "HMGET", key, "cancels", "changes")


def notify_all_waiters(context: Context, what: str) -> CallPlan[None]:
    """Count a request to stop or a change of settings, then notify all waiters.

    If this process dies in between, heartbeats and the re-checks of waiters find the change.
    """
    keys = context.redis_keys
    count = command(keys.wake_counts, "HINCRBY", keys.wake_counts, what, 1)
    publish = command(keys.wake_counts, "PUBLISH", keys.notice_channel, what)
    try:
        yield from each(context, [(SHARED, count), (SHARED, publish)])
    except StoreUnavailable:
        raise
    except StoreError:  # another program has overwritten the count: continue above all counts reported so far
        (now,) = yield from each(context, [(SHARED, context.shared_call("now", keys.wake_counts, ()))])
        if now is not AWAY:
            anew = command(keys.wake_counts, "HSET", keys.wake_counts, what, int(now))
            yield from each(context, [(SHARED, anew), (SHARED, publish)])


def begin(context: Context) -> CallPlan[Any]:
    """Read the counts at the first verb of a store object; no wait reports events from before it.

    Raises StoreTooOld if the namespace has queues in the layout of an earlier version.
    """
    earlier = context.redis_keys.queues_of_earlier
    looks = [(SHARED, command(key, "EXISTS", key)) for key in earlier.values()]
    counts, *found = yield from each(context, [(SHARED, counts_call(context)), *looks])
    for layout, queues in zip(earlier, found, strict=True):
        if queues is not AWAY and queues:
            raise _old_layout(context, layout)
    if context.steered:
        yield from highest(context)
    return (None, None) if counts is AWAY else counts


def _old_layout(context: Context, layout: int) -> StoreTooOld:
    keys = context.redis_keys
    return StoreTooOld(
        f"{keys.name_of_namespace} was written by an earlier version of Penstock (key layout {layout}; this "
        f"version has {LAYOUT}): finish its jobs and delete its queues with that version, or use another "
        f"namespace"
    )
