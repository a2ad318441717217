"""Consume requests as records that wait: their answers, their ends, and which of them one fetch serves."""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

from penstock.core.job import Job
from penstock.dialects.lmstfy.jobs import lease_text, shown
from penstock.dialects.lmstfy.requests import error, no_job, plain_reply
from penstock.stores.contract import Share, looked_at
from penstock.web.exchange import Exchange


class Poll:
    """A consume request.

    - `queues`: the store's queues, in order of priority, each once; `names`: lmstfy's names of them.
    - `ttr`, `timeout`: in seconds.
    - `count`: the jobs that it asks for. None: one, which is answered without an array.
    - `charge=False`: the delivery spends no try.
    - `with_lease`: the answer shows the leases of the jobs.
    """

    __slots__ = (
        "arrival",
        "charge",
        "deadline",
        "done",
        "exchange",
        "many",
        "names",
        "namespace",
        "on_gone",
        "queues",
        "timeout",
        "ttr",
        "waits",
        "wanted",
        "with_lease",
    )

    def __init__(
        self,
        exchange: Exchange,
        namespace: str,
        names: tuple[str, ...],
        queues: tuple[str, ...],
        *,
        ttr: int,
        timeout: int,
        count: int,
        charge: bool = True,
        with_lease: bool = False,
    ) -> None:
        self.exchange = exchange
        self.namespace = namespace
        self.names = names
        self.queues = queues
        self.ttr = ttr
        self.timeout = timeout
        self.wanted = count
        self.many = count > 1
        self.charge = charge
        self.with_lease = with_lease
        self.arrival = 0
        self.deadline = -math.inf  # monotonic
        self.waits = False
        self.done = False
        self.on_gone: Callable[[Poll], None] | None = None

    def gone(self) -> None:
        """Note that the client is gone."""
        if self.on_gone is not None:
            self.on_gone(self)

    def shares_fetch_with(self, other: Poll) -> bool:
        """Whether one fetch can serve both."""
        if self.ttr != other.ttr or self.charge is not other.charge:
            return False
        return len(self.queues) == len(other.queues) == 1 or self.queues == other.queues

    def pick(self, by_queue: dict[str, list[Job]]) -> list[Job]:
        """Take this request's jobs; each list has its first job last."""
        taken: list[Job] = []
        for queue in self.queues:
            jobs = by_queue.get(queue)
            while jobs and len(taken) < self.wanted:
                taken.append(jobs.pop())
        return taken

    def deliver(self, jobs: list[Job], now: int) -> bool:
        """Answer with jobs; False if the client is gone."""
        shown_jobs = [
            shown(
                job,
                self.namespace,
                self.names[self.queues.index(job.queue)],
                now,
                message="new job",
                lease=lease_text(job) if self.with_lease else "",
            )
            for job in jobs
        ]
        body = b"[%b]" % b",".join(shown_jobs) if self.many else shown_jobs[0]
        return self.exchange.answer(plain_reply(200, body))

    def nothing(self) -> None:
        """Answer that there is no job."""
        self.exchange.answer(no_job())

    def failed(self) -> None:
        """Answer that the store failed."""
        self.exchange.answer(error(500, "internal error"))


# ── the ends of waiting requests ───────────────────────────────────────────────────────────────────

#: The least step (s), and the part of a request's timeout, by which it may end late. Few steps are kept then,
#: and a request is some bytes in one of them; a timer of its own takes 600.
_LEAST, _PART = 0.005, 2_000
#: Added to the time of the timer (s): timers count whole milliseconds, and a request must not end too early.
_LATER = 0.002


class Deadlines:
    """Calls `on_over` with each request when its deadline has passed."""

    def __init__(self, on_over: Callable[[Poll], None]) -> None:
        self._on_over = on_over
        self._steps: dict[float, dict[Poll, None]] = {}  # by their end, in order of arrival
        self._ends: list[float] = []  # the keys of `_steps`, as a heap
        self._timer: asyncio.TimerHandle | None = None

    def add(self, poll: Poll) -> None:
        """Note a request; its deadline becomes the end of its step."""
        step = max(_LEAST, poll.timeout / _PART)
        end = poll.deadline = (poll.deadline // step + 1) * step
        polls = self._steps.get(end)
        if polls is not None:
            polls[poll] = None
            return
        self._steps[end] = {poll: None}
        heapq.heappush(self._ends, end)
        if self._ends[0] == end:
            self._set_timer()

    def discard(self, poll: Poll) -> None:
        """Forget a request that was answered. Its step stays until it is over."""
        polls = self._steps.get(poll.deadline)
        if polls is not None:
            polls.pop(poll, None)

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        self.stop()
        left = self._ends[0] - time.monotonic() + _LATER
        self._timer = asyncio.get_running_loop().call_later(left, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        while self._ends and self._ends[0] <= now:
            for poll in self._steps.pop(heapq.heappop(self._ends)):
                self._on_over(poll)
        if self._ends:
            self._set_timer()


# ── which requests one fetch serves ────────────────────────────────────────────────────────────────

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


def emptied(asked: Sequence[Share], limit: int, jobs: Sequence[Job]) -> tuple[set[str], set[str]]:
    """The queues that have given all that they had, and those that the fetch has not looked at."""
    if len(jobs) >= limit:
        return set(), set()
    given = Counter(job.queue for job in jobs)
    known = looked_at(asked, given)
    empty = {share.queue for share in known if given[share.queue] < share.quota}
    return empty, {share.queue for share in asked[len(known) :]}
