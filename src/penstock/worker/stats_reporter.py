"""Reports a worker's statistics to the store every few seconds, and when the worker stops."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence

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
        if len(self._unanswered) > len(busy):
            await self._send()

    async def report_last(self) -> None:
        """Send what is new as the worker stops, at a second try if needed; log if that fails too."""
        for failed in (False, True):
            try:
                await self.report()
            except StoreError as error:
                if failed:
                    _log.warning("the last statistics of this worker are lost: %s", error)
                continue
            return

    async def _send(self) -> None:
        """Send all reports, in order. Those of a part of the store that is unreachable stay."""
        waiting = self._unanswered
        try:
            answers = await self._store.add_stats(waiting)
        except StoreCorrupt as error:
            self._drop(str(error))
            return
        self._unanswered = [report for report, stored in zip(waiting, answers, strict=True) if not stored]

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
