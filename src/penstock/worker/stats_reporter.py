"""Reports a worker's statistics to the store every few seconds, and when the worker stops."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection, Sequence

from penstock.core.errors import StoreCorrupt, StoreError
from penstock.core.ids import mint
from penstock.maintenance.service import Service
from penstock.stores.contract import REPORTS_REMEMBERED, ErrorCount, StatsReport, Store, TaskCount
from penstock.worker.attempt_recorder import AttemptRecorder, QueueRecord

__all__ = ["StatsReporter"]

_log = logging.getLogger("penstock.worker")
#: Seconds between two reports. A worker that is killed loses what it has not reported.
_EVERY = 5.0
#: Most tasks, or groups of errors, of one report: a store adds them in one short step.
_BATCH = 10
#: Most reports of one call: other writers of a file wait while it adds them.
_TOGETHER = 4
#: A report that is not answered for so long (s) is dropped: the store might not know it again.
_REPEATED_FOR = REPORTS_REMEMBERED / 1_000 - 300


class StatsReporter(Service):
    """Sends what the recorder has, and repeats each report until the store has answered."""

    name = "statistics"

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
        away = set(without)
        while some := self._next(away):
            try:
                answers = await self._store.add_stats(some)
            except StoreCorrupt as error:
                self._drop(str(error))
                return
            stored = {report.number for report, taken in zip(some, answers, strict=True) if taken}
            away |= {report.queue for report in some if report.number not in stored}
            self._unanswered = [report for report in self._unanswered if report.number not in stored]

    def _next(self, away: Collection[str]) -> list[StatsReport]:
        """The first unanswered reports of some queues, one of each.

        A store adds no report after a later one of its queue: the next is sent when this one is answered.
        """
        found: dict[str, StatsReport] = {}
        for report in self._unanswered:
            if len(found) < _TOGETHER and report.queue not in away:
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
