"""The report of a run in numbers, which is printed, written as JSON, and rendered as a page."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from penstock.config import mask_url
from penstock.stores.contract import Capability
from penstock.verify.environment import Environment
from penstock.verify.faults.chaos_run import ChaosRun
from penstock.verify.faults.job_faults import REPORTED_BY_TASKS
from penstock.verify.faults.plan import FAULT_TYPES
from penstock.verify.ledger import Verdict, Violation
from penstock.verify.ledger.check import summary
from penstock.verify.ledger.history import History
from penstock.verify.ledger.story import Story
from penstock.verify.ledger.verdict import FlowNumbers
from penstock.verify.run_folder import RunRequest
from penstock.verify.workload.load import OF_FLOWS, PROCESS_SHAPES, SHAPES


class FaultSeen(msgspec.Struct, frozen=True):
    """An injected fault: begin (s since the start), type, target, and duration (s; 0: an instant)."""

    at: float
    kind: str
    target: str
    note: str = ""
    seconds: float = 0.0


class ReportedDuplicate(msgspec.Struct, frozen=True):
    """An unwanted second run of a job: its cause, and the lease that was lost.

    Instants are seconds since the start.
    """

    queue: str
    id: str
    task: str
    attempt_before: int
    attempt: int
    cause: str
    fault_at: float | None = None
    leased_from: float | None = None
    leased_until: float | None = None


class Spread(msgspec.Struct, frozen=True):
    """Waiting times (s): number, median, 99th percentile and maximum."""

    n: int = 0
    p50: float | None = None
    p99: float | None = None
    max: float | None = None

    @classmethod
    def of(cls, waits: Iterable[float]) -> Spread:
        found = sorted(waits)
        if not found:
            return cls()

        def at(share: float) -> float:
            return round(found[min(len(found) - 1, int(share * len(found)))], 3)

        return cls(len(found), at(0.5), at(0.99), round(found[-1], 3))


class Second(msgspec.Struct, frozen=True):
    """Jobs acknowledged and completed in one second of the run."""

    at: int
    enqueued: int
    completed: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report. `docs/verify.md` explains each field."""

    version: int = 1
    url: str
    store: str
    seed: int
    seconds: float
    started_at: str
    asked: list[str]
    injected: dict[str, int]
    faults: list[FaultSeen]
    offered: int
    enqueued: int
    refused: int
    unknown: int
    completed: int
    process_jobs: int = 0
    cancelled: int
    dead: int
    deleted: int
    unfinished: int
    lost: int
    forgiven: int
    duplicated: int
    unexplained: int
    early: int
    late: int
    stale: int
    reruns: dict[str, int]
    duplicates: list[ReportedDuplicate]
    recovery: Spread
    recovery_lone: Spread
    recovery_supervised: Spread
    restart: Spread
    flows: FlowNumbers = FlowNumbers()
    throughput: list[Second]
    left_out: list[str] = []
    findings: list[Violation]
    verdict: str
    reasons: list[str]

    @property
    def kept(self) -> bool:
        return self.verdict == "kept"


@dataclass(frozen=True)
class Account:
    """The input of a report. `began` is on the monotonic clock (s), `started_at` on the wall clock (s)."""

    request: RunRequest
    environment: Environment
    history: History
    verdict: Verdict
    run: ChaosRun
    began: float
    started_at: float
    reasons: Sequence[str]


