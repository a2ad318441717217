"""One consume request, as the record that waits for a job."""

from __future__ import annotations

import math
from collections.abc import Callable

from penstock.core.job import Job
from penstock.dialects.lmstfy.bodies import error, no_job, plain_reply
from penstock.dialects.lmstfy.jobs import lease_text, shown
from penstock.web.exchange import Exchange

__all__ = ["Poll"]


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
