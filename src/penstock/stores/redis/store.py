"""The store on Redis or Valkey: one server, Sentinel or Cluster, for any number of hosts.

`RedisStore` is for event loops, `RedisStore.sync` (`sync_store.py`) for threads. The handlers of requests
(`handlers.py`) make plans of calls (`verbs/`), which the plan runner sends. This module has the requests that
wait, the fetch of jobs that were dispatched to a waiting worker, the checkup, and closing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import astuple

from penstock.core.clock import Clock
from penstock.core.ids import mint_token
from penstock.core.job import Job, Ref
from penstock.core.lifecycle import released
from penstock.core.loops import PerLoop
from penstock.core.outcomes import QueuePosition
from penstock.stores.contract import (
    Checkup,
    Fetch,
    Fetched,
    Finding,
    Request,
    Settled,
    Settlement,
    StreamEnds,
    SyncStore,
    Wait,
    WaitForEnd,
    Wake,
    WorkerOffer,
)
from penstock.stores.own_store import NamespaceViews, OwnStore
from penstock.stores.redis import checkup
from penstock.stores.redis.context import CallPlan, Context
from penstock.stores.redis.handlers import HANDLERS
from penstock.stores.redis.layout import UNDECODABLE, RedisKeys
from penstock.stores.redis.plan_runner import PlanRunner
from penstock.stores.redis.profiles import UnknownProfile
from penstock.stores.redis.subscriber import DispatchedJob, Subscriber, Waiter
from penstock.stores.redis.sync_store import SyncRedisStore
from penstock.stores.redis.unusable_queues import Prober
from penstock.stores.redis.verbs import fetching, key_checks, known_queues, result_waiting, settling, waiting
from penstock.stores.redis.wire.address import Address
from penstock.stores.redis.wire.async_runner import AsyncRunner
from penstock.stores.redis.wire.sync_runner import SyncRunner
from penstock.stores.result_waiter import EndedJobs, ResultWaiter

A = TypeVar("A")

#: Waiters re-check at this interval (seconds) even if no notification arrived.
_SAFETY = 5.0
#: The timeout (ms) of a probe whether a part of a Cluster is back.
_PROBE = 1_000
#: Most milliseconds from the lease of a dispatched job until its start; an older job is given back.
_FRESH = 1_000


class RedisStore(NamespaceViews, OwnStore):
    """A store on the Redis at this URL, or on that of a redis-py client, whose settings are then used.

    Options of the URL: see docs/stores.md. `clock` is for tests; the default is the server's clock.
    """

    def __init__(
        self, where: Any, *, namespace: str = "", clock: Clock | None = None, **options: Any
    ) -> None:
        address = where if isinstance(where, Address) else Address.of(where, **options)
        self._set_up(namespace, clock, address, AsyncRunner(address), SyncRunner(address))

    def _set_up(
        self,
        namespace: str,
        clock: Clock | None,
        address: Address,
        runner: AsyncRunner,
        sync_runner: SyncRunner,
    ) -> None:
        self._clock, self._address = clock, address
        self._runner, self._sync_runner = runner, sync_runner
        self._context = Context(
            RedisKeys(address.prefix, namespace),
            clock,
            clustered=address.mode == "cluster",
            replicas=address.wait_replicas,
        )
        self._plans = PlanRunner(self._runner, self._sync_runner, self._context)
        NamespaceViews.__init__(self, namespace)
        self._subscribers: PerLoop[Subscriber] = PerLoop()
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._going_back: dict[str, set[asyncio.Task[None]]] = {}  # tasks that give jobs back, by token
        self._prober = Prober(self._context.outages, self._served_again, self._sync_runner.close)
        self._sync = SyncRedisStore(self._sync_runner, self._plans)

    @property
    def url(self) -> str:
        return self._address.url

    @property
    def sync(self) -> SyncStore:
        return self._sync

    @property
    def spread(self) -> bool:
        """True if queues are on several servers, of which some may be away."""
        return self._context.clustered

    def close(self) -> None:
        """Close the connections; a later verb opens new ones. A given redis-py client stays open.

        Closing a view of a namespace closes no connection.
        """
        self._prober.close()
        if self._origin is not None:
            return
        self._subscribers.clear()
        for view in list(self._views.values()):
            view.close()
            view._subscribers.clear()
        self._runner.close()
        self._sync_runner.close()

    def _view(self, namespace: str) -> RedisStore:
        view = RedisStore.__new__(RedisStore)
        view._set_up(namespace, self._clock, self._address, self._runner, self._sync_runner)
        return view

    def _served_again(self, names: list[str]) -> list[str]:
        """Return the names whose part of the Cluster answers again; called in the prober's thread."""
        if self._address.mode != "cluster":
            return names
        calls = known_queues.probes(self._context, names)
        answers = self._sync_runner.run(calls, within=_PROBE)
        return [
            name for name, answer in zip(names, answers, strict=True) if not isinstance(answer, Exception)
        ]

    async def _answer(self, request: Request[A]) -> A:
        answer: Any
        if (own := _OWN.get(type(request))) is not None:
            answer = await own(self, request)
        else:
            answer = await self._plans.run(HANDLERS[type(request)](self._context, *astuple(request)))
        return answer  # type: ignore[no-any-return]

    async def _wait_for_end(self, request: WaitForEnd) -> list[Job | None]:
        waiter = await self._loop_result_waiter()
        return await waiter.wait_for_end(request.refs, request.timeout, self.get)

    async def stream(self, request: StreamEnds) -> AsyncGenerator[dict[Ref, Job | None], None]:
        result_waiter = await self._loop_result_waiter()
        async with contextlib.aclosing(result_waiter.stream_ends(request.refs, request.timeout)) as ends:
            async for some in ends:
                yield some

    async def _loop_result_waiter(self) -> ResultWaiter:
        """Return the result waiter of the running event loop."""
        subscriber = await self._subscriber()
        if subscriber.result_waiter is None:
            context, channel = self._context, subscriber.channel

            async def look(refs: Sequence[Ref], seconds: float) -> EndedJobs:
                return await self._plans.run(result_waiting.find_ended(context, refs, channel, seconds))

            subscriber.result_waiter = ResultWaiter(look, every=_SAFETY)
        return subscriber.result_waiter

    async def _fetch(self, request: Fetch) -> Fetched:
        token, plan = request.token, fetching.fetch(self._context, *astuple(request))
        subscriber = self._subscribers.get(asyncio.get_running_loop())
        if subscriber is None:
            return await self._plans.run(plan)
        while back := self._going_back.get(token):  # else it would return jobs that are given back
            await asyncio.wait(back)
        came = subscriber.direct_dispatch.take(token)
        with subscriber.direct_dispatch.fetching(token) as leased:
            if came:
                if _is_fresh(self._context, subscriber, came):
                    found = await self._plans.run(
                        fetching.take_dispatched(self._context, came, request.worker)
                    )
                    leased += found.jobs
                    return found
                # this process was stopped, and too much of the lease may be over: give the jobs back before
                # the fetch, which would return them
                await self._plans.run(_given_back(self._context, came))
            found = await self._plans.run(plan)
            leased += found.jobs
        if found.jobs and subscriber.offered:  # a worker that has jobs no longer waits
            queues_offered, subscriber.offered = subscriber.offered, frozenset()
            self._run_in_background(
                waiting.withdraw(self._context, sorted(queues_offered), subscriber.channel)
            )
        return found

    async def _wait(self, request: Wait) -> Wake:
        queues, timeout, on_due = request.queues, request.timeout, request.on_due
        ends = time.monotonic() + timeout / 1000
        if self._plans.wake_counts.seen is None:
            await self._plans.begin()
        before = self._plans.wake_counts.now
        subscriber = await self._subscriber()
        till = ""
        with subscriber.waiting(frozenset(queues)) as waiter:
            standing = _StandingOffer(self._context, subscriber, waiter, queues, request.offer)
            while True:
                waiter.event.clear()
                left = _ms(ends - time.monotonic())
                # the first check returns the end of the wait by the server's clock, even at the timeout
                first = not till
                said = standing.said
                look_for = timeout if first else left
                plan = waiting.look(
                    self._context,
                    queues,
                    look_for,
                    till,
                    subscriber.channel,
                    said,
                    request.parked,
                    on_due is None,
                )
                answered = set(waiter.messages)
                work, till, counts, dues = await self._plans.run(plan)
                waiter.messages -= answered  # they need not be passed on
                if first and till:
                    subscriber.ahead = int(till) - timeout - time.monotonic() * 1000
                if said and not work:
                    subscriber.offered = waiter.queues
                wake = (Wake.WORK if work else Wake.NOTHING) | counts.wake_since(before)
                if wake or left <= 0:
                    self._plans.wake_counts.update(counts)
                    return wake | (Wake.WORK if waiter.work else Wake.NOTHING)
                if on_due is not None:
                    for due, now in dues:
                        on_due(due, now)
                notified = await _notified(waiter.event, min(ends - time.monotonic(), _SAFETY))
                if waiter.work:
                    return Wake.WORK
                if not notified and ends <= time.monotonic():
                    return Wake.NOTHING  # the next wait checks again

    async def _subscriber(self) -> Subscriber:
        """Return the subscriber of the running event loop; concurrent first callers share its connecting."""
        loop = asyncio.get_running_loop()
        subscriber = self._subscribers.get(loop)
        if subscriber is None:
            channel = self._context.redis_keys.channel(mint_token()[:16])
            subscriber = Subscriber(channel, self._pass_on, self._give_back, self._context.read)
            self._subscribers.put(loop, subscriber)
        if subscriber.ready is None:
            subscriber.ready = loop.create_task(self._listen(subscriber))
        await asyncio.shield(subscriber.ready)
        return subscriber

    async def _listen(self, subscriber: Subscriber) -> None:
        try:
            await self._runner.listen(
                subscriber.channel.encode(), subscriber.on_message, subscriber.on_messages_lost
            )
            notices = self._context.redis_keys.notice_channel.encode()
            await self._runner.listen(notices, subscriber.on_notice, subscriber.on_messages_lost)
        except BaseException:  # boundary: after any error the next caller tries again
            subscriber.ready = None
            raise

    def _pass_on(self, queue: str, kind: bytes) -> None:
        self._run_in_background(waiting.pass_on(self._context, queue, kind))

    def _give_back(self, came: Sequence[DispatchedJob]) -> None:
        """Release jobs of one token to the heads of their queues; if that fails, their leases run out."""
        token = came[0].token
        task = self._run_in_background(_given_back(self._context, came))
        self._going_back.setdefault(token, set()).add(task)

        def back(task: asyncio.Task[None]) -> None:
            self._going_back[token].discard(task)
            if not self._going_back[token]:
                del self._going_back[token]

        task.add_done_callback(back)

    def _run_in_background(self, plan: CallPlan[Any]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._plans.run(plan))
        self._background_tasks.add(task)
        task.add_done_callback(self._on_background_done)
        return task

    def _on_background_done(self, task: asyncio.Task[Any]) -> None:
        self._background_tasks.discard(task)
        if not task.cancelled():
            task.exception()  # mark it as retrieved: no task awaits it, and waiters re-check at an interval

    async def _checkup(self, request: Checkup) -> list[Finding]:
        before = int(time.time() * 1000)
        answers = await self._runner.everywhere(checkup.QUESTIONS)
        after = int(time.time() * 1000)
        found = checkup.examined(answers, address=self._address, before_ms=before, after_ms=after)
        found += await self._plans.run(key_checks.wrong_types(self._context))
        return found + await self._plans.run(key_checks.unread_settings(self._context))


