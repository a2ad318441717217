"""The statistics of a worker process: attempts by queue, task and outcome, times, and groups of errors.

A plain job takes only some microseconds. So its times are put on a list, a batch at a time and by functions
of C; thousands of them are sorted and counted in one step later. Every few seconds, and when the worker
stops, the store gets what is new.
"""

from __future__ import annotations

import hashlib
import logging
import random
import re
import time
from collections.abc import Collection, Container, Mapping, Sequence
from operator import attrgetter

import msgspec

from penstock.core.errors import StoreCorrupt, StoreError
from penstock.core.ids import mint
from penstock.core.job import AttemptError, Job, State
from penstock.core.lifecycle import Transition
from penstock.core.stats import MS_BOUNDS, OTHER, SECOND_BOUNDS, TaskStats, sketch_of, sum_of
from penstock.maintenance.service import Service
from penstock.stores.contract import (
    MOST_STATS_TASKS,
    REPORTS_REMEMBERED,
    Capability,
    ErrorCount,
    Settled,
    Settlement,
    StatsReport,
    Store,
    TaskCount,
)
from penstock.worker.leased_jobs import LeasedJob
from penstock.worker.worker_metrics import WorkerMetrics

_log = logging.getLogger("penstock.worker")

# ── recorded ─────────────────────────────────────────────────────────────────────────────────────

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
    """Records for one worker process: for the store's statistics and, if they are wanted, its metrics.

    `identities`: the oldest names of renamed tasks, under which all their attempts are counted.
    """

    def __init__(
        self, metrics: WorkerMetrics | None = None, identities: Mapping[str, str] | None = None
    ) -> None:
        self._metrics = metrics
        self._identities = identities or {}
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
        self._record_of(job.spec.queue).add(self._counted_as(job.spec.task), stats)

    def lease_lost(self) -> None:
        """Record that a started attempt has lost its lease to another worker."""
        if self._metrics is not None:
            self._metrics.lease_lost()

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
            elif answer is not Settled.UNKNOWN and leased.started:
                self.lease_lost()
        for (queue, task, *_), (move, some) in by_kind.items():
            self._record(queue, task, move, some)

    def _record(self, queue: str, task: str, move: Transition, batch: Sequence[LeasedJob]) -> None:
        """Record attempts of one task with the same outcome."""
        task = self._counted_as(task)
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
            self._counted_as(job.spec.task),
            normalised(error.message),
        )
        facts = task, error.kind, message
        name = group_id(*facts)
        if name not in groups and len(groups) >= _MOST_GROUPS:
            facts = OTHER, "", ""
            name = group_id(*facts)
        before = 0 if name not in groups else groups[name].count
        groups[name] = ErrorCount(name, *facts, before + 1, job.spec.id)

    def _counted_as(self, task: str) -> str:
        return self._identities.get(task, task)

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


# ── reported to the store ────────────────────────────────────────────────────────────────────────

#: Seconds between two reports. A worker that is killed loses what it has not reported.
_EVERY = 5.0
#: Most tasks, or groups of errors, of one report: a store adds them in one short step.
_BATCH = 10
#: Most reports of one call: other writers of a file wait while it adds them.
_TOGETHER = 4
#: Seconds after which an unanswered report is dropped: the store may no longer recognise its repetition.
_REPEATED_FOR = REPORTS_REMEMBERED / 1_000 - 300


