"""The verbs of an encrypted store: what goes in is sealed, what comes out is opened, by its clerk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from pathlib import Path

from msgspec.structs import replace

from penstock.core.job import Job, NewJob, Ref, State
from penstock.core.lifecycle import ASK_CANCELLED
from penstock.core.limits import LimitChange
from penstock.core.schedule import Entry, NewEntry
from penstock.encryption import Closed
from penstock.stores.contract import (
    Beat,
    Due,
    Enqueued,
    Fetched,
    Finding,
    Grip,
    GroupInfo,
    LaneInfo,
    Offer,
    Page,
    Parked,
    Pruned,
    QueueInfo,
    QueueStats,
    Settled,
    Settlement,
    Share,
    Store,
    SyncStore,
    Tick,
    Ticked,
    Timetable,
    Wake,
    WorkerInfo,
)
from penstock.stores.encrypted.field_cipher import Clerk

__all__ = ["EncryptedStore"]


class EncryptedStore:
    """Every verb of the contract by name: one that is added to it is not passed on in clear by oversight."""

    def __init__(self, store: Store, clerk: Clerk) -> None:
        self._store = store
        self._clerk = clerk
        self._sync = _SyncDoor(store, clerk)

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def spread(self) -> bool:
        """Whether queues lie on several servers, of which some may be away."""
        return bool(getattr(self._store, "spread", False))

    @property
    def path(self) -> Path | None:
        """Where the store lies, if it is a file."""
        found: Path | None = getattr(self._store, "path", None)
        return found

    @property
    def sync(self) -> SyncStore:
        return self._sync

    def close(self) -> None:
        self._store.close()

    @staticmethod
    def why_closed(job: Job) -> str | None:
        """As `why_closed` says. What was opened may look like anything, so looks do not count."""
        payload = job.spec.payload
        return payload.why if isinstance(payload, Closed) else None

    # ── producing: calls and reasons are sealed, jobs are opened ──

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return await self._store.enqueue(self._clerk.sealed(jobs))

    async def get(self, refs: Sequence[Ref]) -> list[Job | None]:
        return self._clerk.opened(await self._store.get(refs))

    async def cancel(self, refs: Sequence[Ref], *, reason: str = ASK_CANCELLED) -> list[State | None]:
        if not self._clerk.seals_reason(reason):
            return await self._store.cancel(refs, reason=reason)
        # each is sealed for its own job, so that each job is a question of its own
        questions = [
            self._store.cancel([ref], reason=self._clerk.sealed_reason(ref, reason))
            for ref in dict.fromkeys(refs)
        ]
        answers = dict(zip(dict.fromkeys(refs), await asyncio.gather(*questions), strict=True))
        return [answers[ref][0] for ref in refs]

    async def ended(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]:
        return self._clerk.opened(await self._store.ended(refs, timeout=timeout))

    async def ends(self, refs: Sequence[Ref], *, timeout: int) -> AsyncGenerator[dict[Ref, Job | None], None]:
        found = self._store.ends(refs, timeout=timeout)
        try:
            async for some in found:
                yield dict(zip(some, self._clerk.opened(some.values()), strict=True))
        finally:
            await found.aclose()

    # ── consuming: jobs are opened, what attempts say is sealed ──

    async def fetch(
        self,
        queues: Sequence[Share],
        *,
        limit: int,
        lease: int,
        worker: str,
        token: str,
        charge: bool = True,
    ) -> Fetched:
        found = await self._store.fetch(
            queues, limit=limit, lease=lease, worker=worker, token=token, charge=charge
        )
        return self._clerk.fetched(found)

    async def extend(self, beats: Sequence[Beat]) -> list[Grip]:
        return await self._store.extend([self._clerk.beat(beat) for beat in beats])

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        return await self._store.settle([self._clerk.settlement(one) for one in settlements])

    async def promote(self, queues: Sequence[str], *, limit: int) -> Due:
        return await self._store.promote(queues, limit=limit)

    async def reclaim(
        self,
        queues: Sequence[str],
        *,
        limit: int,
        lease: int,
        worker: str,
        token: str,
        of: Sequence[str] | None = None,
    ) -> Fetched:
        found = await self._store.reclaim(queues, limit=limit, lease=lease, worker=worker, token=token, of=of)
        return self._clerk.fetched(found)

    async def wait(
        self,
        queues: Sequence[str],
        *,
        timeout: int,
        offer: Offer | None = None,
        parked: Sequence[str] = (),
    ) -> Wake:
        return await self._store.wait(queues, timeout=timeout, offer=self._clerk.offer(offer), parked=parked)

    # ── operating: what shows jobs or entries ──

    async def list_jobs(
        self,
        *,
        queue: str | None = None,
        state: State | None = None,
        task: str | None = None,
        worker: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> Page:
        page = await self._store.list_jobs(
            queue=queue, state=state, task=task, worker=worker, after=after, limit=limit
        )
        return replace(page, jobs=self._clerk.opened(page.jobs))

    async def find(self, id: str) -> list[Job]:
        return self._clerk.opened(await self._store.find(id))

    async def lane(self, ref: Ref) -> LaneInfo | None:
        found = await self._store.lane(ref)
        return None if found is None else replace(found, admitted=self._clerk.opened(found.admitted))

    async def entries(self, queues: Sequence[str] | None = None) -> Timetable:
        table = await self._store.entries(queues)
        return replace(table, entries=[self._clerk.opened_entry(entry) for entry in table.entries])

    async def put_entries(self, entries: Sequence[NewEntry]) -> list[Entry]:
        put = await self._store.put_entries([self._clerk.sealed_entry(entry) for entry in entries])
        return [self._clerk.opened_entry(entry) for entry in put]

    async def pause_entries(self, refs: Sequence[Ref], paused: bool) -> list[Entry | None]:
        found = await self._store.pause_entries(refs, paused)
        return [None if entry is None else self._clerk.opened_entry(entry) for entry in found]

    async def tick(self, ticks: Sequence[Tick]) -> list[Ticked]:
        sealed = [replace(tick, jobs=tuple(self._clerk.sealed(tick.jobs))) for tick in ticks]
        return await self._store.tick(sealed)

    # ── operating: what carries nothing that is sealed ──

    async def checkup(self) -> list[Finding]:
        return await self._store.checkup()

    async def queues(self) -> list[QueueInfo]:
        return await self._store.queues()

    async def parked(self) -> list[Parked]:
        return await self._store.parked()

    async def stats(self, *, days: int = 7) -> list[QueueStats]:
        return await self._store.stats(days=days)

    async def settings(
        self,
        queue: str,
        *,
        paused: bool | None = None,
        closed: bool | None = None,
        limits: LimitChange | None = None,
    ) -> QueueInfo:
        return await self._store.settings(queue, paused=paused, closed=closed, limits=limits)

    async def retry(self, refs: Sequence[Ref]) -> list[State | None]:
        return await self._store.retry(refs)

    async def reschedule(
        self, refs: Sequence[Ref], *, delay: int = 0, run_at: int | None = None
    ) -> list[State | None]:
        return await self._store.reschedule(refs, delay=delay, run_at=run_at)

    async def delete(self, refs: Sequence[Ref]) -> list[State | None]:
        return await self._store.delete(refs)

    async def purge(self, queue: str, states: Sequence[State], *, limit: int = 10_000) -> int:
        return await self._store.purge(queue, states, limit=limit)

    async def drop(self, queue: str) -> bool:
        return await self._store.drop(queue)

    async def prune(
        self, *, limit: int = 1_000, keep_finished: int = 100_000, keep_dead: int = 100_000
    ) -> Pruned:
        return await self._store.prune(limit=limit, keep_finished=keep_finished, keep_dead=keep_dead)

    async def announce(self, worker: WorkerInfo) -> None:
        await self._store.announce(worker)

    async def retire(self, worker: str) -> None:
        await self._store.retire(worker)

    async def workers(self) -> list[WorkerInfo]:
        return await self._store.workers()

    async def delete_entries(self, refs: Sequence[Ref]) -> list[bool]:
        return await self._store.delete_entries(refs)

    async def groups(self, queue: str | None = None, *, limit: int = 1_000) -> list[GroupInfo]:
        return await self._store.groups(queue, limit=limit)

    async def flush_group(self, queue: str, *, task: str, key: str = "") -> str | None:
        return await self._store.flush_group(queue, task=task, key=key)


class _SyncDoor:
    """The same for callers without an event loop."""

    def __init__(self, store: Store, clerk: Clerk) -> None:
        self._store = store
        self._clerk = clerk

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return self._store.sync.enqueue(self._clerk.sealed(jobs))

    def get(self, refs: Sequence[Ref]) -> list[Job | None]:
        return self._clerk.opened(self._store.sync.get(refs))

    def cancel(self, refs: Sequence[Ref], *, reason: str = ASK_CANCELLED) -> list[State | None]:
        if not self._clerk.seals_reason(reason):
            return self._store.sync.cancel(refs, reason=reason)
        answers = {
            ref: self._store.sync.cancel([ref], reason=self._clerk.sealed_reason(ref, reason))[0]
            for ref in dict.fromkeys(refs)
        }
        return [answers[ref] for ref in refs]

    def ended(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]:
        return self._clerk.opened(self._store.sync.ended(refs, timeout=timeout))

    def ends(self, refs: Sequence[Ref], *, timeout: int) -> Generator[dict[Ref, Job | None], None, None]:
        found = self._store.sync.ends(refs, timeout=timeout)
        try:
            for some in found:
                yield dict(zip(some, self._clerk.opened(some.values()), strict=True))
        finally:
            found.close()

    def retry(self, refs: Sequence[Ref]) -> list[State | None]:
        return self._store.sync.retry(refs)

    def reschedule(
        self, refs: Sequence[Ref], *, delay: int = 0, run_at: int | None = None
    ) -> list[State | None]:
        return self._store.sync.reschedule(refs, delay=delay, run_at=run_at)

    def queues(self) -> list[QueueInfo]:
        return self._store.sync.queues()

    def settings(
        self,
        queue: str,
        *,
        paused: bool | None = None,
        closed: bool | None = None,
        limits: LimitChange | None = None,
    ) -> QueueInfo:
        return self._store.sync.settings(queue, paused=paused, closed=closed, limits=limits)
