"""A pool that is drained: what it still has is taken out of it, job by job, for another pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from penstock.core.ids import mint_token
from penstock.core.job import Job, Lease, NewJob, Ref, State
from penstock.core.lifecycle import released
from penstock.core.outcomes import QueuePosition
from penstock.dialects.lmstfy import queue_requests
from penstock.dialects.lmstfy.backend import Backend
from penstock.dialects.lmstfy.jobs import acknowledged
from penstock.dialects.lmstfy.names import is_ours
from penstock.maintenance.service import Service
from penstock.stores.contract import Document, DocumentChange, Settlement, Share, Store

#: The priority of moved jobs: they come before those that are published meanwhile.
DRAINED_FIRST = 1
#: The kinds of the documents that are copied from an old store.
ACCESS_TOKENS = ("tokens",)
LMSTFY_TOKENS = ("lmstfy.tokens", "lmstfy.limits")
#: Changes of them are copied after this time (s).
_EVERY = 1.0
#: The lease (ms) of a job that is being moved. If this server dies meanwhile, the next one moves it then.
_LEASE = 30_000
#: What keeps an old pool from being switched off.
_PENDING = (State.AVAILABLE, State.SCHEDULED, State.RETRYABLE, State.RUNNING, State.DEAD)


class TakenJob(NamedTuple):
    """A job of an old pool that is being moved, as a new one; `lease` None: the pool knows it by its id."""

    job: NewJob
    lease: Lease | None = None


class OldPool(Protocol):
    """What a migration needs of the pool that it drains. All verbs raise StoreError.

    - `kept_for`: how long (s) a taken job is ours in a pool that takes none back; 0: `give_back` does that.
    - `problem`: which of its jobs cannot be taken, and why; "": all can.
    """

    kept_for: float

    @property
    def problem(self) -> str: ...

    def start(self) -> None:
        """Start what happens by time there."""
        ...

    async def stop(self) -> None:
        """Release what `start` and the verbs have opened."""
        ...

    async def take(self, queues: Sequence[str], limit: int) -> list[TakenJob]:
        """Lease available jobs of these queues, in their order, at most `limit`."""
        ...

    async def confirm(self, taken: Sequence[TakenJob]) -> None:
        """Remove jobs that are stored elsewhere now."""
        ...

    async def give_back(self, taken: Sequence[TakenJob]) -> None:
        """Make jobs available again that could not be stored."""
        ...

    async def remove(self, refs: Sequence[Ref]) -> None:
        """Remove these jobs in any state, if they exist."""
        ...

    async def get(self, ref: Ref) -> Job | None:
        """Show a job."""
        ...

    async def counted(self, queue: str, only: State | None = None) -> dict[State, int]:
        """The number of jobs of a queue by state, or in `only` one, as far as the pool can say."""
        ...

    async def purge(self, queue: str, state: State, limit: int | None) -> int:
        """Remove the oldest available or dead jobs of a queue; returns their number."""
        ...

    async def dead_head(self, queue: str) -> str:
        """The id of the oldest dead letter of a queue, or ""."""
        ...

    async def respawn(self, queue: str, limit: int, ttl: int) -> int:
        """Make the oldest dead letters available again; returns their number."""
        ...

    async def queues(self) -> list[str]:
        """The queues that may have available jobs."""
        ...

    async def left(self) -> dict[State, int]:
        """The number of its jobs by state, as far as the pool can say."""
        ...

    async def answers(self) -> str:
        """ "" if the pool answers, else why it does not."""
        ...


class OldStore:
    """A store that is drained. Its timers run here: delayed jobs become due, and TTRs end."""

    kept_for = 0.0
    problem = ""

    def __init__(self, store: Store, pool: str) -> None:
        self._backend = Backend(store, pool)
        self._store = store
        self._worker = f"drain-{mint_token()[:12]}"

    def start(self) -> None:
        self._backend.start()

    async def stop(self) -> None:
        await self._backend.stop()

    async def take(self, queues: Sequence[str], limit: int) -> list[TakenJob]:
        found = await self._store.fetch(
            [Share(queue, limit, limit) for queue in queues],
            limit=limit,
            lease=_LEASE,
            worker=self._worker,
            token=mint_token(),
            charge=False,
        )
        self._backend.on_now(found.now)
        if found.jobs:
            self._backend.queue_list.has_running({job.queue for job in found.jobs})
        return [TakenJob(_moved(job, found.now), job.lease) for job in found.jobs]

    async def confirm(self, taken: Sequence[TakenJob]) -> None:
        done = acknowledged()
        await self._store.settle([Settlement(one.lease, done) for one in taken if one.lease is not None])

    async def give_back(self, taken: Sequence[TakenJob]) -> None:
        back = released(QueuePosition.HEAD)
        await self._store.settle([Settlement(one.lease, back) for one in taken if one.lease is not None])

    async def remove(self, refs: Sequence[Ref]) -> None:
        await self._store.delete(refs, running=True)

    async def get(self, ref: Ref) -> Job | None:
        (found,) = await self._store.get([ref])
        return found

    async def counted(self, queue: str, only: State | None = None) -> dict[State, int]:
        return await self._backend.counted(queue)

    async def purge(self, queue: str, state: State, limit: int | None) -> int:
        before = (await self._backend.counted(queue)).get(state, 0)
        await self._backend.purge(queue, state, limit)
        return before if limit is None else min(before, limit)

    async def dead_head(self, queue: str) -> str:
        return await queue_requests.oldest_dead(self._backend, queue)

    async def respawn(self, queue: str, limit: int, ttl: int) -> int:
        return await queue_requests.made_available(self._backend, queue, limit, ttl)

    async def queues(self) -> list[str]:
        found = await self._store.queues()
        return [one.name for one in found if is_ours(one.name) and one.counts.get(State.AVAILABLE)]

    async def left(self) -> dict[State, int]:
        counts: dict[State, int] = {}
        for one in await self._store.queues():
            if is_ours(one.name):
                for state, number in one.counts.items():
                    counts[state] = counts.get(state, 0) + number
        return {state: counts.get(state, 0) for state in _PENDING}

    async def answers(self) -> str:
        return await self._backend.answers()


def _moved(job: Job, now: int) -> NewJob:
    """The job as a new one, with the same id, the rest of its tries and of its TTL."""
    spec = job.spec
    return msgspec.structs.replace(
        spec,
        priority=max(spec.priority, DRAINED_FIRST),
        delay=0,
        run_at=None,
        expires_in=None if job.expires_at is None else max(1, job.expires_at - now),
        expires_at=None,
        max_attempts=max(1, spec.max_attempts - job.attempt),
    )


class TokenCopy(Service):
    """Copies the tokens and limits of an old store to the new one, also later changes and removals.

    A document of the new store that is none of these copies stays as it is. Which ones are copies is kept
    there, too, so that a token that is removed while no server runs is removed by the next one.
    """

    name = "token copy"

    def __init__(self, old: Store, new: Store, kinds: Sequence[str]) -> None:
        super().__init__()
        self._old, self._new, self._kinds = old, new, list(kinds)
        self._versions: list[int] = []

    async def tick(self) -> float:
        versions = await self._old.document_versions(self._kinds)
        if versions != self._versions:
            for kind in self._kinds:
                await self._copy(kind)
            self._versions = list(versions)
        return _EVERY

    async def _copy(self, kind: str) -> None:
        marks = f"copied.{kind}"
        copied, there = await _documents(self._new, marks), await _documents(self._new, kind)
        old = await _documents(self._old, kind)
        now = (await self._old.documents(kind, limit=1)).now
        changes = [
            DocumentChange(name, one.body, None, None if one.expires_at is None else one.expires_at - now)
            for name, one in old.items()
            if (name not in there or (name in copied and there[name].body != one.body))
            and (one.expires_at is None or one.expires_at > now)
        ]
        gone = [DocumentChange(name, None) for name in copied if name not in old]
        if changes:
            await self._new.change_documents(marks, [DocumentChange(one.name, b"{}") for one in changes])
        if changes or gone:
            await self._new.change_documents(kind, [*changes, *gone])
        if gone:
            await self._new.change_documents(marks, gone)


async def _documents(store: Store, kind: str) -> dict[str, Document]:
    found: dict[str, Document] = {}
    after: str | None = None
    while True:
        page = await store.documents(kind, after=after)
        found.update({one.name: one for one in page.documents})
        after = page.next
        if after is None:
            return found
