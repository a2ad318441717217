"""The list of all queues of a namespace, and what is asked of each of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.stores.redis.context import CallPlan, Context, command, int_or_zero
from penstock.stores.redis.isolation import AWAY, each
from penstock.stores.redis.outages import SHARED
from penstock.stores.redis.wire.calls import Call

__all__ = ["highest", "known", "listing", "now_of", "probes", "register"]

#: What a queue may be called.
_NAME = re.compile(rb"[A-Za-z0-9._:@+=~-]{1,128}").fullmatch


def known(context: Context) -> CallPlan[list[str]]:
    """All queues, by name. Where the list of a Cluster is away, those that this store object has met."""
    key = context.keys.queues
    (names,) = yield from each(context, [(SHARED, command(key, "SMEMBERS", key))])
    if names is AWAY:
        met = (context.met | context.listed) - {SHARED}
        if not met:
            raise context.unavailable([SHARED])
        return sorted(met)
    return sorted(name.decode() for name in names if _is_name(name))


def _is_name(name: bytes) -> bool:
    """What else is on the list is none of ours."""
    return _NAME(name) is not None


def highest(context: Context) -> CallPlan[None]:
    """Learn the highest generation of all queues. It is time that orders jobs over queues; where a test has
    stopped it, this does."""
    names = yield from known(context)
    calls = []
    for name in names:
        key = context.keys.queue(name)
        calls.append((name, command(key, "HGET", key + b":meta", "generation")))
    found = (yield from each(context, calls)) if calls else []
    context.floor = max([context.floor, *(int_or_zero(one) for one in found if one is not AWAY)])


def register(context: Context, queues: set[str]) -> CallPlan[None]:
    """Put names on the list of all queues. Where that is away, who asks for its return does it then."""
    (done,) = yield from each(context, [(SHARED, listing(context, queues))])
    if done is AWAY:
        context.met |= queues
    else:
        context.listed |= queues


def listing(context: Context, queues: set[str]) -> Call:
    return command(context.keys.queues, "SADD", context.keys.queues, *sorted(queues))


def probes(context: Context, names: Sequence[str]) -> list[Call]:
    """Whether these queues are served; where the list of all was away, it learns what we know."""
    calls = []
    for name in names:
        if name == SHARED and (met := (context.met | context.listed) - {SHARED}):
            calls.append(listing(context, met))
        else:
            key = context.keys.news if name == SHARED else context.keys.queue(name) + b":meta"
            calls.append(command(key, "EXISTS", key))
    return [call._replace(brief=True) for call in calls]


#: So many queues are asked what time it is, if the namespace's own server does not say.
_CLOCKS = 5


def now_of(context: Context) -> CallPlan[int]:
    """By the server of the namespace; where that is away, by any other."""
    keys = [(SHARED, context.keys.news)]
    keys += [
        (queue, context.keys.queue(queue) + b":meta") for queue in sorted(context.met - {SHARED})[:_CLOCKS]
    ]
    for name, key in keys if context.apart else keys[:1]:
        (answer,) = yield from each(context, [(name, context.shared_call("now", key, ()))])
        if answer is not AWAY:
            return int(answer)
    raise context.unavailable([SHARED])
