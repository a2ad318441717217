"""The verbs by which operators change queues, batches and jobs: settings, delete, purge, drop, flush."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from penstock.core.job import Ref, State
from penstock.core.limits import LimitChange
from penstock.stores.contract import BatchInfo, QueueInfo
from penstock.stores.redis.context import CallPlan, Context, command, raise_errors
from penstock.stores.redis.isolation import MISSING, call_any, call_each, skips_corrupt_queues
from penstock.stores.redis.layout import NUMBER, id_of
from penstock.stores.redis.script_arguments import CHANGED
from penstock.stores.redis.stored_limits import limit_values
from penstock.stores.redis.unusable_queues import SHARED
from penstock.stores.redis.verbs.known_queues import highest, known, register
from penstock.stores.redis.verbs.listing import infos_of
from penstock.stores.redis.verbs.measuring import drop_stats
from penstock.stores.redis.verbs.producing import states_of
from penstock.stores.redis.verbs.waiting import notify_all_waiters


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
    yield from infos_of(context, [queue])  # what cannot be read is an error before the change, not after it
    (answer,) = raise_errors((yield [context.call("settings", [queue], wanted)]))
    if answer[0]:
        yield from notify_all_waiters(context, "changes")
    (info,) = yield from infos_of(context, [queue])
    return info or QueueInfo(queue, {})


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
    yield from call_each(context, [(SHARED, command(key, "SREM", key, queue)) for key in lists])
    context.listed.discard(queue)
    context.used.discard(queue)
    meta = context.redis_keys.queue(queue) + b":meta"
    (again,) = raise_errors((yield [command(meta, "EXISTS", meta)]))
    if again:  # the queue was created again, perhaps before it was taken off the list
        yield from register(context, {queue})
    if answer:
        yield from notify_all_waiters(context, "changes")
    return True


@skips_corrupt_queues
def batches(context: Context, queue: str | None, limit: int) -> CallPlan[list[BatchInfo]]:
    """List collecting batches of one queue, or of all."""
    names = (yield from known(context)) if queue is None else [queue]
    calls = [(name, context.call("batches", [name], [limit])) for name in names]
    answers = yield from call_any(context, calls)
    found = [
        one
        for name, answer in zip(names, answers, strict=True)
        if answer is not MISSING
        for one in _batches_of(name, answer)
    ]
    return sorted(found, key=BatchInfo.order)[: max(0, limit)]


def _batches_of(queue: str, answer: list[Any]) -> list[BatchInfo]:
    found: list[BatchInfo] = []
    for i in range(0, len(answer), 4):
        name, size, oldest, due = answer[i : i + 4]
        task, _, key = name.decode().partition("\0")
        found.append(BatchInfo(queue, task, key, size, int(oldest), int(due) if due else None))
    return found


def flush_batch(context: Context, queue: str, task: str, key: str) -> CallPlan[str | None]:
    """Make a collecting batch available now; return the id of its job, None if it has no members."""
    if context.clustered and context.steered:
        yield from highest(context)
    call = context.call("flush_batch", [queue], [context.floor, f"{task}\0{key}"], repeatable=False)
    ((newest, made),) = raise_errors((yield [call]))
    context.floor = max(context.floor, int(newest))
    return None if made is None else id_of(made)
