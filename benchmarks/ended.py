"""Ends stored jobs by fetch and settle, as a worker without tasks would."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.core.ids import mint
from penstock.core.job import AttemptError, Job, State
from penstock.core.lifecycle import Transition
from penstock.stores.contract import Settlement, Share, Store

__all__ = ["dead", "end_all"]

_BATCH = 2_000
#: As long as the ids of workers are.
_WORKER = mint()
_KEPT = 90 * 86_400_000


async def end_all(store: Store, queues: Sequence[str], outcome: Callable[[int, Job], Transition]) -> int:
    """Give the n-th available job of these queues `outcome(n, job)`; returns how many there were."""
    n = 0
    shares = [Share(queue, quota=_BATCH, cap=_BATCH) for queue in queues]
    while jobs := (await store.fetch(shares, limit=_BATCH, lease=60_000, worker=_WORKER, token=mint())).jobs:
        await store.settle([Settlement(job.lease, outcome(n + k, job)) for k, job in enumerate(jobs)])
        n += len(jobs)
    return n


def dead(kind: int) -> Transition:
    """Dead, with an error of this kind."""
    name = f"Error{kind % 50}"
    error = AttemptError(1, 0, name, f"the host {kind} gave no answer", "Traceback …\n" * 20)
    return Transition(State.DEAD, keep=_KEPT, error=error, reason=name)
