"""The store on Redis or Valkey: one server, Sentinel or Cluster, for any number of hosts.

`RedisStore` is the door for event loops, `RedisStore.sync` the one for threads. What a verb asks and what it
makes of the answers stands once, in `verbs/`; the two doors only send (`runner.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any, TypeVar

from penstock.core import forks
from penstock.core.clock import Clock
from penstock.core.ids import mint_token
from penstock.core.job import Job, NewJob, Ref, State
from penstock.core.lifecycle import ASK_CANCELLED, Place, released
from penstock.core.limits import LimitChange
from penstock.core.per_loop import PerLoop
from penstock.core.schedule import Entry, NewEntry
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
    SyncStore,
    Tick,
    Ticked,
    Timetable,
    Wake,
    WorkerInfo,
)
from penstock.stores.redis import checkup
from penstock.stores.redis.context import CallPlan, Context, int_or_zero
from penstock.stores.redis.direct_dispatch import DispatchedJob
from penstock.stores.redis.keys import Keys
from penstock.stores.redis.outages import Prober
from penstock.stores.redis.reading import shown
from penstock.stores.redis.subscriber import Subscriber, read_end
from penstock.stores.redis.verbs import (
    batches,
    fetching,
    key_checks,
    known_queues,
    leases,
    listing,
    news,
    operating,
    periodic,
    producing,
    promoting,
    pruning,
    result_waiting,
    settling,
    waiting,
    workers,
)
from penstock.stores.redis.wire.address import Address
from penstock.stores.redis.wire.async_runner import AsyncRunner, SyncRunner
from penstock.stores.redis.worker_offer import StandingOffer, is_fresh
from penstock.stores.result_waiter import Ended, Endings

__all__ = ["RedisStore"]

R = TypeVar("R")

#: Whoever waits looks for himself this often, whatever he heard (seconds).
_SAFETY = 5.0
#: A question whether a part of a Cluster is back is answered within this (ms).
_PROBE = 1_000


class RedisStore:
    """Jobs on the Redis at this URL, or on that of a redis-py client, whose settings are then used.

    Options of the URL: see docs/stores.md. `clock` is for tests: else the server's clock rules.
    """

    def __init__(
        self, where: Any, *, namespace: str = "", clock: Clock | None = None, **options: Any
    ) -> None:
        address = where if isinstance(where, Address) else Address.of(where, **options)
        self._address = address
        self._runner = AsyncRunner(address)
        self._sync_runner = SyncRunner(address)
        self._context = Context(
            Keys(address.prefix, namespace),
            clock,
            clustered=address.mode == "cluster",
            replicas=address.wait_replicas,
        )
        self._news = _News()
        self._subscribers: PerLoop[Subscriber] = PerLoop()
        self._errands: set[asyncio.Task[None]] = set()
        self._going_back: dict[str, set[asyncio.Task[None]]] = {}  # handed over in vain, by token
        self._prober = Prober(self._context.outages, self._served_again, self._sync_runner.close)
        self._sync = _SyncDoor(self._sync_runner, self._context, self._news)

    @property
    def url(self) -> str:
        return self._address.url

    @property
    def sync(self) -> SyncStore:
        return self._sync

    @property
    def spread(self) -> bool:
        """Whether queues lie on several servers, of which some may be away."""
        return self._context.clustered

    def close(self) -> None:
        """Let go of the connections; a later verb opens new ones. A client that was given stays open."""
        self._prober.close()
        self._subscribers.clear()
        self._runner.close()
        self._sync_runner.close()

    def _served_again(self, names: list[str]) -> list[str]:
        """Which of these parts of a Cluster answer; in a thread of its own."""
        if self._address.mode != "cluster":
            return names
        calls = known_queues.probes(self._context, names)
        answers = self._sync_runner.run(calls, within=_PROBE)
        return [
            name for name, answer in zip(names, answers, strict=True) if not isinstance(answer, Exception)
        ]

    async def _do(self, plan: CallPlan[R]) -> R:
        """Send what the verb yields until it has its answer."""
        if self._news.heard is None:
            await self._begin()
        return await self._converse(plan)

    async def _begin(self) -> None:
        """What happened before a store object's first verb is not told."""
        self._news.begin(await self._converse(news.begin(self._context)))

    async def _converse(self, plan: CallPlan[R]) -> R:
        try:
            calls = next(plan)
            while True:
                calls = plan.send(await self._runner.run(calls))
        except StopIteration as end:
            result: R = end.value
            return result

    # ── producing ──

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return await self._do(producing.enqueue(self._context, jobs))

    async def get(self, refs: Sequence[Ref]) -> list[Job | None]:
        return await self._do(producing.get(self._context, refs))

    async def cancel(self, refs: Sequence[Ref], *, reason: str = ASK_CANCELLED) -> list[State | None]:
        return await self._do(producing.cancel(self._context, refs, reason))

    async def ended(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]:
        return await (await self._here_ends()).ended(refs, timeout, self.get)

    async def ends(self, refs: Sequence[Ref], *, timeout: int) -> AsyncGenerator[dict[Ref, Job | None], None]:
        endings = await self._here_ends()
        async with contextlib.aclosing(endings.ends(refs, timeout)) as ends:
            async for some in ends:
                yield some

    async def _here_ends(self) -> Endings:
        """Who waits in this loop for the ends of jobs."""
        subscriber = await self._subscriber()
        if subscriber.endings is None:
            context, channel = self._context, subscriber.channel

            async def look(refs: Sequence[Ref], seconds: float) -> Ended:
                return await self._do(result_waiting.ended_ones(context, refs, channel, seconds))

            subscriber.endings = Endings(look, every=_SAFETY)
        return subscriber.endings

    # ── consuming ──

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
        plan = fetching.fetch(self._context, queues, limit, lease, worker, token, charge)
        subscriber = self._subscribers.get(asyncio.get_running_loop())
        if subscriber is None:
            return await self._do(plan)
        while back := self._going_back.get(token):  # the fetch would find it, and it would be taken away
            await asyncio.wait(back)
        came = subscriber.direct_dispatch.take(token)
        with subscriber.direct_dispatch.fetching(token) as leased:
            if came:
                if is_fresh(self._context, subscriber, came):
                    found = await self._do(fetching.take_dispatched(self._context, came, worker))
                    leased += found.jobs
                    return found
                # we stood still, and too much of the lease may be over; first, or the fetch would find it
                await self._do(_given_back(self._context, came))
            found = await self._do(plan)
            leased += found.jobs
        if found.jobs and subscriber.offered:  # who has work waits no more
            queues_offered, subscriber.offered = subscriber.offered, frozenset()
            self._send_off(waiting.withdraw(self._context, sorted(queues_offered), subscriber.channel))
        return found

    async def extend(self, beats: Sequence[Beat]) -> list[Grip]:
        return await self._do(leases.extend(self._context, beats))

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        return await self._do(settling.settle(self._context, settlements))

    async def promote(self, queues: Sequence[str], *, limit: int) -> Due:
        return await self._do(promoting.promote(self._context, queues, limit))

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
        return await self._do(leases.reclaim(self._context, queues, limit, lease, worker, token, of))

    async def wait(
        self,
        queues: Sequence[str],
        *,
        timeout: int,
        offer: Offer | None = None,
        parked: Sequence[str] = (),
    ) -> Wake:
        ends = time.monotonic() + timeout / 1000
        if self._news.heard is None:
            await self._begin()
        before = self._news.now
        subscriber = await self._subscriber()
        till = ""
        with subscriber.waiting(frozenset(queues)) as waiter:
            offering = StandingOffer(self._context, subscriber, waiter, queues, offer)
            while True:
                waiter.event.clear()
                left = _ms(ends - time.monotonic())
                # the first look says till when by the server's clock; where the time is up, so it is said
                first = not till
                said = offering.said
                plan = waiting.look(
                    self._context, queues, timeout if first else left, till, subscriber.channel, said, parked
                )
                work, till, news = await self._do(plan)
                if first and till:
                    subscriber.ahead = int(till) - timeout - time.monotonic() * 1000
                if said and not work:
                    subscriber.offered = waiter.queues
                wake = (Wake.WORK if work else Wake.NOTHING) | before.told_by(news)
                if wake or left <= 0:
                    self._news.tell(news)
                    return wake | (Wake.WORK if waiter.work else Wake.NOTHING)
                heard = await _heard(waiter.event, min(ends - time.monotonic(), _SAFETY))
                if waiter.work:
                    return Wake.WORK
                if not heard and ends <= time.monotonic():
                    return Wake.NOTHING  # who comes back looks for himself

    async def _subscriber(self) -> Subscriber:
        """What is heard in this loop; who comes first connects, and the others wait with him."""
        loop = asyncio.get_running_loop()
        subscriber = self._subscribers.get(loop)
        if subscriber is None:
            channel = self._context.keys.channel(mint_token()[:16])
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
            news = self._context.keys.news_channel.encode()
            await self._runner.listen(news, subscriber.on_news, subscriber.on_messages_lost)
        except BaseException:  # boundary: whatever it was, the next one tries again
            subscriber.ready = None
            raise

    def _pass_on(self, queue: str, kind: bytes) -> None:
        self._send_off(waiting.pass_on(self._context, queue, kind))

    def _give_back(self, came: Sequence[DispatchedJob]) -> None:
        """To the heads of their queues; if that fails their leases run out. They have one token."""
        token = came[0].token
        task = self._send_off(_given_back(self._context, came))
        self._going_back.setdefault(token, set()).add(task)

        def back(task: asyncio.Task[None]) -> None:
            self._going_back[token].discard(task)
            if not self._going_back[token]:
                del self._going_back[token]

        task.add_done_callback(back)

    def _send_off(self, plan: CallPlan[Any]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._do(plan))
        self._errands.add(task)
        task.add_done_callback(self._came_back)
        return task

    def _came_back(self, task: asyncio.Task[Any]) -> None:
        self._errands.discard(task)
        if not task.cancelled():
            task.exception()  # nobody waits for it: who could not be told will look for himself

    # ── operating ──

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
        return await self._do(listing.list_jobs(self._context, queue, state, task, worker, after, limit))

    async def find(self, id: str) -> list[Job]:
        return await self._do(listing.find(self._context, id))

    async def queues(self) -> list[QueueInfo]:
        return await self._do(listing.queues(self._context))

    async def parked(self) -> list[Parked]:
        return await self._do(listing.parked(self._context))

    async def stats(self, *, days: int = 7) -> list[QueueStats]:
        return await self._do(listing.stats(self._context, days))

    async def settings(
        self,
        queue: str,
        *,
        paused: bool | None = None,
        closed: bool | None = None,
        limits: LimitChange | None = None,
    ) -> QueueInfo:
        return await self._do(operating.settings(self._context, queue, paused, closed, limits))

    async def retry(self, refs: Sequence[Ref]) -> list[State | None]:
        return await self._do(operating.retry(self._context, refs))

    async def reschedule(
        self, refs: Sequence[Ref], *, delay: int = 0, run_at: int | None = None
    ) -> list[State | None]:
        return await self._do(operating.reschedule(self._context, refs, delay, run_at))

    async def delete(self, refs: Sequence[Ref]) -> list[State | None]:
        return await self._do(operating.delete(self._context, refs))

    async def purge(self, queue: str, states: Sequence[State], *, limit: int = 10_000) -> int:
        return await self._do(operating.purge(self._context, queue, states, limit))

    async def drop(self, queue: str) -> bool:
        return await self._do(operating.drop(self._context, queue))

    async def lane(self, ref: Ref) -> LaneInfo | None:
        return await self._do(listing.lane(self._context, ref))

    async def prune(
        self, *, limit: int = 1_000, keep_finished: int = 100_000, keep_dead: int = 100_000
    ) -> Pruned:
        return await self._do(pruning.prune(self._context, limit, keep_finished, keep_dead))

    async def announce(self, worker: WorkerInfo) -> None:
        await self._do(workers.announce(self._context, worker))

    async def retire(self, worker: str) -> None:
        await self._do(workers.retire(self._context, worker))

    async def workers(self) -> list[WorkerInfo]:
        return await self._do(workers.workers(self._context))

    async def entries(self, queues: Sequence[str] | None = None) -> Timetable:
        return await self._do(periodic.entries(self._context, queues))

    async def put_entries(self, entries: Sequence[NewEntry]) -> list[Entry]:
        return await self._do(periodic.put_entries(self._context, entries))

    async def pause_entries(self, refs: Sequence[Ref], paused: bool) -> list[Entry | None]:
        return await self._do(periodic.pause_entries(self._context, refs, paused))

    async def delete_entries(self, refs: Sequence[Ref]) -> list[bool]:
        return await self._do(periodic.delete_entries(self._context, refs))

    async def tick(self, ticks: Sequence[Tick]) -> list[Ticked]:
        return await self._do(periodic.tick(self._context, ticks))

    async def groups(self, queue: str | None = None, *, limit: int = 1_000) -> list[GroupInfo]:
        return await self._do(batches.groups(self._context, queue, limit))

    async def flush_group(self, queue: str, *, task: str, key: str = "") -> str | None:
        return await self._do(batches.flush_group(self._context, queue, task, key))

    async def checkup(self) -> list[Finding]:
        before = int(time.time() * 1000)
        answers = await self._runner.everywhere(checkup.QUESTIONS)
        after = int(time.time() * 1000)
        wanted = self._address.wait_replicas
        found = checkup.examined(
            answers, mode=self._address.mode, before_ms=before, after_ms=after, wait_replicas=wanted
        )
        found += await self._do(key_checks.wrong_types(self._context))
        return found + await self._do(key_checks.unread_settings(self._context))


