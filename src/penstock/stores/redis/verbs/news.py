"""Notices to all waiters: how many stop requests and changes of settings there have been."""

from __future__ import annotations

from typing import Any

from penstock.core.errors import StoreError, StoreTooOld, StoreUnavailable
from penstock.stores.redis.context import CallPlan, Context, command
from penstock.stores.redis.isolation import AWAY, each
from penstock.stores.redis.keys import LAYOUT
from penstock.stores.redis.outages import SHARED
from penstock.stores.redis.verbs.known_queues import highest
from penstock.stores.redis.wire.calls import Call

__all__ = ["begin", "news_call", "tell_news"]


def news_call(context: Context) -> Call:
    """The call that reads how many stop requests and changes of settings there have been."""
    key = context.keys.news
    return command(key, "HMGET", key, "cancels", "changes")


def tell_news(context: Context, what: str) -> CallPlan[None]:
    """Count a stop request or a change, then notify all waiters.

    If this process dies in between, heartbeats and the waiters' own checks find it.
    """
    keys = context.keys
    count = command(keys.news, "HINCRBY", keys.news, what, 1)
    tell = command(keys.news, "PUBLISH", keys.news_channel, what)
    try:
        yield from each(context, [(SHARED, count), (SHARED, tell)])
    except StoreUnavailable:
        raise
    except StoreError:  # somebody has written over the count: it goes on from more than anybody has heard
        (now,) = yield from each(context, [(SHARED, context.shared_call("now", keys.news, ()))])
        if now is not AWAY:
            anew = command(keys.news, "HSET", keys.news, what, int(now))
            yield from each(context, [(SHARED, anew), (SHARED, tell)])


def begin(context: Context) -> CallPlan[Any]:
    """The first question of a store object: the counts so far, of which no wait reports anything.

    Raises StoreTooOld if the namespace has queues in the layout of an earlier version.
    """
    old = context.keys.queues_of_layout_1
    news, queues = yield from each(
        context, [(SHARED, news_call(context)), (SHARED, command(old, "EXISTS", old))]
    )
    if queues is not AWAY and queues:
        raise _old_layout(context)
    if context.steered:
        yield from highest(context)
    return (None, None) if news is AWAY else news


def _old_layout(context: Context) -> StoreTooOld:
    keys = context.keys
    return StoreTooOld(
        f"{keys.name_of_namespace} was written by an earlier version of Penstock (key layout 1; this version "
        f"has {LAYOUT}): finish its jobs and delete its queues with that version, or use another namespace"
    )
