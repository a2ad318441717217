"""Which consume requests one fetch serves, and which fetches have to be one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from penstock.core.job import Job
from penstock.dialects.lmstfy.poll import Poll
from penstock.stores.contract import Share

__all__ = ["chains", "emptied", "plans", "shares"]

#: Jobs that one fetch leases, at most.
_MOST_JOBS = 1_000


def plans(polls: Sequence[Poll]) -> Iterable[list[Poll]]:
    """Divide requests into those that one fetch can serve, in order.

    Neighbours with the same TTR share a fetch, if each names one queue, or all name the same queues.
    """
    plan: list[Poll] = []
    jobs = 0
    for poll in polls:
        if plan and (not poll.shares_fetch_with(plan[-1]) or jobs + poll.wanted > _MOST_JOBS):
            yield plan
            plan, jobs = [], 0
        plan.append(poll)
        jobs += poll.wanted
    if plan:
        yield plan


def chains(plans: Iterable[list[Poll]]) -> list[list[list[Poll]]]:
    """Divide plans, in order, into those that have no queue in common."""
    of_queue: dict[str, list[list[Poll]]] = {}
    for plan in plans:
        queues = {queue for poll in plan for queue in poll.queues}
        joined = {id(chain): chain for queue in queues if (chain := of_queue.get(queue)) is not None}
        chain = [*(one for other in joined.values() for one in other), plan]
        if len(joined) > 1:
            chain.sort(key=lambda one: one[0].arrival)
        queues.update(queue for other in chain for poll in other for queue in poll.queues)
        of_queue.update(dict.fromkeys(queues, chain))
    return list({id(chain): chain for chain in of_queue.values()}.values())


def shares(polls: Sequence[Poll], queues: AbstractSet[str]) -> list[Share]:
    """The shares of a fetch: of one queue what its requests want; of several queues the first ones first.

    Only of these queues, because jobs of others belong to requests that came earlier.
    """
    wants: dict[str, int] = {}
    for poll in polls:
        for queue in poll.queues:
            wants[queue] = wants.get(queue, 0) + poll.wanted
    return [Share(queue, n, n) for queue, n in wants.items() if queue in queues]


def emptied(asked: Sequence[Share], limit: int, jobs: Sequence[Job]) -> set[str]:
    """The queues that have given all that they had."""
    if len(jobs) >= limit:
        return set()
    given = {share.queue: 0 for share in asked}
    for job in jobs:
        given[job.queue] += 1
    return {share.queue for share in asked if given[share.queue] < share.quota}
