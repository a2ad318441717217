"""List collecting batches, and make one available early."""

from __future__ import annotations

from typing import Any

from penstock.stores.contract import BatchInfo
from penstock.stores.redis.context import CallPlan, Context, raise_errors
from penstock.stores.redis.isolation import AWAY, any_of, isolated
from penstock.stores.redis.keys import id_of
from penstock.stores.redis.verbs.known_queues import highest, known

__all__ = ["flush_batch", "list_batches"]


@isolated
def list_batches(context: Context, queue: str | None, limit: int) -> CallPlan[list[BatchInfo]]:
    """List collecting batches of one queue, or of all."""
    names = (yield from known(context)) if queue is None else [queue]
    calls = [(name, context.call("batches", [name], [limit])) for name in names]
    answers = (yield from any_of(context, calls)) if names else []
    found = [
        one
        for name, answer in zip(names, answers, strict=True)
        if answer is not AWAY
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