class _SyncDoor:
    """The producing verbs for callers without an event loop, each in the caller's own thread."""

    def __init__(self, runner: SyncRunner, context: Context, news: _News) -> None:
        self._runner = runner
        self._context = context
        self._news = news

    def _do(self, plan: CallPlan[R]) -> R:
        if self._news.heard is None:
            self._news.begin(self._converse(news.begin(self._context)))
        return self._converse(plan)

    def _converse(self, plan: CallPlan[R]) -> R:
        try:
            calls = next(plan)
            while True:
                calls = plan.send(self._runner.run(calls))
        except StopIteration as end:
            result: R = end.value
            return result

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return self._do(producing.enqueue(self._context, jobs))

    def get(self, refs: Sequence[Ref]) -> list[Job | None]:
        return self._do(producing.get(self._context, refs))

    def cancel(self, refs: Sequence[Ref], *, reason: str = ASK_CANCELLED) -> list[State | None]:
        return self._do(producing.cancel(self._context, refs, reason))

    def ended(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]:
        found: Ended = {}
        for some in self.ends(refs, timeout=timeout):
            found |= some
        if left := [ref for ref in refs if ref not in found]:
            found |= zip(left, self.get(left), strict=True)
        return [found[ref] for ref in refs]

    def ends(self, refs: Sequence[Ref], *, timeout: int) -> Generator[Ended, None, None]:
        """The ends of these, until all have ended or the time is up."""
        until = time.monotonic() + timeout / 1000
        open = dict.fromkeys(refs)
        if not open:
            return
        channel = self._context.keys.channel(mint_token()[:16])
        untold: set[Ref] = set()  # we asked to be told of their end, and have heard nothing yet
        with self._runner.listener(channel.encode()) as listener:
            while open:
                told_on = listener.channel.decode()
                ended = self._do(result_waiting.ended_ones(self._context, list(open), told_on, 2 * _SAFETY))
                untold |= open.keys() - ended.keys()
                look_again = min(until, time.monotonic() + _SAFETY)
                while True:
                    for ref in ended:
                        del open[ref]
                    if not open:  # an end that nobody told of: the message is late, or the line is dead
                        listener.then = "close" if untold else "keep"
                    if ended:
                        yield ended
                    message = listener.hear(max(0.0, look_again - time.monotonic())) if open else None
                    if message is None:
                        break
                    untold.discard(read_end(message)[0])
                    ended = self._end_in(message, open)
                if until <= time.monotonic():
                    return

    def _end_in(self, message: bytes, open: dict[Ref, None]) -> Ended:
        """Of what this message tells; nothing, if nobody waits for it any more."""
        ref, id, record = read_end(message)
        if ref not in open:
            return {}
        if record is None:  # it was too large to travel
            (job,) = self.get([ref])
            return {ref: job} if job is None or job.ended else {}
        if not record:
            return {ref: None}
        (job,) = self._do(shown(self._context, ref.queue, [(id, record, None)]))
        return {ref: job}

    def retry(self, refs: Sequence[Ref]) -> list[State | None]:
        return self._do(operating.retry(self._context, refs))

    def reschedule(
        self, refs: Sequence[Ref], *, delay: int = 0, run_at: int | None = None
    ) -> list[State | None]:
        return self._do(operating.reschedule(self._context, refs, delay, run_at))

    def queues(self) -> list[QueueInfo]:
        return self._do(listing.queues(self._context))

    def settings(
        self,
        queue: str,
        *,
        paused: bool | None = None,
        closed: bool | None = None,
        limits: LimitChange | None = None,
    ) -> QueueInfo:
        return self._do(operating.settings(self._context, queue, paused, closed, limits))