def report_of(account: Account) -> Report:
    """Build the report. Its verdict is kept if there are no findings and every requested fault happened."""
    verdict, request = account.verdict, account.request
    numbers = summary(account.history, verdict, began=int(account.started_at * 1000))
    injected = _injected(account)
    never = [f"{kind} was requested and never happened" for kind in request.asked if not injected[kind]]
    idle = [] if verdict.completed else ["no job was completed: nothing was tested"]
    reasons = [*account.reasons, *idle, *never, *_broken(verdict.findings)]
    mine = {
        "url": mask_url(account.environment.url),
        "store": account.environment.capabilities.store,
        "seed": request.seed,
        "seconds": round(time.monotonic() - account.began, 1),
        "started_at": datetime.fromtimestamp(account.started_at, UTC).isoformat(timespec="seconds"),
        "asked": list(request.asked),
        "injected": injected,
        "faults": _faults(account),
        "process_jobs": sum(1 for story in account.history.stories if _ran_in_process(story)),
        "flows": verdict.flows,
        "reruns": verdict.reruns,
        "left_out": left_out(account.environment.capabilities.can),
        "recovery": Spread.of(_recoveries(account, True) + _recoveries(account, False)),
        "recovery_lone": Spread.of(_recoveries(account, True)),
        "recovery_supervised": Spread.of(_recoveries(account, False)),
        "restart": Spread.of(_restarts(account)),
        "verdict": "broken" if reasons else "kept",
        "reasons": reasons,
    }
    return msgspec.convert({**numbers, **mine}, Report, from_attributes=True)


def _ran_in_process(story: Story) -> bool:
    """Whether a process of its own, besides the worker, recorded a start of the job."""
    return any(len(run.processes) > 1 for run in story.runs)


def _broken(findings: Sequence[Violation]) -> Iterator[str]:
    """Each broken guarantee with its first finding."""
    for promise, n in sorted(Counter(finding.promise for finding in findings).items()):
        first = next(finding for finding in findings if finding.promise == promise)
        yield f"{n} × {first}"


def _injected(account: Account) -> dict[str, int]:
    """How often each requested fault happened. Faults of tasks count if the task has recorded them."""
    told = Counter(fault.cause for fault in account.history.faults)
    done = Counter(one.kind for one in account.run.done)
    return {kind: (told if kind in REPORTED_BY_TASKS else done)[kind] for kind in account.request.asked}


def _faults(account: Account) -> list[FaultSeen]:
    seen = [
        FaultSeen(round(one.began - account.began, 3), one.kind, one.target, one.note, round(one.seconds, 3))
        for one in account.run.done
    ]
    return sorted(seen, key=lambda one: one.at)


def _recoveries(account: Account, lone: bool) -> list[float]:
    """Recovery times of jobs of killed workers without (`lone`) or with a supervisor (s)."""
    return [
        one.seconds
        for crash in account.verdict.crashes
        if crash.cause == "kill-worker" and (crash.pid in account.run.lone) is lone
        for one in crash.held
        if one.seconds is not None
    ]


def _restarts(account: Account) -> Iterator[float]:
    """Seconds from each return of the store to the next start of a job."""
    starts = sorted(run.start.mono for story in account.history.stories for run in story.runs)
    for back in account.run.store_returns:
        i = bisect_left(starts, int(back * 1e9))
        if i < len(starts):
            yield starts[i] / 1e9 - back


# ── what a run leaves out ────────────────────────────────────────────────────────────────────────


#: Parts of the load, and checks, with what they need.
_PARTS = {
    "periodic jobs": (Capability.SCHEDULE,),
    "priorities": (Capability.PRIORITIES,),
    "flows and durable steps": OF_FLOWS,
    "the check that ended jobs are kept (the counts of their queues account for them)": (Capability.FOLLOW,),
    "the checks of statistics": (Capability.MEASURE,),
}


def left_out(can: Collection[Capability]) -> list[str]:
    """The parts of the load, the faults and the checks: a line for each capability that the store lacks."""
    kinds = {f"jobs of the kind {name}": one.needs for name, one in (SHAPES | PROCESS_SHAPES).items()}
    faults = {name: kind.needs for name, kind in FAULT_TYPES.items()}
    without: defaultdict[Capability, list[str]] = defaultdict(list)
    for part, needs in {**kinds, **_PARTS, **faults}.items():
        if lacks := next((need for need in needs if need not in can), None):
            without[lacks].append(part)
    return [f"the store cannot {need.value}: without {', '.join(parts)}" for need, parts in without.items()]
