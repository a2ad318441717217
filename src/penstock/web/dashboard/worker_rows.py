"""Rows of a table of workers: their slots as cells, and the jobs that they hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from penstock.core.job import State
from penstock.inspector import JobRow, JobSearch, WorkerView
from penstock.stores.contract import JobFilter
from penstock.web.access_tokens import Right
from penstock.web.dashboard.formats import instant_of, span
from penstock.web.dashboard.view import View

__all__ = [
    "HeldJob",
    "HeldJobs",
    "SlotCell",
    "WorkerLine",
    "held_jobs",
    "seen_workers",
    "worker_line",
    "worker_lines",
]

#: A worker reports itself every few seconds: after this many seconds without it, it is late.
_LATE = 15.0
#: Clocks that differ by more than this (s) are marked.
_SKEW = 1.0
_MOST_CELLS = 100
#: The most running jobs that are read for a page.
_MOST_HELD = 500
#: After this time (s) the mean use of the CPU says something: a start imports code.
_MEASURED = 30.0
#: From this age (s) on, a running job has the second and the third shade.
_SHADES = (10.0, 60.0)


@dataclass(frozen=True)
class HeldJob:
    """A running job and for how long (s) its worker has it; None: unknown."""

    job: JobRow
    age: float | None
    link: str

    @property
    def says(self) -> str:
        """The job in a line."""
        return f"{self.job.task} {self.job.queue}/{self.job.id}, for {span(self.age)}"


@dataclass(frozen=True)
class HeldJobs:
    """Running jobs that the visitor may read. `more`: not all were read; `all`: no others run."""

    jobs: list[HeldJob]
    more: bool
    all: bool


@dataclass(frozen=True)
class SlotCell:
    """A slot: `shade` 0 is free, 1 to 3 is busy, darker the longer its job runs."""

    shade: int
    says: str
    link: str = ""


@dataclass(frozen=True)
class WorkerLine:
    """A worker in a table.

    - `running`: the number of its jobs; `more`: of slots that have no cell.
    - `queues`: those that the visitor may read.
    - `cpu`: its mean share of a core since its start; None: unknown.
    """

    worker: WorkerView
    running: int
    cells: list[SlotCell]
    more: int
    queues: list[str]
    cpu: float | None

    @property
    def flags(self) -> list[tuple[str, str]]:
        """What is unusual, as the class of a badge and a word."""
        one = self.worker
        found = [] if one.state == "running" else [("state", one.state)]
        found += [("away", f"silent for {span(round(one.silent))}")] if one.silent > _LATE else []
        ahead = one.ahead or 0.0
        found += [("clock", "clock differs")] if abs(ahead) > _SKEW else []
        return found


async def seen_workers(view: View) -> list[WorkerView]:
    """The workers that serve a queue that the visitor may read; late ones first, then by host."""
    workers = await view.read("fleet", lambda: view.inspector.workers(jobs=0), cost=2)
    seen = [one for one in workers if view.visitor.may(Right.READ) or any(map(view.sees, one.queues))]
    return sorted(seen, key=lambda one: (one.silent <= _LATE, one.host, one.pid, one.id))


async def held_jobs(view: View, worker: str | None = None) -> HeldJobs:
    """The running jobs of a worker, or of all, the longest first."""
    jobs, more = await view.read(("held", worker), lambda: _running(view, worker), cost=2)
    seen = [one for one in jobs if view.sees(one.queue)]
    held = [HeldJob(one, _age(view, one), view.job_link(one.queue, one.id)) for one in seen]
    return HeldJobs(
        sorted(held, key=lambda one: -(one.age or 0.0)), more, all=not more and len(held) == len(jobs)
    )


async def _running(view: View, worker: str | None) -> tuple[list[JobRow], bool]:
    search = JobSearch(JobFilter(states=(State.RUNNING,), worker=worker))
    async with aclosing(view.inspector.search(search, limit=_MOST_HELD)) as steps:
        async for step in steps:
            return step.jobs, step.next is not None  # a live page is not worth a second step
    return [], False


def worker_lines(view: View, workers: Sequence[WorkerView], held: HeldJobs | None) -> list[WorkerLine]:
    """The rows of these workers, with the running jobs that were found."""
    by_worker: dict[str, list[HeldJob]] = defaultdict(list)
    for one in held.jobs if held else []:
        by_worker[one.job.worker or ""].append(one)
    exact = held is not None and held.all
    return [worker_line(view, one, by_worker[one.id], exact=exact) for one in workers]


def worker_line(view: View, worker: WorkerView, held: Sequence[HeldJob], *, exact: bool) -> WorkerLine:
    """The row of a worker that holds these jobs; unless they are `exact`, perhaps also others."""
    running = len(held) if exact else max(len(held), worker.running)
    cells = [SlotCell(_shade(one.age), one.says, one.link) for one in held]
    cells += [SlotCell(1, "busy")] * (running - len(held))
    cells += [SlotCell(0, "free")] * (worker.concurrency - running)
    up = ((instant_of(worker.seen_at) or 0) - (instant_of(worker.started_at) or 0)) / 1000
    return WorkerLine(
        worker,
        running=running,
        cells=cells[:_MOST_CELLS],
        more=max(0, len(cells) - _MOST_CELLS),
        queues=[name for name in worker.queues if view.sees(name)],
        cpu=worker.cpu / up if up >= _MEASURED and worker.cpu else None,
    )


def _age(view: View, job: JobRow) -> float | None:
    since = instant_of(job.fetched_at)
    return None if since is None else max(0.0, (view.now - since) / 1000)


def _shade(age: float | None) -> int:
    return 1 + sum((age or 0.0) >= bound for bound in _SHADES)
