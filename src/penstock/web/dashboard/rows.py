"""Rows of tables: queues, workers with their slots, flows; and the strip of a periodic entry's runs.

The way of a queue: `Inspector.queues` reads the store and makes a `QueueView` of each (`queue_views.py`),
`View.queues` shares the read among visitors and drops what this one may not see, `queue_rows` makes rows, and
the macro `queue_table` of `templates/parts.html` renders them. Other tables go the same way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from penstock.core.flow import OPEN, FlowInfo, NodeState
from penstock.core.formats import seconds
from penstock.core.job import TERMINAL, Job, State
from penstock.inspector import JobSearch, QueueView, RunView, WorkerView
from penstock.stores.contract import JobFilter
from penstock.web.dashboard.flow_drawing import StateShare, shares
from penstock.web.dashboard.formats import exact, span
from penstock.web.dashboard.pulse import Depth
from penstock.web.dashboard.view import View, segment

#: As in the statistics of depths: unfinished jobs that are neither ready nor running.
_NOT_READY_STATES = tuple(
    state for state in State if state not in {State.AVAILABLE, State.RUNNING, *TERMINAL}
)


# ── queues ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class QueueTableRow:
    """A queue in a table: each of its jobs is in one of the five numbers.

    `later`: unfinished jobs that are neither ready nor running; `ready_line`: depths for a small chart.
    """

    queue: QueueView
    ready: int
    running: int
    later: int
    dead: int
    finished: int
    ready_line: list[float]

    @property
    def flags(self) -> list[tuple[str, str]]:
        """What is unusual, as the class of a badge and a word."""
        found = [("paused", "paused")] if self.queue.paused else []
        found += [("closed", "closed")] if self.queue.closed else []
        found += [("throttled", "throttled")] if self.queue.throttled_until is not None else []
        return found + ([("away", "away")] if self.queue.away else [])


def queue_rows(view: View, queues: Sequence[QueueView]) -> list[QueueTableRow]:
    """Make the rows of these queues: most ready and running jobs first, then most dead ones."""
    recent = list(view.shared.pulse.depths)[-60:]
    rows = [_row(recent, queue) for queue in queues]
    return sorted(rows, key=lambda row: (-(row.ready + row.running), -row.dead, row.queue.name))


def _row(recent: Sequence[Depth], queue: QueueView) -> QueueTableRow:
    counts = queue.counts
    line = [float(one.ready.get(queue.name, 0)) for one in recent]
    ended = sum(counts.get(state, 0) for state in TERMINAL)
    dead = counts.get(State.DEAD, 0)
    return QueueTableRow(
        queue,
        ready=counts.get(State.AVAILABLE, 0),
        running=counts.get(State.RUNNING, 0),
        later=sum(counts.get(state, 0) for state in _NOT_READY_STATES),
        dead=dead,
        finished=ended - dead,
        ready_line=line,
    )


# ── workers and their slots ──────────────────────────────────────────────────────────────────────

#: A worker sends a heartbeat every few seconds: after this many seconds without one, its row says so.
_SILENT_AFTER = 15.0
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

    job: Job
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
class WorkerTableRow:
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
        found += [("away", f"silent for {span(round(one.silent))}")] if one.silent > _SILENT_AFTER else []
        ahead = one.ahead or 0.0
        found += [("clock", "clock differs")] if abs(ahead) > _SKEW else []
        return found


async def seen_workers(view: View) -> list[WorkerView]:
    """The workers that serve a queue that the visitor may read; silent ones first, then by host."""
    workers = await view.read("fleet", lambda: view.inspector.workers(jobs=0), cost=2)
    seen = [one for one in workers if view.sees_one_of(one.queues)]
    return sorted(seen, key=lambda one: (one.silent <= _SILENT_AFTER, one.host, one.pid, one.id))


async def held_jobs(view: View, worker: str | None = None) -> HeldJobs:
    """The running jobs of a worker, or of all, the longest first."""
    jobs, more = await view.read(("held", worker), lambda: _running(view, worker), cost=2)
    seen = [one for one in jobs if view.sees(one.queue)]
    held = [HeldJob(one, seconds(one.fetched_at, view.now), view.job_link(one.queue, one.id)) for one in seen]
    return HeldJobs(
        sorted(held, key=lambda one: -(one.age or 0.0)), more, all=not more and len(held) == len(jobs)
    )


async def _running(view: View, worker: str | None) -> tuple[list[Job], bool]:
    search = JobSearch(JobFilter(states=(State.RUNNING,), worker=worker))
    async with aclosing(view.inspector.search(search, limit=_MOST_HELD)) as steps:
        async for step in steps:
            return step.jobs, step.next is not None  # a live page is not worth a second step
    return [], False


def worker_rows(view: View, workers: Sequence[WorkerView], held: HeldJobs | None) -> list[WorkerTableRow]:
    """The rows of these workers, with the running jobs that were found."""
    by_worker: dict[str, list[HeldJob]] = defaultdict(list)
    for one in held.jobs if held else []:
        by_worker[one.job.worker or ""].append(one)
    exact = held is not None and held.all
    return [worker_row(view, one, by_worker[one.id], exact=exact) for one in workers]


def worker_row(view: View, worker: WorkerView, held: Sequence[HeldJob], *, exact: bool) -> WorkerTableRow:
    """The row of a worker that holds these jobs; unless they are `exact`, perhaps also others."""
    running = len(held) if exact else max(len(held), worker.running)
    cells = [SlotCell(_shade(one.age), one.says, one.link) for one in held]
    cells += [SlotCell(1, "busy")] * (running - len(held))
    cells += [SlotCell(0, "free")] * (worker.concurrency - running)
    up = (worker.seen_at - worker.started_at) / 1000
    return WorkerTableRow(
        worker,
        running=running,
        cells=cells[:_MOST_CELLS],
        more=max(0, len(cells) - _MOST_CELLS),
        queues=[name for name in worker.queues if view.sees(name)],
        cpu=worker.cpu / up if up >= _MEASURED and worker.cpu else None,
    )


def _shade(age: float | None) -> int:
    return 1 + sum((age or 0.0) >= bound for bound in _SHADES)


# ── flows ────────────────────────────────────────────────────────────────────────────────────────

#: The order in a bar: what has ended well, what failed, what is open.
_NODE_ORDER = (
    *(NodeState.COMPLETED, NodeState.UNUSED, NodeState.DEAD, NodeState.GONE, NodeState.CANCELLED),
    *(NodeState.SKIPPED, NodeState.ACTIVE, NodeState.WAITING),
)
_FAILED_NODES = (NodeState.DEAD, NodeState.GONE, NodeState.CANCELLED)
#: The colours of states of flows and nodes that are no states of jobs.
_NODE_COLOURS = {
    "active": "available",
    "building": "scheduled",
    "stopping": "retryable",
    "failed": "dead",
    "gone": "dead",
    "skipped": "cancelled",
    "unused": "cancelled",
}


@dataclass(frozen=True)
class FlowTableRow:
    """A flow in a list. `ended`, `failed`: numbers of its nodes."""

    flow: FlowInfo
    link: str
    name: str
    ended: int
    failed: int
    bar: list[StateShare]

    @property
    def over(self) -> bool:
        return self.flow.ended_at is not None


def flow_row(view: View, flow: FlowInfo) -> FlowTableRow:
    """A flow with its numbers."""
    counts = {state.value: flow.counts.get(state, 0) for state in _NODE_ORDER}
    open_ = sum(counts[state.value] for state in OPEN)
    return FlowTableRow(
        flow,
        flow_link(view, flow.spec.queue, flow.spec.id),
        flow.spec.name or flow.spec.id,
        flow.total - open_,
        sum(counts[state.value] for state in _FAILED_NODES),
        shares({state: n for state, n in counts.items() if n}),
    )


def flow_link(view: View, queue: str, id: str) -> str:
    """The path of the page of a flow."""
    return view.link(f"/flows/{segment(queue)}/{segment(id)}")


def colour_of(state: str) -> str:
    """The state of jobs that has the colour of this state."""
    return _NODE_COLOURS.get(state, state)


# ── the runs of a periodic entry ─────────────────────────────────────────────────────────────────

#: Room at both ends, so that marks are not cut.
_STRIP_MARGIN = 4.0


@dataclass(frozen=True)
class RunMark:
    """A run. `kind`: the state of its job, "gone" if it is not kept, or "next"."""

    x: float
    kind: str
    title: str
    link: str | None


@dataclass(frozen=True)
class Strip:
    """Marks on a line that is `width` wide, and where now is."""

    width: float
    now: float
    marks: list[RunMark]
    says: str


def strip_of(runs: Sequence[RunView], now: int, width: float, link: Callable[[str], str]) -> Strip:
    """Place runs by their time. `link`: of a job by its id."""
    times = [run.at for run in runs]
    first, last = min([*times, now]), max([*times, now])
    scale = (width - 2 * _STRIP_MARGIN) / max(1, last - first)

    def place(at: int) -> float:
        return round(_STRIP_MARGIN + (at - first) * scale, 1)

    marks = []
    for run in runs:
        kind = run.job.state.value if run.job is not None else "gone" if run.passed else "next"
        says = {"gone": "job not kept", "next": "due"}.get(kind, kind)
        marks.append(
            RunMark(
                place(run.at), kind, f"{exact(run.at)}: {says}", None if run.job is None else link(run.id)
            )
        )
    coming = sum(not run.passed for run in runs)
    return Strip(width, place(now), marks, f"{len(runs) - coming} runs before now, {coming} after")
