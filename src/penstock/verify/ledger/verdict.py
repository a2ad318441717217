"""What the checker says: numbers, and a list of broken promises that should be empty."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter

import msgspec

__all__ = ["Crash", "Duplicate", "LedgerBroken", "Rerun", "Verdict", "Violation"]

#: A report names at most so many findings; a broken store breaks its promise to every job.
_SHOWN = 20


class Violation(msgspec.Struct, frozen=True):
    """A promise that was broken: which, for which job (if it is about one), and how."""

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
    """A run that nobody wanted of a job that had run before, and what explains it.

    `cause` is the kind of the fault, which was done at `fault_at` (ms) to the process `fault_target` (0: to
    all); or crash (its own process died; then there may be no fault), undone, unexplained. The run before had
    its lease from `leased_from` (ms), until somebody else had one at `leased_until`.
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
    """A job that a killed process had in hand, and its next attempt; `seconds` from the kill to its start.

    `attempt` and `seconds` are None where there was no need: its end was stored before the kill.
    """

    queue: str
    id: str
    task: str
    attempt_before: int
    attempt: int | None
    seconds: float | None
    worker: str = ""


class Crash(msgspec.Struct, frozen=True):
    """A process that was killed, and what it held: jobs whose function had begun and not ended."""

    pid: int
    cause: str
    at: int
    held: list[Rerun]

    @property
    def recovery(self) -> float | None:
        """Seconds until all that it held had started again; None if nothing needed to."""
        waits = [one.seconds for one in self.held if one.seconds is not None]
        return max(waits, default=None)


class LedgerBroken(AssertionError):
    """The findings of a verdict that should have had none."""


class Verdict(msgspec.Struct, frozen=True):
    """The numbers of a ledger, and its findings.

    `reruns` counts second and later runs by their cause, `duplicates` are those that nobody wanted;
    `lateness` has, for each job with a delay, how many ms after its due instant it started, `late` counts
    those that took more than a second without any harm to blame. `injected` counts the harm by its kind.
    `restarts` are the seconds from each return of the store to the first start of a job.
    """

    offered: int = 0
    enqueued: int = 0  # acknowledged by the store
    refused: int = 0
    unknown: int = 0  # the reply was lost: stored or not
    completed: int = 0
    cancelled: int = 0
    dead: int = 0
    deleted: int = 0
    unfinished: int = 0
    lost: int = 0
    forgiven: int = 0  # what the store was allowed to forget: jobs, and ends of jobs
    runs: int = 0
    early: int = 0
    late: int = 0
    stale: int = 0  # late outcomes that the store refused, as it should
    reruns: dict[str, int] = {}
    duplicated: int = 0
    duplicates: list[Duplicate] = []  # the first thousand of them
    injected: dict[str, int] = {}
    crashes: list[Crash] = []
    restarts: list[float] = []
    lateness: list[int] = []
    findings: list[Violation] = []

    @property
    def ok(self) -> bool:
        return not self.findings

    @property
    def retried(self) -> int:
        """Runs after a failure or timeout of the one before."""
        return self.reruns.get("failure", 0) + self.reruns.get("timeout", 0)

    @property
    def unexplained(self) -> int:
        """Second runs that nothing explains."""
        return self.reruns.get("unexplained", 0)

    @property
    def recoveries(self) -> list[float]:
        """For each job that a killed process held: the seconds from the kill until it ran again."""
        return sorted(one.seconds for crash in self.crashes for one in crash.held if one.seconds is not None)

    @property
    def rerun_after_crash(self) -> int:
        """Runs of jobs whose worker, or whose own process, was killed."""
        return sum(self.reruns.get(cause, 0) for cause in ("kill", "kill-worker", "crash"))

    @property
    def recovery(self) -> float | None:
        """Seconds from a kill until all that it interrupted ran again; the worst of all kills."""
        times = [crash.recovery for crash in self.crashes]
        return max((t for t in times if t is not None), default=None)

    def report(self) -> str:
        """All of it in a few lines."""
        causes = ", ".join(f"{n} by {cause}" for cause, n in sorted(self.reruns.items())) or "none"
        lines = [
            f"enqueued {self.enqueued} (offered {self.offered}, refused {self.refused}, "
            f"unknown {self.unknown}); completed {self.completed}, cancelled {self.cancelled}, "
            f"dead {self.dead}, deleted {self.deleted}, unfinished {self.unfinished}, lost {self.lost}"
            + (f", forgiven {self.forgiven}" if self.forgiven else ""),
            f"runs {self.runs}, second runs: {causes}; early {self.early}; stale and refused {self.stale}",
        ]
        if self.injected:
            lines.append("harm: " + ", ".join(f"{n} {kind}" for kind, n in sorted(self.injected.items())))
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
        """The first finding of each promise, then the second of each, and so on; at most so many."""
        seen: Counter[str] = Counter()
        ranks: list[int] = []
        for one in self.findings:
            ranks.append(seen[one.promise])
            seen[one.promise] += 1
        ranked = sorted(zip(ranks, self.findings, strict=True), key=itemgetter(0))
        return [one for _, one in ranked[:n]]

    def require(self) -> Verdict:
        """The verdict itself if all promises were kept; else LedgerBroken with the report."""
        if self.findings:
            raise LedgerBroken(f"the ledger has {len(self.findings)} finding(s)\n{self.report()}")
        return self


def _s(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.2f} s"
