"""The verbs of statistics: what workers report of tasks and errors, and how large queues are.

docs/statistics.md explains them with examples.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated

import msgspec

from penstock.core.security import Secret
from penstock.core.stats import QueueDepth, TaskStats
from penstock.stores.contract.request import Request

#: The most tasks of a queue with statistics of their own in one period; the rest is counted as `other`.
MOST_STATS_TASKS = 200
#: The most groups of errors of a queue. The group whose last error is the oldest goes first, into `other`.
MOST_ERROR_GROUPS = 1_000
#: Number of jobs of a queue whose size is measured, at most.
SIZE_SAMPLE = 100
#: How long a group of errors is kept after its last error (ms).
ERRORS_KEPT = 90 * 86_400_000
#: How long a store remembers the last report of a source (ms), to count a repeated report once.
REPORTS_REMEMBERED = 3_600_000


class Resolution(enum.StrEnum):
    """The length of the periods by which statistics are kept."""

    MINUTE = "minute"  # for two hours
    HOUR = "hour"  # for four days
    DAY = "day"  # for ninety days

    __hash__ = str.__hash__

    @property
    def length(self) -> int:
        """The length of a period (ms)."""
        return _PERIODS[self][0]

    @property
    def kept(self) -> int:
        """The number of periods that are kept, with the current one."""
        return _PERIODS[self][1]

    def oldest(self, now: int) -> int:
        """The number of the oldest period that is kept. Periods are numbered since 1970."""
        return now // self.length - self.kept + 1


_PERIODS = {
    Resolution.MINUTE: (60_000, 120),
    Resolution.HOUR: (3_600_000, 96),
    Resolution.DAY: (86_400_000, 90),
}


class TaskCount(msgspec.Struct, frozen=True):
    """What a worker adds to the statistics of one task."""

    task: str
    stats: TaskStats


class ErrorCount(msgspec.Struct, frozen=True):
    """What a worker adds to one group of errors. `group`: its name, unique in the queue; `job`: an example.

    `message` is normalised: without what differs from job to job.
    """

    group: Annotated[str, Secret.ERROR_GROUP_NAME]
    task: str
    kind: str
    message: Annotated[str, Secret.ERROR_GROUP]
    count: int
    job: str


class StatsReport(msgspec.Struct, frozen=True):
    """What a worker reports of one queue: attempts that ended since its last report.

    `number` rises with each report that the source sends of any queue, so that a repeated report counts once.
    """

    queue: str
    source: str
    number: int
    tasks: Sequence[TaskCount] = ()
    errors: Sequence[ErrorCount] = ()


class StatsRow(msgspec.Struct, frozen=True):
    """The statistics of one task of one queue in the period that begins at `at`."""

    queue: str
    task: str
    at: int
    stats: TaskStats


class StatsPage(msgspec.Struct, frozen=True):
    """Statistics by queue, period and task; `now` is the store's clock."""

    rows: list[StatsRow]
    now: int


class DepthRow(msgspec.Struct, frozen=True):
    """The depth of one queue in the period that begins at `at`."""

    queue: str
    at: int
    depth: QueueDepth


class DepthPage(msgspec.Struct, frozen=True):
    """Depths by queue and period; `now` is the store's clock."""

    rows: list[DepthRow]
    now: int


class ErrorGroup(msgspec.Struct, frozen=True):
    """Errors of one task with one class and one message; `job` is the id of the latest job that had one.

    The group without a name has the errors of groups that were removed.
    """

    queue: str
    group: Annotated[str, Secret.ERROR_GROUP_NAME]
    task: str
    kind: str
    message: Annotated[str, Secret.ERROR_GROUP]
    count: int
    first: int
    last: int
    job: str


class QueueSize(msgspec.Struct, frozen=True):
    """An estimate of the space that a queue takes (bytes). `sampled`: from some of its jobs, not all."""

    queue: str
    bytes: int
    sampled: bool


class AddStats(Request[list[bool]], frozen=True):
    """Add reports to the statistics of the current minute, hour and day, and to the groups of errors.

    - A report with the number of an earlier one of the same source and queue, or a lower one, is not
      added again: repeating a call whose reply was lost is safe for an hour.
    - Reports of a queue that does not exist are dropped.

    Answer: one value per report, in order; False: its part of the store is unreachable. Repeat it.
    """

    reports: Sequence[StatsReport]


class ReadStats(Request[StatsPage], frozen=True):
    """Read the statistics of all periods that end less than `span` ms ago, of one queue or task or all.

    Answer: rows by queue, period and task. A record that cannot be read is left out.
    """

    resolution: Resolution
    span: int
    queue: str | None = None
    task: str | None = None


class ReadErrors(Request[list[ErrorGroup]], frozen=True, kw_only=True):
    """List the groups of errors of one queue or task or all, the latest error first."""

    queue: str | None = None
    task: str | None = None


class SampleDepths(Request[int], frozen=True):
    """Count the unfinished jobs of each queue that has no sample in the current minute yet.

    A queue has one sample per minute of the store's clock, however many callers there are. Each sample is
    added to the current minute, hour and day. The first one of each also stores the total of enqueued
    jobs, or 0 if the queue has no earlier samples. The time of the call does not depend on the number of
    jobs.

    Answer: the time until the next minute begins.
    """


class ReadDepths(Request[DepthPage], frozen=True):
    """Read the depths in all periods that end less than `span` ms ago, of one queue or of all.

    Answer: rows by queue and period. A period without a sample has no row: jobs that were enqueued in it
    count in the last period before it that has one. A record that cannot be read is left out.
    """

    resolution: Resolution
    span: int
    queue: str | None = None


class QueueSizes(Request[list[QueueSize]], frozen=True):
    """Estimate the space that these queues take in memory or in the file, or all queues, by name.

    The time of the call does not depend on the number of jobs.
    """

    names: Sequence[str] | None = None