class StatsReporter(Service):
    """Sends what the recorder has, and repeats each report until the store has answered."""

    name = "statistics"
    needs = Capability.MEASURE

    def __init__(self, store: Store, recorder: AttemptRecorder) -> None:
        super().__init__()
        self._store = store
        self._recorder = recorder
        self._source = mint()
        self._number = 0
        self._unanswered: list[StatsReport] = []
        self._taken_at = 0.0

    async def tick(self) -> float:
        await self.report()
        return _EVERY * random.uniform(0.9, 1.1)  # noqa: S311 (jitter, no secret)

    async def report(self) -> None:
        """Repeat unanswered reports, and then send what is new. Raises StoreError."""
        if self._unanswered and time.monotonic() - self._taken_at > _REPEATED_FOR:
            self._drop("the store has not answered for an hour")
        if self._unanswered:
            await self._send()
        busy = {report.queue for report in self._unanswered}
        if not busy:
            self._taken_at = time.monotonic()
        for queue, record in self._recorder.take(without=busy).items():
            self._unanswered += self._reports(queue, record)
        await self._send(without=busy)

    async def report_last(self) -> None:
        """Send what is new as the worker stops, at a second try if needed; log if that fails too."""
        for failed in (False, True):
            why = "a part of the store is unreachable"
            try:
                await self.report()
            except StoreError as error:
                why = str(error)
            else:
                if not self._unanswered:
                    return
            if failed:
                _log.warning("the last statistics of this worker are lost: %s", why)

    async def _send(self, without: Collection[str] = ()) -> None:
        """Send all reports but those of these queues. Those whose part of the store is unreachable stay."""
        skipped = set(without)
        while some := self._next(skipped):
            try:
                answers = await self._store.add_stats(some)
            except StoreCorrupt as error:
                self._drop(str(error))
                return
            stored = {report.number for report, taken in zip(some, answers, strict=True) if taken}
            skipped |= {report.queue for report in some if report.number not in stored}
            self._unanswered = [report for report in self._unanswered if report.number not in stored]

    def _next(self, skipped: Collection[str]) -> list[StatsReport]:
        """The first unanswered reports of some queues, one of each.

        A store adds no report after a later one of its queue: the next is sent when this one is answered.
        """
        found: dict[str, StatsReport] = {}
        for report in self._unanswered:
            if len(found) < _TOGETHER and report.queue not in skipped:
                found.setdefault(report.queue, report)
        return list(found.values())

    def _drop(self, why: str) -> None:
        _log.warning("statistics of some seconds are lost: %s", why)
        self._unanswered = []

    def _reports(self, queue: str, record: QueueRecord) -> list[StatsReport]:
        tasks, errors = record.counts(), list(record.errors.values())
        found = [self._new(queue, tasks=tasks[n : n + _BATCH]) for n in range(0, len(tasks), _BATCH)]
        return found + [
            self._new(queue, errors=errors[n : n + _BATCH]) for n in range(0, len(errors), _BATCH)
        ]

    def _new(
        self, queue: str, tasks: Sequence[TaskCount] = (), errors: Sequence[ErrorCount] = ()
    ) -> StatsReport:
        self._number += 1
        return StatsReport(queue, self._source, self._number, tasks, errors)


# ── groups of errors ─────────────────────────────────────────────────────────────────────────────


#: The most characters of a group's message.
LONGEST_MESSAGE = 200
#: The most characters of a message that are read.
_READ = 1_000
#: Four hexadecimal digits of an IPv6 address, or fewer.
_HEX = "[0-9a-fA-F]{1,4}"
#: Each kind of text that varies, and what stands for it. Quotes inside a word are apostrophes. URLs keep
#: their paths, which say what failed.
_VARYING = re.compile(
    r"""(?P<text>(?<!\w)'[^'\n]*'(?!\w)|"[^"\n]*"|`[^`\n]*`)"""
    r"|(?P<uuid>\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b)"
    r"|(?P<email>(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+)"
    r"|(?P<path>(?<![\w.:/>~])~?/[^\s/:'\"<>,;()]+/[^\s:'\"<>,;()]*)"
    rf"|(?P<ip>(?<![\w:\]])(?:(?:{_HEX}(?::{_HEX})*)?::{_HEX}(?::{_HEX})*|(?:{_HEX}:){{7}}{_HEX})(?![\w:]))"
    # a number with more digits is a number
    r"|(?P<hex>\b0[xX][0-9a-fA-F]+\b|\b(?=[a-fA-F]*\d)(?=\d*[a-fA-F])[0-9a-fA-F]{8,}\b)"
    r"|(?P<n>\d+(?:[.,]\d+)*)"
)


def normalised(message: str) -> str:
    """The first line of a message with `<n>`, `<hex>`, `<uuid>`, `<email>`, `<ip>`, `<path>` and `<text>`
    instead of what varies."""
    first = message[:_READ].lstrip().split("\n", 1)[0]
    text = _VARYING.sub(lambda found: f"<{found.lastgroup}>", first).strip()
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 1] + "…"


def group_id(task: str, kind: str, message: str) -> str:
    """The name of the group of a task's errors of this class with this normalised message, in its queue."""
    return hashlib.blake2b("\0".join((task, kind, message)).encode(), digest_size=12).hexdigest()
