"""Serves consume requests: fetches jobs for many of them in one call, and keeps those that wait.

A waiting request is a record in the list of each of its queues, not a task. Requests for the same queue are
served in the order in which they came. A request whose client is gone is removed at once; a job that a fetch
under way brings for it is released, and no try is spent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import islice

from penstock.core.errors import StoreError
from penstock.core.ids import mint_token
from penstock.core.job import Job, Lease
from penstock.core.lifecycle import asked_to_stop, released
from penstock.core.loops import start_later
from penstock.core.outcomes import QueuePosition
from penstock.dialects.lmstfy.polls import Deadlines, Poll, chains, emptied, plans, shares
from penstock.stores.contract import Fetched, Settlement, Share, Store

_log = logging.getLogger("penstock.lmstfy")

#: Requests that one fetch serves at most.
_MOST_POLLS = 256
#: Waiting requests of a queue that a fetch serves if it is not known how many jobs there are; a fetch that
#: brings a job for each is followed by a larger one. 256 requests for one job cost a millisecond.
_FEW_POLLS = 16
#: Pause (s) before a fetch is repeated whose reply was lost, to give back what it has leased.
_RECOVER = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchEvents:
    """What a dispatcher reports to the services around it: functions that it calls."""

    #: With the queues of leased jobs and the instant (`time.monotonic`) at which their leases end.
    leased: Callable[[set[str], float], None]
    #: With queues that get their first waiting request.
    waiting: Callable[[Sequence[str]], None]
    #: With the store's clock (ms) when it is read.
    now: Callable[[int], None]
    #: With a queue, the ids of jobs that were delivered, and the store's clock.
    delivered: Callable[[str, Sequence[str], int], None]


class Dispatcher:
    """Matches jobs with consume requests. `delivered` is the number of delivered jobs."""

    def __init__(self, store: Store, worker: str, events: DispatchEvents) -> None:
        self._store = store
        self._worker = worker
        self._events = events
        self._new: list[Poll] = []
        self._arriving: dict[
            str, int
        ] = {}  # by queue: requests that may wait, and are in `_new` or in a round
        self._waiting: dict[str, dict[Poll, None]] = {}  # by queue, in order of arrival
        self._deadlines = Deadlines(self._time_out)
        self._on_gone = self._forget  # the same bound method for all requests
        # queues that may have jobs for waiting requests, and how many
        self._with_work: dict[str, int] = {}
        self._guessed: set[str] = set()  # those of them whose number of jobs is not known
        self._served: set[str] = set()
        self._flight: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrivals = 0
        self.delivered = 0
        self._stopping = False

    # ── requests ─────────────────────────────────────────────────────────────────────────────────

    def put(self, poll: Poll) -> None:
        """Serve a request: now, or when there is a job, or at its timeout without one."""
        if not poll.exchange.stays(poll.gone):
            return
        self._arrivals += 1
        poll.arrival = self._arrivals
        poll.on_gone = self._on_gone
        if poll.timeout > 0:
            poll.deadline = time.monotonic() + poll.timeout
            if all(queue in self._waiting and queue not in self._arriving for queue in poll.queues):
                self._wait_on(poll)  # the queues are empty, as far as is known
                return
            for queue in poll.queues:
                self._arriving[queue] = self._arriving.get(queue, 0) + 1
        self._new.append(poll)
        self._start()

    def work(self, queues: Iterable[str], jobs: int | None = None) -> None:
        """Note how many available jobs each of these queues has got; None: it is not known."""
        for queue in queues:
            if self._flight is not None or queue in self._waiting:
                self._with_work[queue] = self._with_work.get(queue, 0) + (jobs or _FEW_POLLS)
                if jobs is None:
                    self._guessed.add(queue)
        if self._with_work:
            self._start()

    def note_served(self) -> set[str]:
        """Return a set that gets the queues, from now on, whose jobs are delivered while requests wait.

        A later call ends this.
        """
        self._served = set()
        return self._served

    @property
    def waited_for(self) -> list[str]:
        """The queues that have waiting requests."""
        return list(self._waiting)

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return len({poll for polls in self._waiting.values() for poll in polls})

    async def idle(self) -> None:
        """Wait until no fetch is under way."""
        while self._flight is not None:
            await asyncio.shield(self._flight)

    async def stop(self) -> None:
        """Answer all waiting requests as at their timeout, and wait for the fetch under way."""
        self._stopping = True
        for poll in {poll for polls in self._waiting.values() for poll in polls}:
            self._time_out(poll)
        self._deadlines.stop()
        await self.idle()
        for task in list(self._tasks):
            await asyncio.wait([task])

    # ── rounds ───────────────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        if self._flight is None:
            self._flight = start_later(self._run())

    async def _run(self) -> None:
        try:
            while self._new or self._with_work:
                await self._round()
        finally:
            self._flight = None

    async def _round(self) -> None:
        new, self._new = self._new[:_MOST_POLLS], self._new[_MOST_POLLS:]
        polls, queues = self._next_polls(new)
        parts = chains(plans(polls))
        guessed, self._guessed = self._guessed, set()
        try:
            if len(parts) == 1:
                await self._serve(parts[0], guessed, queues)
            else:
                await asyncio.gather(*(self._serve(part, guessed, queues) for part in parts))
        finally:
            self._arrived(new)

    async def _serve(
        self, chain: Sequence[Sequence[Poll]], guessed: AbstractSet[str], queues: AbstractSet[str]
    ) -> None:
        """Fetch from these queues for plans that have some in common, in order.

        A queue that was found empty is not asked again: a job that has come since belongs to the request that
        came first, which is served in the next round.
        """
        left = set(queues)
        for plan in chain:
            served = [poll for poll in plan if not left.isdisjoint(poll.queues)]
            if served:
                left -= await self._fetch(served, guessed, left)
            for poll in plan:
                if not poll.done:
                    self._wait_on(poll)

    def _arrived(self, new: Sequence[Poll]) -> None:
        for poll in new:
            for queue in poll.queues if poll.timeout > 0 else ():
                self._arriving[queue] -= 1
                if not self._arriving[queue]:
                    del self._arriving[queue]

    def _next_polls(self, new: Sequence[Poll]) -> tuple[list[Poll], set[str]]:
        """The requests of the next round, in order of arrival, and the queues that it asks.

        Older requests of these queues come first. A waiting request may also wait for queues that the round
        does not ask, because older requests of theirs are not in it.
        """
        queues, self._with_work = self._with_work, {}
        for poll in new:
            for queue in poll.queues:
                if queue in self._waiting:
                    queues[queue] = _MOST_POLLS  # all of them come before it
                    self._guessed.add(queue)
        chosen = {poll: None for poll in new if not poll.done}
        for queue, jobs in queues.items():
            for poll in islice(self._waiting.get(queue, ()), min(jobs, _MOST_POLLS)):
                chosen[poll] = None
        asked = {*queues, *(queue for poll in new for queue in poll.queues)}
        return sorted(chosen, key=_arrival), asked

    async def _fetch(
        self, polls: Sequence[Poll], guessed: AbstractSet[str], queues: AbstractSet[str]
    ) -> set[str]:
        """Serve these requests from these queues; returns those that are empty now."""
        first = polls[0]
        wanted = sum(poll.wanted for poll in polls)
        asked = shares(polls, queues)
        token = mint_token()
        lease = max(1, first.ttr * 1_000)
        try:
            found = await self._store.fetch(
                asked, limit=wanted, lease=lease, worker=self._worker, token=token, charge=first.charge
            )
        except Exception as error:  # noqa: BLE001  # boundary: an error of one fetch is the answer of its requests
            _log.warning("consume: %s", error, exc_info=not isinstance(error, StoreError))
            self._recover(asked, wanted, lease, token)
            for poll in polls:
                self._finish(poll)
                poll.failed()
            return set()
        self._events.now(found.now)
        if found.jobs:
            self._events.leased({job.queue for job in found.jobs}, time.monotonic() + lease / 1_000)
        empty, unseen = emptied(asked, wanted, found.jobs)
        self._deliver(polls, found, wanted, guessed, more=bool(unseen))
        if unseen and (left := [poll for poll in polls if not poll.done]):
            empty |= await self._fetch(left, guessed, unseen)
        return empty

    def _deliver(
        self, polls: Sequence[Poll], found: Fetched, wanted: int, guessed: AbstractSet[str], *, more: bool
    ) -> None:
        """`more`: requests that get no job do not wait yet: other queues may have one for them."""
        by_queue: dict[str, list[Job]] = {}
        ended: list[Settlement] = []
        for job in found.jobs:
            if job.cancel_asked:
                ended.append(Settlement(job.lease, asked_to_stop(job)))
            else:
                by_queue.setdefault(job.queue, []).append(job)
        for jobs in by_queue.values():
            jobs.reverse()
        for poll in polls:
            if poll.done:  # its client is gone, or its time was over during the fetch
                continue
            jobs = poll.pick(by_queue)
            if not jobs:
                if not more:
                    self._wait_on(poll)
                continue
            self._finish(poll)
            self.delivered += len(jobs)
            self._served.update(job.queue for job in jobs if job.queue in self._waiting)
            if poll.deliver(jobs, found.now):
                for queue in {job.queue for job in jobs}:
                    self._events.delivered(queue, [job.id for job in jobs if job.queue == queue], found.now)
            else:
                ended += [_given_back(job.lease) for job in jobs]
        if len(found.jobs) >= wanted:  # where the number of jobs is not known, there may be more
            for queue in guessed & {queue for poll in polls for queue in poll.queues}:
                if queue in self._waiting:
                    self._with_work[queue] = 4 * wanted
                    self._guessed.add(queue)
        for jobs in by_queue.values():
            ended += [_given_back(job.lease) for job in jobs]
        if ended:
            self._settle(ended)

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────

    def _wait_on(self, poll: Poll) -> None:
        """Keep a request that got no job, until its deadline."""
        left = poll.deadline - time.monotonic()
        if left <= 0 or self._stopping:
            self._time_out(poll)
            return
        if poll.waits:
            return
        poll.waits, poll.wanted = True, 1
        poll.exchange.rest()
        self._deadlines.add(poll)
        first = [queue for queue in poll.queues if queue not in self._waiting]
        for queue in poll.queues:
            self._waiting.setdefault(queue, {})[poll] = None
        if first:
            self._events.waiting(first)

    def _time_out(self, poll: Poll) -> None:
        if not poll.done:
            self._finish(poll)
            poll.nothing()

    def _forget(self, poll: Poll) -> None:
        """Remove a request whose client is gone."""
        if not poll.done:
            self._finish(poll)

    def _finish(self, poll: Poll) -> None:
        poll.done = True
        poll.exchange.on_gone = None
        if not poll.waits:
            return
        self._deadlines.discard(poll)
        for queue in poll.queues:
            polls = self._waiting.get(queue)
            if polls is not None:
                polls.pop(poll, None)
                if not polls:
                    del self._waiting[queue]

    # ── jobs that no request gets ────────────────────────────────────────────────────────────────

    def _settle(self, settlements: list[Settlement]) -> None:
        """Give jobs back, or end those that were asked to stop, then look for requests that wait for them."""

        async def settle() -> None:
            try:
                await self._store.settle(settlements)
            except StoreError as error:  # their leases run out
                _log.warning("jobs could not be released: %s", error)
            self.work([one.lease.queue for one in settlements])

        self._spawn(settle())

    def _recover(self, asked: Sequence[Share], limit: int, lease: int, token: str) -> None:
        """Repeat a fetch whose reply was lost, and release the jobs that it has leased."""

        async def recover() -> None:
            until = time.monotonic() + lease / 1_000
            while time.monotonic() < until and not self._stopping:
                await asyncio.sleep(_RECOVER)
                try:
                    found = await self._store.fetch(
                        asked, limit=limit, lease=lease, worker=self._worker, token=token
                    )
                    leases: list[Lease] = [job.lease for job in found.jobs]
                    await self._store.settle([_given_back(one) for one in leases])
                except StoreError:
                    continue
                self.work([one.queue for one in leases])
                return

        self._spawn(recover())

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _arrival(poll: Poll) -> int:
    return poll.arrival


def _given_back(lease: Lease) -> Settlement:
    return Settlement(lease, released(QueuePosition.HEAD))
