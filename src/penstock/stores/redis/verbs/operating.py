"""The verbs by which operators change jobs and queues: settings, retry, reschedule, delete, purge, drop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from penstock.core.job import Ref, State
from penstock.core.limits import LimitChange
from penstock.stores.contract import QueueInfo
from penstock.stores.redis.batching import CHANGED
from penstock.stores.redis.context import CallPlan, Context, command, raise_errors
from penstock.stores.redis.isolation import each
from penstock.stores.redis.layout import NUMBER
from penstock.stores.redis.outages import SHARED
from penstock.stores.redis.stored_limits import limit_values
from penstock.stores.redis.verbs.known_queues import register
from penstock.stores.redis.verbs.listing import infos_of
from penstock.stores.redis.verbs.measuring import drop_stats
from penstock.stores.redis.verbs.producing import states_of
from penstock.stores.redis.verbs.wake_counts import notify_all_waiters

__all__ = ["delete", "drop", "purge", "reschedule", "retry", "settings"]


def settings(
    context: Context, queue: str, paused: bool | None, closed: bool | None, limits: LimitChange | None
) -> CallPlan[QueueInfo]:
    """Change the switches and limits of a queue, and create it if it is missing."""
    wanted: list[Any] = ["" if value is None else int(value) for value in (paused, closed)]
    change = limits or LimitChange()
    wanted.append("" if change.throttle is UNSET else change.throttle or 0)
    wanted.append("code" if change.by_code else "operator")
    wanted += [value if value == "" else repr(value) for value in limit_values(change)]
    yield from register(context, {queue})
    (answer,) = raise_errors((yield [context.call("settings", [queue], wanted)]))
    if answer[0]:
        yield from notify_all_waiters(context, "changes")
    (info,) = yield from infos_of(context, [queue])
    return info or QueueInfo(queue, {})


def retry(
    context: Context,
    refs: Sequence[Ref],
    attempts: int | None,
    expires_in: int | UnsetType | None,
    *,
    completed: bool = True,
) -> CallPlan[list[State | None]]:
    """Make ended or queued jobs available now, as if they were new; `completed`: also completed ones."""
    left = "" if attempts is None else max(1, attempts)
    expires = "keep" if expires_in is UNSET else "" if expires_in is None else expires_in
    found, _ = yield from states_of(context, "retry", refs, [context.floor, left, expires, int(completed)])
    return found


def reschedule(
    context: Context, refs: Sequence[Ref], delay: int, run_at: int | None
) -> CallPlan[list[State | None]]:
    """Give queued jobs a new time."""
    args = [context.floor, delay, "" if run_at is None else run_at]
    found, _ = yield from states_of(context, "reschedule", refs, args)
    return found


def delete(
    context: Context, refs: Sequence[Ref], running: bool, keep_keys: bool
) -> CallPlan[list[State | None]]:
    """Remove jobs that are not running; with `running`, running jobs, too."""
    found, _ = yield from states_of(context, "delete", refs, [int(running), int(keep_keys)])
    return found


def purge(context: Context, queue: str, states: Sequence[State], limit: int) -> CallPlan[int]:
    """Remove the oldest jobs in these states, in steps."""
    wanted = ",".join(str(NUMBER[state]) for state in sorted(set(states) - {State.RUNNING}))
    gone = 0
    while gone < limit and wanted:
        step = min(CHANGED, limit - gone)
        (n,) = raise_errors((yield [context.call("purge", [queue], [step, wanted])]))
        gone += abs(n)
        if 0 <= n < step:
            break
    return gone


def drop(context: Context, queue: str) -> CallPlan[bool]:
    """Remove an empty queue with its settings; return False if it has jobs."""
    (answer,) = raise_errors((yield [context.call("drop", [queue], [])]))
    if answer < 0:
        return False
    yield from drop_stats(context, queue)
    lists = (context.redis_keys.queues, context.redis_keys.flow_queues)
    yield from each(context, [(SHARED, command(key, "SREM", key, queue)) for key in lists])
    context.listed.discard(queue)
    context.met.discard(queue)
    meta = context.redis_keys.queue(queue) + b":meta"
    (again,) = raise_errors((yield [command(meta, "EXISTS", meta)]))
    if again:  # the queue was created again, perhaps before it was taken off the list
        yield from register(context, {queue})
    if answer:
        yield from notify_all_waiters(context, "changes")
    return True