def _given_back(context: Context, came: Sequence[DispatchedJob]) -> CallPlan[list[Settled]]:
    back = released(Place.HEAD)
    return settling.settle(context, [Settlement(one.lease, back) for one in came])


async def _heard(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _ms(seconds: float) -> int:
    return max(0, int(seconds * 1000))


class _Counts(tuple[int, int]):
    """How many requests to stop, and changes of settings, there had been."""

    def told_by(self, news: tuple[int, int]) -> Wake:
        wake = Wake.NOTHING
        if news[0] > self[0]:
            wake |= Wake.CANCEL
        if news[1] > self[1]:
            wake |= Wake.SETTINGS
        return wake


class _News:
    """What the waits of a store object have told of requests to stop and changes of settings."""

    def __init__(self) -> None:
        self.heard: _Counts | None = None
        self._lock = forks.lock()

    @property
    def now(self) -> _Counts:
        assert self.heard is not None
        return self.heard

    def begin(self, answer: Any) -> None:
        with self._lock:
            if self.heard is None:
                self.heard = _Counts(map(int_or_zero, answer))

    def tell(self, news: tuple[int, int]) -> None:
        """Several waits may end at once: the latest news count."""
        with self._lock:
            self.heard = _Counts(map(max, zip(self.now, news, strict=True)))
