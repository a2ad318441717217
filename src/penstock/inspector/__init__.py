"""What an operator may see and do: one list for the command line, the dashboard and HTTP."""

from penstock.inspector.inspector import Inspector
from penstock.inspector.views import (
    Bulk,
    Change,
    EntryView,
    ErrorView,
    Filter,
    GroupView,
    JobPage,
    JobRow,
    JobView,
    QueueStatsView,
    QueueView,
    RunningView,
    WorkerView,
    iso,
    parse_address,
    parse_state,
)

__all__ = [
    "Bulk",
    "Change",
    "EntryView",
    "ErrorView",
    "Filter",
    "GroupView",
    "Inspector",
    "JobPage",
    "JobRow",
    "JobView",
    "QueueStatsView",
    "QueueView",
    "RunningView",
    "WorkerView",
    "iso",
    "parse_address",
    "parse_state",
]
