"""Dead letters: jobs whose tries are spent. They are kept until they are respawned or deleted."""

from __future__ import annotations

from contextlib import aclosing

from penstock.core.job import State
from penstock.dialects.lmstfy.backend import Backend
from penstock.dialects.lmstfy.bodies import answer, removed
from penstock.dialects.lmstfy.names import store_queue
from penstock.dialects.lmstfy.parameters import RefusedError, signed
from penstock.stores.contract import MOST_LISTED

__all__ = ["deleted", "head", "respawned", "size"]


async def head(backend: Backend, namespace: str, queue: str, given: dict[str, str]) -> bytes:
    """The id of the oldest dead letter, and their number."""
    stored = store_queue(namespace, queue)
    first = ""
    async with aclosing(backend.each_page(stored, State.DEAD, 1)) as pages:
        async for jobs in pages:
            first = jobs[0].id
            break
    number = (await backend.counted(stored)).get(State.DEAD, 0)
    return answer(200, deadletter_head=first, deadletter_size=number, namespace=namespace, queue=queue)


async def respawned(
    backend: Backend, namespace: str, queue: str, given: dict[str, str], default_ttl: int
) -> bytes:
    """Make the oldest dead letters available again, with one try and a new TTL (s); 0: none."""
    limit = _limit(given)
    ttl = signed(given, "ttl", default_ttl)
    if ttl < 0:
        raise RefusedError(400, "invalid ttl")
    stored = store_queue(namespace, queue)
    count = 0
    async with aclosing(backend.each_page(stored, State.DEAD, min(limit, MOST_LISTED))) as pages:
        async for jobs in pages:
            refs = [job.ref for job in jobs[: limit - count]]
            states = await backend.store.retry(refs, attempts=1, expires_in=ttl * 1_000 or None)
            count += sum(state is State.DEAD for state in states)
            backend.dispatcher.work([stored])
            if count >= limit:
                break
    return answer(200, count=count, msg="respawned")


async def deleted(backend: Backend, namespace: str, queue: str, given: dict[str, str]) -> bytes:
    """Delete the oldest dead letters."""
    await backend.purge(store_queue(namespace, queue), State.DEAD, _limit(given))
    return removed()


async def size(backend: Backend, namespace: str, queue: str, given: dict[str, str]) -> bytes:
    """The number of dead letters."""
    counts = await backend.counted(store_queue(namespace, queue))
    return answer(200, namespace=namespace, queue=queue, size=counts.get(State.DEAD, 0))


def _limit(given: dict[str, str]) -> int:
    limit = signed(given, "limit", 1)
    if limit <= 0:
        raise RefusedError(400, "invalid limit")
    return limit
