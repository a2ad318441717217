"""What lmstfy needs of a store and its contract does not have yet, made from the verbs that it has.

When the contract gets a verb for one of these, the function here becomes a call of that verb:

- `remove`: delete jobs in any state, also running ones, in one step;
- `oldest`: list jobs of a queue and state, oldest first (today: all pages, newest first);
- `counts`: the jobs by state of named queues (today: the list of all queues);
- `respawn`: make dead jobs available with one attempt and a new expiry (today: with all attempts, and the
  expiry they had if it is not over);
- `Records`: small records that belong to no job, for tokens (today: jobs that are due in a thousand years, in
  a queue that lmstfy's interface cannot reach).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from penstock.core.duration import LONGEST
from penstock.core.errors import StoreError, StoreUnavailable
from penstock.core.job import Job, NewJob, Ref, State
from penstock.dialects.lmstfy.jobs import acknowledged
from penstock.stores.contract import EnqueueStatus, QueueInfo, Settled, Settlement, Store

__all__ = ["Records", "counts", "oldest", "purge", "remove", "respawn"]

_PAGE = 1_000
#: How often `remove` follows a job that changes its state meanwhile.
_ROUNDS = 5


async def remove(store: Store, refs: Sequence[Ref]) -> list[Exception | None]:
    """Remove jobs in any state. A running job counts as processed. Answer: an error per job, or None."""
    left = list(dict.fromkeys(refs))
    failed: dict[Ref, Exception] = {}
    for _ in range(_ROUNDS):
        answers = await store.settle([Settlement(ref, acknowledged()) for ref in left])
        for ref, answer in zip(left, answers, strict=True):
            if answer is Settled.UNKNOWN:
                failed[ref] = StoreUnavailable(f"the store of the queue {ref.queue} does not answer")
        left = [ref for ref, answer in zip(left, answers, strict=True) if answer is Settled.STALE]
        if left:
            states = await store.delete(left)
            left = [ref for ref, state in zip(left, states, strict=True) if state is State.RUNNING]
        if not left:
            break
    for ref in left:
        failed[ref] = StoreError(f"job {ref.id} starts again and again; delete it once more")
    return [failed.get(ref) for ref in refs]


async def oldest(store: Store, queue: str, state: State, limit: int) -> list[Job]:
    """The oldest jobs of a queue in this state, oldest first."""
    found: deque[Job] = deque(maxlen=limit)
    after: str | None = None
    while True:
        page = await store.list_jobs(queue=queue, state=state, after=after, limit=_PAGE)
        found.extend(page.jobs)
        after = page.next
        if after is None:
            return list(reversed(found))


async def counts(store: Store, queues: Iterable[str]) -> dict[str, QueueInfo]:
    """The counts of these queues; queues that do not exist are absent."""
    wanted = set(queues)
    return {info.name: info for info in await store.queues() if info.name in wanted}


async def respawn(store: Store, queue: str, limit: int) -> int:
    """Make the oldest dead jobs of a queue available; returns their number."""
    dead = await oldest(store, queue, State.DEAD, limit)
    states = await store.retry([job.ref for job in dead])
    return sum(state is State.DEAD for state in states)


async def purge(store: Store, queue: str, state: State, limit: int | None = None) -> None:
    """Remove the oldest jobs of a queue in this state; None: all."""
    left = limit
    while left is None or left > 0:
        step = _PAGE if left is None else min(_PAGE, left)
        removed = await store.purge(queue, [state], limit=step)
        if removed < step:
            return
        left = None if left is None else left - removed


class Records:
    """Small records under a name, kept in the store and the same for all servers on it."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._queue = f"lmstfy:{name}"

    async def add(self, id: str, content: bytes) -> bool:
        """Store a record; False if there is one with this id."""
        job = NewJob(id, self._queue, content, self._queue, delay=LONGEST, timeout=None, max_attempts=1)
        (answer,) = await self._store.enqueue([job])
        if answer.status not in (EnqueueStatus.NEW, EnqueueStatus.EXISTS):
            raise StoreError(f"the record could not be stored: {answer.status} {answer.cause}")
        return answer.status is EnqueueStatus.NEW

    async def get(self, ids: Sequence[str]) -> list[bytes | None]:
        """Read records; None for one that does not exist."""
        jobs = await self._store.get([Ref(self._queue, id) for id in ids])
        return [None if job is None else job.spec.payload for job in jobs]

    async def remove(self, id: str) -> None:
        """Remove a record, if it exists."""
        await self._store.delete([Ref(self._queue, id)])

    async def all(self) -> list[bytes]:
        """All records, oldest first."""
        found: list[bytes] = []
        after: str | None = None
        while True:
            page = await self._store.list_jobs(queue=self._queue, after=after, limit=_PAGE)
            found += [job.spec.payload for job in page.jobs]
            after = page.next
            if after is None:
                return found[::-1]
