"""Requests about what a queue has: its head and size, its dead letters, and the jobs that consumers hold."""

from __future__ import annotations

import re
from contextlib import aclosing
from typing import Any

from penstock.core.errors import ConfigError
from penstock.core.formats import iso
from penstock.core.job import AttemptError, Lease, Ref, State
from penstock.core.lifecycle import Transition, decide
from penstock.core.outcomes import QueuePosition, Raised
from penstock.dialects.lmstfy.backend import MOST_LISTED, Backend
from penstock.dialects.lmstfy.jobs import acknowledged, exists, shown
from penstock.dialects.lmstfy.names import elapsed_ms, store_queue
from penstock.dialects.lmstfy.requests import (
    Parameters,
    RefusedError,
    Route,
    answer,
    error,
    number,
    plain_reply,
    removed,
    signed,
)
from penstock.dialects.lmstfy.settings import Defaults
from penstock.stores.contract import HeartbeatRequest, JobOrder, LeaseStatus, Settled, Settlement

#: Jobs of a page in which a job that has not expired is searched.
_HEADS = 100
#: The longest TTL (s) that clients can read.
_MOST_TTL = 2**32 - 1
_LEASE = re.compile(r"([0-9]{1,20})-([A-Za-z0-9]{1,64})", re.ASCII)
_LONGEST_REASON = 200


# ── the queue ──────────────────────────────────────────────────────────────────────────────────────


async def head(backend: Backend, route: Route, given: Parameters, defaults: Defaults) -> bytes:
    """The next job of a queue; nothing changes. Expired jobs are passed over."""
    stored = store_queue(route.namespace, route.queue)
    async with aclosing(backend.each_page(stored, State.AVAILABLE, _HEADS)) as pages:
        async for jobs in pages:
            now = backend.now
            for job in jobs:
                if exists(job, now):
                    backend.metrics.looked_at += 1
                    return plain_reply(200, shown(job, route.namespace, route.queue, now))
    return error(404, "the queue is empty")


async def size(backend: Backend, route: Route, given: Parameters, defaults: Defaults) -> bytes:
    """The number of ready jobs of a queue, exactly; with `all=true`, also those of the other states."""
    every = given.get("all") in ("1", "true")
    counts = await backend.counted(
        store_queue(route.namespace, route.queue), None if every else State.AVAILABLE
    )
    ready = counts.get(State.AVAILABLE, 0)
    if not every:
        return _answer_about(route, size=ready)
    return _answer_about(
        route,
        size=ready,
        delayed=counts.get(State.SCHEDULED, 0) + counts.get(State.RETRYABLE, 0),
        reserved=counts.get(State.RUNNING, 0),
        dead=counts.get(State.DEAD, 0),
    )


async def destroyed(backend: Backend, route: Route, given: Parameters, defaults: Defaults) -> bytes:
    """Remove the ready jobs of a queue, and the queue if it has no others."""
    stored = store_queue(route.namespace, route.queue)
    await backend.purge(stored, State.AVAILABLE)
    await backend.store.drop(stored)
    return removed()


# ── dead letters: kept until they are respawned or deleted ─────────────────────────────────────────


async def dead_head(backend: Backend, route: Route, given: Parameters, defaults: Defaults) -> bytes:
    """The id of the oldest dead letter, and their number."""
    stored = store_queue(route.namespace, route.queue)
    first = await backend.old_dead_head(stored) or await oldest_dead(backend, stored)
    number = (await backend.counted(stored, State.DEAD)).get(State.DEAD, 0)
    return _answer_about(route, deadletter_head=first, deadletter_size=number)


async def oldest_dead(backend: Backend, stored: str) -> str:
    """The id of the oldest dead letter of a queue of the store, or ""."""
    async with aclosing(backend.each_page(stored, State.DEAD, 1)) as pages:
        async for jobs in pages:
            return jobs[0].id
    return ""


async def dead_respawned(backend: Backend, route: Route, given: Parameters, defaults: Defaults) -> bytes:
    """Make the oldest dead letters available again, with one try and a new TTL (s); 0: none."""
    limit = _limit(given)
    ttl = _ttl(given, defaults.ttl)
    stored = store_queue(route.namespace, route.queue)
    count = await backend.old_respawned(stored, limit, ttl)
    if count < limit:
        count += await made_available(backend, stored, limit - count, ttl)
    backend.metrics.respawned += count
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


async def dead_deleted(backend: Backend, route: Route, given: Parameters, defaults: Defaults) -> bytes:
    """Delete the oldest dead letters."""
    await backend.purge(store_queue(route.namespace, route.queue), State.DEAD, _limit(given))
    return removed()


async def dead_size(backend: Backend, route: Route, given: Parameters, defaults: Defaults) -> bytes:
    """The number of dead letters."""
    counts = await backend.counted(store_queue(route.namespace, route.queue), State.DEAD)
    return _answer_about(route, size=counts.get(State.DEAD, 0))


async def dead_listed(backend: Backend, route: Route, given: Parameters, defaults: Defaults) -> bytes:
    """A page of dead letters, oldest first: at most `limit`, from the one after the cursor `after` on."""
    limit = min(_limit(given, 100), MOST_LISTED)
    stored = store_queue(route.namespace, route.queue)
    try:
        page = await backend.store.list_jobs(
            queue=stored,
            state=State.DEAD,
            order=JobOrder.ENDED,
            descending=False,
            after=given.get("after"),
            limit=limit,
        )
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
    return _answer_about(route, jobs=jobs, next=page.next)


