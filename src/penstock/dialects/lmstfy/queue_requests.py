"""Requests about a whole queue: its head, its size, its destruction."""

from __future__ import annotations

from contextlib import aclosing

from penstock.core.job import State
from penstock.dialects.lmstfy.backend import Backend
from penstock.dialects.lmstfy.bodies import answer, error, plain_reply, removed
from penstock.dialects.lmstfy.jobs import exists, shown
from penstock.dialects.lmstfy.names import store_queue

__all__ = ["destroyed", "head", "size"]

#: Jobs of a page in which a job that has not expired is searched.
_HEADS = 100


async def head(backend: Backend, namespace: str, queue: str, given: dict[str, str]) -> bytes:
    """The next job of a queue; nothing changes. Expired jobs are passed over."""
    stored = store_queue(namespace, queue)
    async with aclosing(backend.each_page(stored, State.AVAILABLE, _HEADS)) as pages:
        async for jobs in pages:
            now = backend.now
            for job in jobs:
                if exists(job, now):
                    return plain_reply(200, shown(job, namespace, queue, now))
    return error(404, "the queue is empty")


async def size(backend: Backend, namespace: str, queue: str, given: dict[str, str]) -> bytes:
    """The number of ready jobs of a queue, exactly; with `all=true`, also those of the other states."""
    every = given.get("all") in ("1", "true")
    counts = await backend.counted(store_queue(namespace, queue), None if every else State.AVAILABLE)
    if every:
        return answer(
            200,
            namespace=namespace,
            queue=queue,
            size=counts.get(State.AVAILABLE, 0),
            delayed=counts.get(State.SCHEDULED, 0) + counts.get(State.RETRYABLE, 0),
            reserved=counts.get(State.RUNNING, 0),
            dead=counts.get(State.DEAD, 0),
        )
    return answer(200, namespace=namespace, queue=queue, size=counts.get(State.AVAILABLE, 0))


async def destroyed(backend: Backend, namespace: str, queue: str, given: dict[str, str]) -> bytes:
    """Remove the ready jobs of a queue, and the queue if it has no others."""
    stored = store_queue(namespace, queue)
    await backend.purge(stored, State.AVAILABLE)
    await backend.store.drop(stored)
    return removed()
