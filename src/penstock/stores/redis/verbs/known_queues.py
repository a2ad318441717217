"""The list of all queues of a namespace, and reads that span all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.stores.redis.context import CallPlan, Context, command
from penstock.stores.redis.isolation import AWAY, each
from penstock.stores.redis.layout import counters_of
from penstock.stores.redis.outages import SHARED
from penstock.stores.redis.wire.calls import Call

__all__ = [
    "highest",
    "known",
    "known_flow_queues",
    "list_again",
    "now_of",
    "probes",
    "register",
    "register_call",
    "register_for_flows",
]

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
    (names,) = yield from each(context, [(SHARED, command(key, "SMEMBERS", key))])
    if names is AWAY:
        met = (context.met | context.listed) - {SHARED}
        if not met:
            raise context.unavailable([SHARED])
        return sorted(met)
    return sorted(name.decode() for name in names if _is_name(name))


def _is_name(name: bytes) -> bool:
    """Return True for a valid name: the list may contain entries that Penstock did not write."""
    return _NAME(name) is not None


def highest(context: Context) -> CallPlan[None]:
    """Read the highest generation of all queues.

    Generations follow the clock, which orders jobs over queues; this call does so while a test stops the
    clock.
    """
    names = yield from known(context)
    calls = []
    for name in names:
        key = context.redis_keys.queue(name)
        calls.append((name, command(key, "HGET", key + b":meta", "counters")))
    found = (yield from each(context, calls)) if calls else []
    context.floor = max([context.floor, *(counters_of(one).generation for one in found if one is not AWAY)])


def register(context: Context, queues: set[str]) -> CallPlan[None]:
    """Put names on the list of all queues; if the list is away, the prober does it once the list is back."""
    (done,) = yield from each(context, [(SHARED, register_call(context, queues))])
    if done is AWAY:
        context.met |= queues
    else:
        context.listed |= queues


def register_for_flows(context: Context, queues: set[str]) -> CallPlan[None]:
    """Put names on the lists of all queues and of those with flows, before a flow is changed."""
    key = context.redis_keys.flow_queues
    calls = [register_call(context, queues), command(key, "SADD", key, *sorted(queues))]
    if AWAY in (yield from each(context, [(SHARED, call) for call in calls])):
        context.met |= queues
    else:
        context.listed |= queues


def list_again(context: Context, queues: Sequence[str]) -> CallPlan[None]:
    """Put those of these queues that exist on the lists again.

    The server of the lists may have lost them, for example in a failover, while that of a queue has kept its
    jobs: nobody would find its periodic entries, or the ends of its flows.
    """
    calls: list[tuple[str, Call]] = []
    for name in queues:
        key = context.redis_keys.queue(name)
        calls += [(name, command(key, "EXISTS", key + part)) for part in (b":meta", b":flows", b":ends")]
    found = (yield from each(context, calls)) if calls else []
    there = [n for n, one in enumerate(found) if one is not AWAY and one]
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
        if name == SHARED and (met := (context.met | context.listed) - {SHARED}):
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
        for queue in sorted(context.met - {SHARED})[:_CLOCKS]
    ]
    for name, key in keys if context.apart else keys[:1]:
        (answer,) = yield from each(context, [(name, context.shared_call("now", key, ()))])
        if answer is not AWAY:
            return int(answer)
    raise context.unavailable([SHARED])