async def dead_job_respawned(backend: Backend, route: Route, given: Parameters, defaults: Defaults) -> bytes:
    """Make one dead letter available again, with one try and a new TTL (s); 0: none."""
    ttl = _ttl(given, defaults.ttl)
    ref = await _dead(backend, route)
    (state,) = await backend.store.retry([ref], attempts=1, expires_in=ttl * 1_000 or None)
    if state is not State.DEAD:
        raise RefusedError(404, "no such dead letter")
    backend.metrics.respawned += 1
    backend.dispatcher.work([ref.queue])
    return answer(200, count=1, msg="respawned")


async def dead_job_deleted(backend: Backend, route: Route, given: Parameters, defaults: Defaults) -> bytes:
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


def _ttl(given: Parameters, default: int) -> int:
    ttl = signed(given, "ttl", default)
    if ttl < 0:
        raise RefusedError(400, "invalid ttl")
    return min(ttl, _MOST_TTL)


def _limit(given: Parameters, default: int = 1) -> int:
    limit = signed(given, "limit", default)
    if limit <= 0:
        raise RefusedError(400, "invalid limit")
    return limit


# ── jobs that a consumer holds ─────────────────────────────────────────────────────────────────────

# lmstfy has none of these. Each names the lease that the consume request returned (`lease=true`), and
# changes nothing if another consumer holds the job now.


async def acknowledged_with_lease(
    backend: Backend, route: Route, given: Parameters, defaults: Defaults
) -> bytes:
    """Remove a job if this lease still holds it."""
    lease = _lease(route, given)
    refusal = _refusal(await backend.settled(Settlement(lease, acknowledged())))
    if refusal is not None:
        return refusal
    backend.metrics.acknowledged(lease.queue, lease.id, backend.now)
    return removed()


async def touched(backend: Backend, route: Route, given: Parameters, defaults: Defaults) -> bytes:
    """Extend a lease to `ttr` seconds from now."""
    lease, ttr = _lease(route, given), number(given, "ttr", defaults.ttr)
    status = await backend.extended(HeartbeatRequest(lease, max(1, ttr * 1_000)))
    match status:
        case LeaseStatus.LOST:
            return error(409, "lease lost")
        case LeaseStatus.UNKNOWN:
            return error(500, "internal error")
    return answer(200, cancel_asked=status is LeaseStatus.CANCEL_ASKED, msg="touched", ttr=ttr)


async def released(backend: Backend, route: Route, given: Parameters, defaults: Defaults) -> bytes:
    """Return a job to its queue, `delay` seconds from now; dead if no try is left.

    The delivery has spent a try, unless `freeze_tries=true`.
    """
    lease, delay = _lease(route, given), number(given, "delay", 0) * 1_000
    if given.get("freeze_tries") == "true":
        state = State.SCHEDULED if delay else State.AVAILABLE
        change = Transition(state, delay=delay, place=QueuePosition.TAIL, charge=False)
    else:
        change = await _failed(backend, lease, given, "released by its consumer", delay=delay)
    return await _settled(backend, lease, change, "released")


async def buried(backend: Backend, route: Route, given: Parameters, defaults: Defaults) -> bytes:
    """Make a job a dead letter at once."""
    lease = _lease(route, given)
    change = await _failed(backend, lease, given, "given up by its consumer", final=True)
    return await _settled(backend, lease, change, "buried")


async def _failed(
    backend: Backend,
    lease: Lease,
    given: Parameters,
    otherwise: str,
    *,
    delay: int | None = None,
    final: bool = False,
) -> Transition:
    """The transition of a job whose consumer has failed; `reason` is kept as its error."""
    job = await backend.job(Ref(lease.queue, lease.id))
    if job is None:
        raise RefusedError(404, "job not found")
    if job.state is not State.RUNNING:
        raise RefusedError(409, "lease lost")
    reason = given.get("reason", otherwise)[:_LONGEST_REASON]
    attempt = AttemptError.bounded(job.attempt, backend.now, "Released", reason)
    return decide(job, Raised(attempt, delay, final, reason if final else None), backend.now)


async def _settled(backend: Backend, lease: Lease, change: Transition, said: str) -> bytes:
    refusal = _refusal(await backend.settled(Settlement(lease, change)))
    if refusal is not None:
        return refusal
    backend.returned(lease.queue, change.state)
    shown = {State.DEAD: "dead", State.AVAILABLE: "ready"}.get(change.state, "delayed")
    return answer(200, msg=said, state=shown)


def _lease(route: Route, given: Parameters) -> Lease:
    text = given.get("lease")
    if text is None:
        raise RefusedError(400, "lease required: consume with lease=true")
    found = _LEASE.fullmatch(text)
    if found is None or int(found[1]) >= 1 << 63:
        raise RefusedError(400, "invalid lease")
    return Lease(store_queue(route.namespace, route.queue), route.job_id, found[2], int(found[1]))


def _refusal(settled: Settled) -> bytes | None:
    match settled:
        case Settled.APPLIED:
            return None
        case Settled.STALE:
            return error(409, "lease lost")
        case Settled.GONE:
            return error(404, "job not found")
    return error(500, "internal error")


def _answer_about(route: Route, **fields: Any) -> bytes:
    """An answer about the queue of a request."""
    return answer(200, namespace=route.namespace, queue=route.queue, **fields)
