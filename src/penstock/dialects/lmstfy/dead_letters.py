"""Dead letters: jobs whose tries are spent. They are kept until they are respawned or deleted."""

from __future__ import annotations

from contextlib import aclosing

from penstock.core.errors import ConfigError
from penstock.core.formats import iso
from penstock.core.job import Ref, State
from penstock.dialects.lmstfy.backend import Backend
from penstock.dialects.lmstfy.bodies import answer, removed
from penstock.dialects.lmstfy.defaults import Defaults
from penstock.dialects.lmstfy.job_ids import elapsed_ms
from penstock.dialects.lmstfy.names import store_queue
from penstock.dialects.lmstfy.parameters import RefusedError, signed
from penstock.dialects.lmstfy.routes import Route
from penstock.stores.contract import MOST_LISTED

__all__ = [
    "deleted",
    "deleted_job",
    "head",
    "listed",
    "made_available",
    "oldest",
    "respawned",
    "respawned_job",
    "size",
]


async def head(backend: Backend, namespace: str, queue: str, given: dict[str, str]) -> bytes:
    """The id of the oldest dead letter, and their number."""
    stored = store_queue(namespace, queue)
    first = await backend.old_dead_head(stored) or await oldest(backend, stored)
    number = (await backend.counted(stored, State.DEAD)).get(State.DEAD, 0)
    return answer(200, deadletter_head=first, deadletter_size=number, namespace=namespace, queue=queue)


async def oldest(backend: Backend, stored: str) -> str:
    """The id of the oldest dead letter of a queue of the store, or ""."""
    async with aclosing(backend.each_page(stored, State.DEAD, 1)) as pages:
        async for jobs in pages:
            return jobs[0].id
    return ""


async def respawned(
    backend: Backend, namespace: str, queue: str, given: dict[str, str], default_ttl: int
) -> bytes:
    """Make the oldest dead letters available again, with one try and a new TTL (s); 0: none."""
    limit = _limit(given)
    ttl = signed(given, "ttl", default_ttl)
    if ttl < 0:
        raise RefusedError(400, "invalid ttl")
    stored = store_queue(namespace, queue)
    count = await backend.old_respawned(stored, limit, ttl)
    if count < limit:
        count += await made_available(backend, stored, limit - count, ttl)
    return answer(200, count=count, msg="respawned")


async def made_available(backend: Backend, stored: str, limit: int, ttl: int) -> int:
    """Respawn the oldest dead letters of a queue of the store; returns their number."""
    count = 0
    async with aclosing(backend.each_page(stored, State.DEAD, min(limit, MOST_LISTED))) as pages:
        async for jobs in pages:
            refs = [job.ref for job in jobs[: limit - count]]
            states = await backend.store.retry(refs, attempts=1, expires_in=ttl * 1_000 or None)
            count += sum(state is State.DEAD for state in states)
            backend.dispatcher.work([stored])
            if count >= limit:
                break
    return count


async def deleted(backend: Backend, namespace: str, queue: str, given: dict[str, str]) -> bytes:
    """Delete the oldest dead letters."""
    await backend.purge(store_queue(namespace, queue), State.DEAD, _limit(given))
    return removed()


async def size(backend: Backend, namespace: str, queue: str, given: dict[str, str]) -> bytes:
    """The number of dead letters."""
    counts = await backend.counted(store_queue(namespace, queue), State.DEAD)
    return answer(200, namespace=namespace, queue=queue, size=counts.get(State.DEAD, 0))


async def listed(backend: Backend, namespace: str, queue: str, given: dict[str, str]) -> bytes:
    """A page of dead letters, oldest first: at most `limit`, from the one after the cursor `after` on."""
    limit = min(_limit(given, 100), MOST_LISTED)
    stored = store_queue(namespace, queue)
    try:
        page = await backend.store.list_next(stored, state=State.DEAD, after=given.get("after"), limit=limit)
    except ConfigError:
        raise RefusedError(400, "invalid after") from None
    jobs = [
        {
            "job_id": job.id,
            "elapsed_ms": elapsed_ms(job.id, backend.now),
            "ended_at": iso(job.ended_at),
            "reason": job.reason or "",
            "tries": job.attempt,
        }
        for job in page.jobs
    ]
    return answer(200, jobs=jobs, namespace=namespace, next=page.next, queue=queue)


async def respawned_job(backend: Backend, route: Route, given: dict[str, str], defaults: Defaults) -> bytes:
    """Make one dead letter available again, with one try and a new TTL (s); 0: none."""
    ttl = signed(given, "ttl", defaults.ttl)
    if ttl < 0:
        raise RefusedError(400, "invalid ttl")
    ref = await _dead(backend, route)
    (state,) = await backend.store.retry([ref], attempts=1, expires_in=ttl * 1_000 or None)
    if state is not State.DEAD:
        raise RefusedError(404, "no such dead letter")
    backend.dispatcher.work([ref.queue])
    return answer(200, count=1, msg="respawned")


async def deleted_job(backend: Backend, route: Route, given: dict[str, str], defaults: Defaults) -> bytes:
    """Delete one dead letter."""
    ref = await _dead(backend, route)
    (state,) = await backend.store.delete([ref])
    if state in (None, State.RUNNING):  # somebody else was faster
        raise RefusedError(404, "no such dead letter")
    return removed()


async def _dead(backend: Backend, route: Route) -> Ref:
    """The address of a dead letter. Raises RefusedError if there is none of this id."""
    ref = Ref(store_queue(route.namespace, route.queue), route.job_id)
    job = await backend.job(ref)
    if job is None or job.state is not State.DEAD:
        raise RefusedError(404, "no such dead letter")
    return ref


def _limit(given: dict[str, str], default: int = 1) -> int:
    limit = signed(given, "limit", default)
    if limit <= 0:
        raise RefusedError(400, "invalid limit")
    return limit
