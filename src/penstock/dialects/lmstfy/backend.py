"""One store as a pool of lmstfy: the verbs that requests use, in groups, and the services that serve it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence

from penstock.core.errors import StoreError
from penstock.core.ids import mint_token
from penstock.core.job import Job, NewJob, Ref, State
from penstock.dialects.lmstfy.dispatcher import Dispatcher, DispatchEvents
from penstock.dialects.lmstfy.metrics import PoolMetrics
from penstock.dialects.lmstfy.polls import Poll
from penstock.dialects.lmstfy.timers import QueueList, TtrTimer, WorkWatch
from penstock.inspector.audit import AuditLog
from penstock.maintenance.housekeeping import DepthSampler, Pruner
from penstock.maintenance.promoter import Promoter
from penstock.maintenance.service import ProblemLog, Service
from penstock.stores.contract import (
    Enqueued,
    EnqueueStatus,
    HeartbeatRequest,
    JobFilter,
    JobOrder,
    LeaseStatus,
    Replacement,
    Settled,
    Settlement,
    Store,
)
from penstock.stores.own_store import OwnStore
from penstock.web.access import AccessTokens
from penstock.web.group_commit import GroupCommit

_log = logging.getLogger("penstock.lmstfy")

#: Called with an Enqueued per job of a publish request, or with the error of the call.
OnPublished = Callable[[Sequence[Enqueued] | BaseException], None]
#: The most jobs that one answer lists, or one step of a removal removes.
MOST_LISTED = 1_000
#: Dead letters are kept until somebody respawns or deletes them, regardless of their number.
_KEEP_DEAD = 2**53


class Backend:
    """A store and its services. Requests of one turn of the event loop share a call of the store."""

    def __init__(self, store: Store, pool: str) -> None:
        self.store = store
        self.access_tokens = AccessTokens(store)
        self.audit_log = AuditLog(store)
        self.metrics = PoolMetrics(pool)
        if isinstance(store, OwnStore):
            store.observe(self.metrics.called)
        self._clock_offset = 0.0  # of the store's clock to this machine's (ms)
        worker = f"lmstfy-{mint_token()[:12]}"
        self.queue_list = QueueList(store, on_now=self.on_now)
        self.promoter = Promoter(store, self.queue_list.scheduled, look=0.9, on_moved=self._on_due)
        events = DispatchEvents(
            leased=self._on_leased,
            waiting=self._on_waiting,
            now=self.on_now,
            delivered=self.metrics.delivered,
        )
        self.dispatcher = Dispatcher(store, worker, events)
        self.ttr_timer = TtrTimer(
            store, worker, self.queue_list, on_work=self.dispatcher.work, on_reclaimed=self._on_due
        )
        self.work_watch = WorkWatch(store, self.dispatcher, on_due=self.promoter.expect)
        self._publish = GroupCommit(self._enqueue_groups)
        self._replace: GroupCommit[Replacement, Enqueued] = GroupCommit(self._replace_all)
        self._remove = GroupCommit(self._remove_all)
        self._get = GroupCommit(self._get_all)
        self._settle: GroupCommit[Settlement, Settled] = GroupCommit(self._settle_all)
        self._extend: GroupCommit[HeartbeatRequest, LeaseStatus] = GroupCommit(self._extend_all)
        self._services: list[Service] = [
            self.queue_list,
            self.promoter,
            self.ttr_timer,
            self.work_watch,
            Pruner(store, keep_dead=_KEEP_DEAD),
            DepthSampler(store),
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self.problem_log = ProblemLog(_log)

    def start(self) -> None:
        """Start the services, in the running event loop."""
        for service in self._services:
            service.problem_log = self.problem_log
        self._tasks = [
            asyncio.get_running_loop().create_task(service.run(), name=f"penstock-{service.name}")
            for service in self._services
        ]

    async def stop(self) -> None:
        """Answer waiting requests, write what is in flight, and stop the services."""
        await self.dispatcher.stop()
        for commit in (self._publish, self._replace, self._remove, self._get, self._settle, self._extend):
            await commit.drained()
        for service in self._services:
            service.stop()
        _, slow = await asyncio.wait(self._tasks, timeout=5.0)
        for task in slow:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def catch_up(self) -> None:
        """Do now what is due by the store's clock, which was set, instead of within a second."""
        await self.queue_list.tick()
        await self.promoter.tick()
        await self.ttr_timer.reclaim_all()

    # ── the store's clock ────────────────────────────────────────────────────────────────────────

    @property
    def now(self) -> int:
        """The store's clock (ms), from its last answer and the time since."""
        return int(time.time() * 1_000 + self._clock_offset)

    def on_now(self, now: int) -> None:
        """Take a reading of the store's clock."""
        self._clock_offset = now - time.time() * 1_000

    # ── publish ──────────────────────────────────────────────────────────────────────────────────

    def publish(self, jobs: Sequence[NewJob], done: OnPublished) -> None:
        """Enqueue jobs, then call `done`."""
        self._publish.put(jobs, done, weight=sum(len(job.payload) for job in jobs))

    async def republish(self, old: Ref, new: NewJob) -> Enqueued:
        """Enqueue a job and remove another one of its queue, in any state, in one step."""
        answer = await self._replace.ask(Replacement(old, new))
        if answer.status is EnqueueStatus.NEW:
            self._stored([new])
        return answer

    async def _replace_all(self, replacements: list[Replacement]) -> Sequence[Enqueued | BaseException]:
        return await self.store.replace_jobs(replacements)

    async def _enqueue_groups(
        self, groups: list[Sequence[NewJob]]
    ) -> Sequence[Sequence[Enqueued] | BaseException]:
        jobs = [job for group in groups for job in group]
        answers = await self.store.enqueue(jobs)
        self._stored([job for job, one in zip(jobs, answers, strict=True) if one.status is EnqueueStatus.NEW])
        divided: list[Sequence[Enqueued]] = []
        start = 0
        for group in groups:
            divided.append(answers[start : start + len(group)])
            start += len(group)
        return divided

    def _stored(self, jobs: Sequence[NewJob]) -> None:
        numbers: dict[str, int] = {}
        available: dict[str, int] = {}
        for job in jobs:
            queue = job.queue
            numbers[queue] = numbers.get(queue, 0) + 1
            if job.delay:
                self.queue_list.has_scheduled(queue)
            else:
                available[queue] = available.get(queue, 0) + 1
        for queue, number in numbers.items():
            self.metrics.published(queue, number, available.get(queue, 0))
        for queue, number in available.items():
            self.dispatcher.work((queue,), number)

    # ── leases ───────────────────────────────────────────────────────────────────────────────────

    async def settled(self, settlement: Settlement) -> Settled:
        """Settle a job."""
        return await self._settle.ask(settlement)

    async def extended(self, request: HeartbeatRequest) -> LeaseStatus:
        """Extend a lease."""
        status = await self._extend.ask(request)
        if status in (LeaseStatus.HELD, LeaseStatus.CANCEL_ASKED):
            self.ttr_timer.leased({request.lease.queue}, time.monotonic() + request.by / 1_000)
        return status

    async def _settle_all(self, settlements: list[Settlement]) -> Sequence[Settled]:
        return await self.store.settle(settlements)

    async def _extend_all(self, requests: list[HeartbeatRequest]) -> Sequence[LeaseStatus]:
        return await self.store.extend(requests)

    def returned(self, queue: str, state: State) -> None:
        """Note that a consumer has returned a job, which is in this state now."""
        if state is State.AVAILABLE:
            self.dispatcher.work([queue])
        elif state in (State.SCHEDULED, State.RETRYABLE):
            self.queue_list.has_scheduled(queue)

    async def job(self, ref: Ref) -> Job | None:
        """Read a job."""
        return await self._get.ask(ref)

    # ── consume ──────────────────────────────────────────────────────────────────────────────────

    def consume(self, poll: Poll) -> None:
        """Serve a consume request: now, when there is a job, or at its timeout without one."""
        self.dispatcher.put(poll)

    async def old_dead_head(self, queue: str) -> str:
        """The id of the oldest dead letter of an older pool, which is drained; here: ""."""
        return ""

    async def old_respawned(self, queue: str, limit: int, ttl: int) -> int:
        """Respawn dead letters of an older pool, which is drained; returns their number, here 0."""
        return 0

    # ── acknowledge, read ────────────────────────────────────────────────────────────────────────

    def remove(self, ref: Ref, done: Callable[[BaseException | None], None]) -> None:
        """Remove a job in any state, then call `done` with the error, if there was one."""
        self._remove.put(ref, done)

    def get(self, ref: Ref, done: Callable[[Job | BaseException | None], None]) -> None:
        """Read a job, then call `done` with it, with None, or with the error."""
        self._get.put(ref, done)

    async def _remove_all(self, refs: list[Ref]) -> Sequence[BaseException | None]:
        try:
            await self._delete(refs)
        except StoreError as error:
            if len({ref.queue for ref in refs}) == 1:
                return [error] * len(refs)
            return await self._remove_by_queue(refs)
        return [None] * len(refs)

    async def _remove_by_queue(self, refs: list[Ref]) -> Sequence[BaseException | None]:
        """Remove what can be removed while a part of the store is away: the queues of the other parts."""
        failed: dict[str, StoreError] = {}
        for queue in {ref.queue for ref in refs}:
            try:
                await self._delete([ref for ref in refs if ref.queue == queue])
            except StoreError as error:
                failed[queue] = error
        return [failed.get(ref.queue) for ref in refs]

    async def _delete(self, refs: list[Ref]) -> None:
        removed = await self.store.delete(refs, running=True, keep_keys=True)
        for ref, state in zip(refs, removed, strict=True):
            if state is not None:
                self.metrics.acknowledged(ref.queue, ref.id, self.now)

    async def answers(self, within: float = 2.0) -> str:
        """ "" if the store answers within this time (s), else why it does not."""
        try:
            async with asyncio.timeout(within):
                await self.store.promote((), limit=1)
        except TimeoutError:
            return f"the store did not answer within {within:g} s"
        except StoreError as error:
            return str(error)
        return ""

    async def _get_all(self, refs: list[Ref]) -> Sequence[Job | BaseException | None]:
        return await self.store.get(refs)

    async def counted(self, queue: str, only: State | None = None) -> dict[State, int]:
        """The number of jobs of a queue by state; empty if it does not exist.

        `only`: the state that the caller needs. Others may be missing, where each is a request.
        """
        for info in await self.store.queues([queue]):
            if info.away:
                raise StoreError(info.away)
            return dict(info.counts)
        return {}

    async def purge(self, queue: str, state: State, limit: int | None = None) -> None:
        """Remove the oldest jobs of a queue in this state; `limit` None: all."""
        left = limit
        while left is None or left > 0:
            step = MOST_LISTED if left is None else min(MOST_LISTED, left)
            removed = await self.store.purge(queue, [state], limit=step)
            if removed < step:
                return
            left = None if left is None else left - removed

    async def each_page(self, queue: str, state: State, size: int) -> AsyncGenerator[list[Job], None]:
        """Yield the available jobs of a queue, next one first, or the dead ones, oldest first, in pages."""
        order = JobOrder.READY if state is State.AVAILABLE else JobOrder.ENDED
        filter, after = JobFilter((queue,), (state,)), None
        while True:
            page = await self.store.search(filter, order, descending=False, after=after, limit=size)
            if page.jobs:
                yield page.jobs
            after = page.next
            if after is None:
                return

    # ── private ──────────────────────────────────────────────────────────────────────────────────

    def _on_leased(self, queues: set[str], ends: float) -> None:
        self.ttr_timer.leased(queues, ends)

    def _on_due(self, number: int) -> None:
        self.metrics.due += number

    def _on_waiting(self, queues: Sequence[str]) -> None:
        self.work_watch.waits_for(queues)