class _StandingOffer:
    """A worker's offer for one wait: jobs go to the worker on arrival, or else to its next fetch."""

    def __init__(
        self,
        context: Context,
        subscriber: Subscriber,
        waiter: Waiter,
        queues: Sequence[str],
        offer: WorkerOffer | None,
    ) -> None:
        self._context = context
        self._subscriber = subscriber
        self._waiter = waiter
        self._queues = queues
        self._put_down(offer)
        waiter.take = self._take

    def _put_down(self, offer: WorkerOffer | None) -> None:
        self._offer = offer
        #: The offer in the form that producers read; "" without an offer.
        self.said = "" if offer is None else waiting.offer_of(self._context, self._queues, offer)
        if offer is not None:
            self._subscriber.offers(self._waiter, offer.token)

    def _take(self, one: DispatchedJob) -> bool:
        offer = self._offer
        if offer is None or offer.take is None or not _is_fresh(self._context, self._subscriber, [one]):
            return False
        try:
            jobs = fetching.jobs_of_dispatched(self._context, [one], offer.worker)
        except (UnknownProfile, *UNDECODABLE):  # only the server can tell: the next fetch asks it
            return False
        self._put_down(offer.take(Fetched(jobs, one.now)))
        self._waiter.work = self._offer is None
        return True


def _is_fresh(context: Context, subscriber: Subscriber, came: Sequence[DispatchedJob]) -> bool:
    """Return True if most of the lease is left."""
    return context.steered or subscriber.age_of(came) <= _FRESH


#: What the store does for the requests that are not one plan.
_OWN: Mapping[type[Request[Any]], Callable[[RedisStore, Any], Awaitable[Any]]] = {
    Fetch: RedisStore._fetch,
    Wait: RedisStore._wait,
    WaitForEnd: RedisStore._wait_for_end,
    Checkup: RedisStore._checkup,
}


def _given_back(context: Context, came: Sequence[DispatchedJob]) -> CallPlan[list[Settled]]:
    back = released(QueuePosition.HEAD)
    return settling.settle(context, [Settlement(one.lease, back) for one in came])


async def _notified(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _ms(seconds: float) -> int:
    return max(0, int(seconds * 1000))
