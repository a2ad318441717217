"""The list of all queues of a namespace, and reads that span all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.stores.redis.context import CallPlan, Context, command
from penstock.stores.redis.isolation import MISSING, call_each
from penstock.stores.redis.layout import counters_of
from penstock.stores.redis.unusable_queues import SHARED
from penstock.stores.redis.wire.calls import Call

#: Matches valid names of queues.
_NAME = re.compile(rb"[A-Za-z0-9._:@+=~-]{1,255}").fullmatch


def known(context: Context) -> CallPlan[list[str]]:
    """Return the names of all queues, sorted; while the list is away, those used by this store object."""
    return (yield from _names_on(context, context.redis_keys.queues))


def known_flow_queues(context: Context) -> CallPlan[list[str]]:
    """Return the names of the queues with flows, or jobs of flows, as `known` does for all.

    So maintenance of flows costs one command where there are none.
    """
    return (yield from _names_on(context, context.redis_keys.flow_queues))


def _names_on(context: Context, key: bytes) -> CallPlan[list[str]]:
    (names,) = yield from call_each(context, [(SHARED, command(key, "SMEMBERS", key))])
    if names is MISSING:
        met = (context.used | context.listed) - {SHARED}
        if not met:
            raise context.unavailable([SHARED])
        return sorted(met)
    # another program may have written other entries
    return sorted(name.decode() for name in names if _NAME(name) is not None)


def highest(context: Context) -> CallPlan[None]:
    """Read the highest generation of all queues.

    Generations follow the clock, which orders jobs over queues; this call does so while a test stops the
    clock.
    """
    names = yield from known(context)
    calls = [context.on_key(name, b":meta", "HGET", "counters") for name in names]
    found = yield from call_each(context, calls)
    context.floor = max(
        [context.floor, *(counters_of(one).generation for one in found if one is not MISSING)]
    )


def register(context: Context, queues: set[str]) -> CallPlan[None]:
    """Put names on the list of all queues; if the list is away, the prober does it once the list is back."""
    (done,) = yield from call_each(context, [(SHARED, register_call(context, queues))])
    if done is MISSING:
        context.used |= queues
    else:
        context.listed |= queues


def register_for_flows(context: Context, queues: set[str]) -> CallPlan[None]:
    """Put names on the lists of all queues and of those with flows, before a flow is changed."""
    key = context.redis_keys.flow_queues
    calls = [register_call(context, queues), command(key, "SADD", key, *sorted(queues))]
    if MISSING in (yield from call_each(context, [(SHARED, call) for call in calls])):
        context.used |= queues
    else:
        context.listed |= queues


def list_again(context: Context, queues: Sequence[str]) -> CallPlan[None]:
    """Put those of these queues that exist on the lists again.

    The server of the lists may have lost them, for example in a failover, while that of a queue has kept its
    jobs: nobody would find its periodic entries, or the ends of its flows.
    """
    parts = (b":meta", b":flows", b":ends")
    calls = [context.on_key(name, part, "EXISTS") for name in queues for part in parts]
    found = yield from call_each(context, calls)
    there = [n for n, one in enumerate(found) if one is not MISSING and one]
    with_jobs, with_flows = {calls[n][0] for n in there}, {calls[n][0] for n in there if n % 3}
    if with_flows:
        yield from register_for_flows(context, with_flows)
    if with_jobs - with_flows:
        yield from register(context, with_jobs - with_flows)


def register_call(context: Context, queues: set[str]) -> Call:
    """Return the call that puts names on the list of all queues."""
    return command(context.redis_keys.queues, "SADD", context.redis_keys.queues, *sorted(queues))


def probes(context: Context, names: Sequence[str]) -> list[Call]:
    """Return calls that succeed if these queues are served again; missed names are put on the list."""
    calls = []
    for name in names:
        if name == SHARED and (met := (context.used | context.listed) - {SHARED}):
            calls.append(register_call(context, met))
        else:
            key = (
                context.redis_keys.wake_counts
                if name == SHARED
                else context.redis_keys.queue(name) + b":meta"
            )
            calls.append(command(key, "EXISTS", key))
    return [call._replace(brief=True) for call in calls]


#: Most queues whose servers are asked for the time if the server of the namespace does not answer.
_CLOCKS = 5


def now_of(context: Context) -> CallPlan[int]:
    """Return the time of the namespace's server, or of another server while that one is away."""
    keys = [(SHARED, context.redis_keys.wake_counts)]
    keys += [
        (queue, context.redis_keys.queue(queue) + b":meta")
        for queue in sorted(context.used - {SHARED})[:_CLOCKS]
    ]
    for name, key in keys if context.queue_by_queue else keys[:1]:
        (answer,) = yield from call_each(context, [(name, context.shared_call("now", key, ()))])
        if answer is not MISSING:
            return int(answer)
    raise context.unavailable([SHARED])
