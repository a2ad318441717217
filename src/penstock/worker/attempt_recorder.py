"""Records the attempts of a worker process: numbers by queue, task and outcome, times, and groups of errors.

A plain job takes only some microseconds. So its times are put on a list, a batch at a time and by functions
of C; thousands of them are sorted and counted in one step later.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from operator import attrgetter

import msgspec

from penstock.core.error_groups import group_id, normalised
from penstock.core.job import AttemptError, Job, State
from penstock.core.lifecycle import Transition
from penstock.core.sketch import MS_BOUNDS, SECOND_BOUNDS, sketch_of
from penstock.core.task_stats import OTHER, TaskStats, sum_of
from penstock.stores.contract import MOST_STATS_TASKS, ErrorCount, Settled, Settlement, TaskCount
from penstock.worker.leased_jobs import LeasedJob
from penstock.worker.worker_metrics import WorkerMetrics

__all__ = ["AttemptRecorder", "QueueRecord"]

#: Number of attempts whose times are sorted and counted in one step.
_FOLD_AT = 4_096
#: Groups of errors of a queue between two reports, at most; the rest is counted as OTHER.
_MOST_GROUPS = 100

_took = attrgetter("took")
_plan = attrgetter("plan")
_move = attrgetter("transition")
_queue = attrgetter("lease.queue")
_OUTCOMES = {
    State.COMPLETED: "completed",
    State.RETRYABLE: "retried",
    State.DEAD: "dead",
    State.CANCELLED: "cancelled",
    State.SCHEDULED: "snoozed",
    State.AVAILABLE: "released",
    State.PARKED: "parked",
}


class _Tally(msgspec.Struct):
    """The attempts of one task of a queue that are not counted in the report yet."""

    outcomes: dict[str, int] = {}
    processed: int = 0
    failed: int = 0
    runs: list[float] = []  # s
    waits: list[int] = []  # ms, from due to leased


class QueueRecord(msgspec.Struct):
    """What was recorded of one queue since it was last taken."""

    tasks: dict[str, TaskStats] = {}
    errors: dict[str, ErrorCount] = {}

    def add(self, task: str, more: TaskStats) -> None:
        """Add to the statistics of a task, or to those of all tasks beyond the most."""
        if task not in self.tasks and len(self.tasks) >= MOST_STATS_TASKS:
            task = OTHER
        self.tasks[task] = sum_of([self.tasks[task], more]) if task in self.tasks else more

    def counts(self) -> list[TaskCount]:
        return [TaskCount(task, stats) for task, stats in self.tasks.items()]


class AttemptRecorder:
    """Records for one worker process: for the store's statistics and, if they are wanted, its metrics."""

    def __init__(self, metrics: WorkerMetrics | None = None) -> None:
        self._metrics = metrics
        self._tallies: dict[tuple[str, str], _Tally] = {}  # by queue and task
        self._unfolded = 0
        self._queues: dict[str, QueueRecord] = {}
        if metrics is not None:
            metrics.refresh = self.fold

    def settled(
        self, batch: Sequence[LeasedJob], settlements: Sequence[Settlement], answers: Sequence[Settled | None]
    ) -> None:
        """Record outcomes that the store has answered."""
        n = len(batch)
        plans, moves, queues = (
            list(map(_plan, batch)),
            list(map(_move, settlements)),
            list(map(_queue, settlements)),
        )
        alike = answers.count(Settled.APPLIED) == n and plans.count(plans[0]) == n
        alike = alike and moves[0].state is State.COMPLETED and moves.count(moves[0]) == n
        if alike and queues.count(queues[0]) == n:
            self._record(queues[0], plans[0].name, moves[0], batch)
        else:
            self._record_each(batch, moves, answers)
        if self._unfolded >= _FOLD_AT:
            self.fold()

    def reclaimed(self, job: Job, move: Transition) -> None:
        """Record an attempt that was lost with its worker. Its times are unknown."""
        if self._metrics is not None:
            self._metrics.reclaimed()
        stats = _numbers({_outcome(move): 1})
        stats.started = stats.processed = int(move.charge)
        if move.error is not None:
            stats.failed = 1
            self._failed(job, move.error)
        self._record_of(job.spec.queue).add(job.spec.task, stats)

    def take(self, without: Container[str] = ()) -> dict[str, QueueRecord]:
        """Return what was recorded of each queue but these since the last call, and forget it."""
        self.fold()
        taken = {queue: one for queue, one in self._queues.items() if queue not in without}
        for queue in taken:
            del self._queues[queue]
        return taken

    def fold(self) -> None:
        """Count the times that were recorded since the last call."""
        tallies, self._tallies, self._unfolded = self._tallies, {}, 0
        for (queue, task), tally in tallies.items():
            runs, waits = sorted(tally.runs), sorted(tally.waits)
            more = _numbers(tally.outcomes)
            more.started, more.processed, more.failed = len(runs), tally.processed, tally.failed
            more.waited, more.ran = max(0, sum(waits)) * 1_000, int(sum(runs) * 1e6)
            more.waits, more.runs = sketch_of(waits, MS_BOUNDS), sketch_of(runs, SECOND_BOUNDS)
            self._record_of(queue).add(task, more)
            if self._metrics is not None:
                self._metrics.count(task, tally.outcomes, runs, waits)

    # ── private ──────────────────────────────────────────────────────────────────────────────────

    def _record_each(
        self, batch: Sequence[LeasedJob], moves: Sequence[Transition], answers: Sequence[Settled | None]
    ) -> None:
        by_kind: dict[tuple[str, str, str, bool, bool], tuple[Transition, list[LeasedJob]]] = {}
        for leased, move, answer in zip(batch, moves, answers, strict=True):
            if answer is Settled.APPLIED:
                queue, error = leased.job.spec.queue, move.error
                kind = queue, leased.plan.name, _outcome(move), move.charge, error is None
                by_kind.setdefault(kind, (move, []))[1].append(leased)
                if error is not None:
                    self._failed(leased.job, error)
            elif answer is not Settled.UNKNOWN and leased.started and self._metrics is not None:
                self._metrics.lease_lost()
        for (queue, task, *_), (move, some) in by_kind.items():
            self._record(queue, task, move, some)

    def _record(self, queue: str, task: str, move: Transition, batch: Sequence[LeasedJob]) -> None:
        """Record attempts of one task with the same outcome."""
        tally = self._tallies.get((queue, task))
        if tally is None:
            tally = self._tallies[queue, task] = _Tally()
        outcome, n = _outcome(move), len(batch)
        tally.outcomes[outcome] = tally.outcomes.get(outcome, 0) + n
        tally.processed += n * move.charge
        tally.failed += n * (move.error is not None)
        if outcome != "completed":  # released, cancelled, expired: some of them were not started
            batch = [leased for leased in batch if leased.started]
        self._unfolded += n
        tally.runs += map(_took, batch)
        tally.waits += [leased.now - leased.job.run_at for leased in batch]

    def _failed(self, job: Job, error: AttemptError) -> None:
        groups, task, message = (
            self._record_of(job.spec.queue).errors,
            job.spec.task,
            normalised(error.message),
        )
        facts = task, error.kind, message
        name = group_id(*facts)
        if name not in groups and len(groups) >= _MOST_GROUPS:
            facts = OTHER, "", ""
            name = group_id(*facts)
        before = 0 if name not in groups else groups[name].count
        groups[name] = ErrorCount(name, *facts, before + 1, job.spec.id)

    def _record_of(self, queue: str) -> QueueRecord:
        found = self._queues.get(queue)
        if found is None:
            found = self._queues[queue] = QueueRecord()
        return found


def _numbers(outcomes: dict[str, int]) -> TaskStats:
    return TaskStats(retried=outcomes.get("retried", 0), dead=outcomes.get("dead", 0))


def _outcome(move: Transition) -> str:
    if move.throttle or move.throttle_partition:
        return "throttled"
    if move.state is State.AVAILABLE and move.error is not None:
        return "retried"  # at once
    return _OUTCOMES.get(move.state, OTHER)
