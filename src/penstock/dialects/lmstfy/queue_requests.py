"""Requests about a whole queue: its head, its size, its destruction."""

from __future__ import annotations

from penstock.core.job import State
from penstock.dialects.lmstfy import store_gaps
from penstock.dialects.lmstfy.backend import Backend
from penstock.dialects.lmstfy.bodies import answer, error, plain_reply, removed
from penstock.dialects.lmstfy.jobs import exists, shown
from penstock.dialects.lmstfy.names import store_queue

__all__ = ["destroyed", "head", "size"]

#: Jobs that are looked at for one that has not expired.
_HEADS = 100


async def head(backend: Backend, namespace: str, queue: str, given: dict[str, str]) -> bytes:
    """The next job of a queue; nothing changes. Expired jobs are passed over."""
    jobs = await store_gaps.oldest(backend.store, store_queue(namespace, queue), State.AVAILABLE, _HEADS)
    now = backend.now
    for job in jobs:
        if exists(job, now):
            return plain_reply(200, shown(job, namespace, queue, now))
    return error(404, "the queue is empty")


async def size(backend: Backend, namespace: str, queue: str, given: dict[str, str]) -> bytes:
    """The number of jobs of a queue that are ready, exactly."""
    counts = await backend.counted(store_queue(namespace, queue))
    return answer(200, namespace=namespace, queue=queue, size=counts.get(State.AVAILABLE, 0))


async def destroyed(backend: Backend, namespace: str, queue: str, given: dict[str, str]) -> bytes:
    """Remove the ready jobs of a queue, and the queue if it has no others."""
    stored = store_queue(namespace, queue)
    await store_gaps.purge(backend.store, stored, State.AVAILABLE)
    await backend.store.drop(stored)
    return removed()
