"""Requests about a job that its consumer holds: acknowledge with a check, extend, release, give up.

lmstfy has none of these. Each names the lease that the consume request returned (`lease=true`), and changes
nothing if another consumer holds the job now.
"""

from __future__ import annotations

import re

from penstock.core.job import AttemptError, Lease, Ref, State
from penstock.core.lifecycle import QueuePosition, Transition, decide
from penstock.core.outcomes import Raised
from penstock.dialects.lmstfy.backend import Backend
from penstock.dialects.lmstfy.bodies import answer, error, removed
from penstock.dialects.lmstfy.defaults import Defaults
from penstock.dialects.lmstfy.jobs import acknowledged
from penstock.dialects.lmstfy.names import store_queue
from penstock.dialects.lmstfy.parameters import RefusedError, number
from penstock.dialects.lmstfy.routes import Route
from penstock.stores.contract import HeartbeatRequest, LeaseStatus, Settled, Settlement

__all__ = ["acknowledged_with_lease", "buried", "released", "touched"]

_LEASE = re.compile(r"([0-9]{1,20})-([A-Za-z0-9]{1,64})", re.ASCII)
_LONGEST_REASON = 200


async def acknowledged_with_lease(
    backend: Backend, route: Route, given: dict[str, str], defaults: Defaults
) -> bytes:
    """Remove a job if this lease still holds it."""
    lease = _lease(route, given)
    refusal = _refusal(await backend.settled(Settlement(lease, acknowledged())))
    if refusal is not None:
        return refusal
    backend.metrics.acknowledged(lease.queue, lease.id, backend.now)
    return removed()


async def touched(backend: Backend, route: Route, given: dict[str, str], defaults: Defaults) -> bytes:
    """Extend a lease to `ttr` seconds from now."""
    lease, ttr = _lease(route, given), number(given, "ttr", defaults.ttr)
    status = await backend.extended(HeartbeatRequest(lease, max(1, ttr * 1_000)))
    match status:
        case LeaseStatus.LOST:
            return error(409, "lease lost")
        case LeaseStatus.UNKNOWN:
            return error(500, "internal error")
    return answer(200, cancel_asked=status is LeaseStatus.CANCEL_ASKED, msg="touched", ttr=ttr)


async def released(backend: Backend, route: Route, given: dict[str, str], defaults: Defaults) -> bytes:
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


async def buried(backend: Backend, route: Route, given: dict[str, str], defaults: Defaults) -> bytes:
    """Make a job a dead letter at once."""
    lease = _lease(route, given)
    change = await _failed(backend, lease, given, "given up by its consumer", final=True)
    return await _settled(backend, lease, change, "buried")


async def _failed(
    backend: Backend,
    lease: Lease,
    given: dict[str, str],
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


def _lease(route: Route, given: dict[str, str]) -> Lease:
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
