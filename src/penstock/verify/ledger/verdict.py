"""The verdict of the checker: numbers, and the list of findings, which should be empty."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter

import msgspec

#: A report lists at most this many findings: a broken store may have one per job.
_SHOWN = 20


class Violation(msgspec.Struct, frozen=True):
    """A broken guarantee (`promise`), how it was broken (`says`), and the job, if it concerns one."""

    promise: str
    says: str
    queue: str = ""
    id: str = ""

    def __str__(self) -> str:
        about = (
            f" job {self.id} in {self.queue}:" if self.id else f" queue {self.queue}:" if self.queue else ""
        )
        return f"{self.promise}:{about} {self.says}"


class Duplicate(msgspec.Struct, frozen=True):
    """An unwanted second run of a job, and its cause.

    - `cause`: the type of the fault; or crash (the process of the run died, with or without a fault), undone
      (the store lost the job's end), unexplained.
    - `fault_at` (ms), `fault_target`: time and process of the fault; target 0: all processes.
    - `leased_from`, `leased_until` (ms): from the lease of the run before to the next lease.
    """

    queue: str
    id: str
    task: str
    attempt_before: int
    attempt: int
    cause: str
    fault_at: int | None
    fault_target: int
    leased_from: int
    leased_until: int


class Rerun(msgspec.Struct, frozen=True):
    """A job that a killed process was running, and its next attempt, `seconds` after the kill.

    `attempt` and `seconds` are None if no attempt was needed: the job's end was stored before the kill.
    """

    queue: str
    id: str
    task: str
    attempt_before: int
    attempt: int | None
    seconds: float | None
    worker: str = ""


class Crash(msgspec.Struct, frozen=True):
    """A killed process, and the jobs that it was running."""

    pid: int
    cause: str
    at: int
    held: list[Rerun]

    @property
    def recovery(self) -> float | None:
        """Seconds until all its jobs had started again; None if no job needed to."""
        waits = [one.seconds for one in self.held if one.seconds is not None]
        return max(waits, default=None)


class FlowNumbers(msgspec.Struct, frozen=True):
    """The flows of a ledger.

    - `stored`: those that were acknowledged or are in the store; `hanging`: those of them without an end.
    - `nodes`: of all flows; `steps`: stored steps; `signals`: accepted ones; `undone`: undone steps.
    - `effects`: what steps and undos did outside of the store.
    """

    stored: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    hanging: int = 0
    nodes: int = 0
    suspended: int = 0  # how often a job was suspended
    steps: int = 0
    signals: int = 0
    undone: int = 0
    effects: int = 0


class LedgerBroken(AssertionError):
    """A verdict has findings."""


class Verdict(msgspec.Struct, frozen=True):
    """The numbers of a ledger, and its findings.

    - `reruns`: second and later runs by cause; `duplicates`: the unwanted ones.
    - `lateness`: for each delayed job, how many ms after its due instant it started.
    - `late`: delayed jobs that started more than a second late without a fault to explain it.
    - `injected`: faults by type.
    - `flows`: flows, durable steps and signals.
    - `restarts`: seconds from each return of the store to the first start of a job.
    """

    offered: int = 0
    enqueued: int = 0  # acknowledged by the store
    refused: int = 0
    unknown: int = 0  # the reply was lost: the job may be stored or not
    completed: int = 0
    cancelled: int = 0
    dead: int = 0
    deleted: int = 0
    unfinished: int = 0
    lost: int = 0
    forgiven: int = 0  # losses that the store's settings allow: jobs, and ends of jobs
    runs: int = 0
    early: int = 0
    late: int = 0
    stale: int = 0  # outcomes of lost leases, which the store refused as it must
    reruns: dict[str, int] = {}
    duplicated: int = 0
    duplicates: list[Duplicate] = []  # the first thousand
    injected: dict[str, int] = {}
    crashes: list[Crash] = []
    restarts: list[float] = []
    lateness: list[int] = []
    flows: FlowNumbers = FlowNumbers()
    findings: list[Violation] = []

    @property
    def ok(self) -> bool:
        return not self.findings

    @property
    def retried(self) -> int:
        """Runs after a failure or a timeout."""
        return self.reruns.get("failure", 0) + self.reruns.get("timeout", 0)

    @property
    def unexplained(self) -> int:
        """Second runs without a known cause."""
        return self.reruns.get("unexplained", 0)

    @property
    def recoveries(self) -> list[float]:
        """For each job that a killed process was running: seconds from the kill until it ran again."""
        return sorted(one.seconds for crash in self.crashes for one in crash.held if one.seconds is not None)

    @property
    def rerun_after_crash(self) -> int:
        """Runs of jobs whose worker or whose own process was killed."""
        return sum(self.reruns.get(cause, 0) for cause in ("kill", "kill-worker", "crash"))

    @property
    def recovery(self) -> float | None:
        """Seconds from a kill until all interrupted jobs ran again; the maximum of all kills."""
        times = [crash.recovery for crash in self.crashes]
        return max((t for t in times if t is not None), default=None)

    def report(self) -> str:
        """The verdict as text of a few lines."""
        causes = ", ".join(f"{n} by {cause}" for cause, n in sorted(self.reruns.items())) or "none"
        lines = [
            f"enqueued {self.enqueued} (offered {self.offered}, refused {self.refused}, "
            f"unknown {self.unknown}); completed {self.completed}, cancelled {self.cancelled}, "
            f"dead {self.dead}, deleted {self.deleted}, unfinished {self.unfinished}, lost {self.lost}"
            + (f", forgiven {self.forgiven}" if self.forgiven else ""),
            f"runs {self.runs}, second runs: {causes}; early {self.early}; stale and refused {self.stale}",
        ]
        if self.flows.stored:
            told = zip(self.flows.__struct_fields__, msgspec.structs.astuple(self.flows), strict=True)
            lines.append("flows: " + ", ".join(f"{name} {n}" for name, n in told))
        if self.injected:
            lines.append("faults: " + ", ".join(f"{n} {kind}" for kind, n in sorted(self.injected.items())))
        lines += [
            f"pid {c.pid} {c.cause}: held {len(c.held)}, again in {_s(c.recovery)}" for c in self.crashes
        ]
        kinds = Counter(finding.promise for finding in self.findings)
        lines += [f"{n} × {promise}" for promise, n in sorted(kinds.items())]
        lines += [str(finding) for finding in self.some(_SHOWN)]
        if len(self.findings) > _SHOWN:
            lines.append(f"… and {len(self.findings) - _SHOWN} more")
        return "\n".join(lines)

    def some(self, n: int) -> list[Violation]:
        """At most n findings: the first one of each guarantee, then the second one of each, and so on."""
        seen: Counter[str] = Counter()
        ranks: list[int] = []
        for one in self.findings:
            ranks.append(seen[one.promise])
            seen[one.promise] += 1
        ranked = sorted(zip(ranks, self.findings, strict=True), key=itemgetter(0))
        return [one for _, one in ranked[:n]]

    def require(self) -> Verdict:
        """Return this verdict if it has no findings. Raises LedgerBroken, with the report, if it has."""
        if self.findings:
            raise LedgerBroken(f"the ledger has {len(self.findings)} finding(s)\n{self.report()}")
        return self


def _s(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.2f} s"
