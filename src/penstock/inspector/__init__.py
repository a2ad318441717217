"""The operator's view of a store: queries and operations for the command line, the dashboard and HTTP."""

from penstock.core.formats import iso
from penstock.inspector.flow_inspector import FlowInspector
from penstock.inspector.flow_views import FlowPageView, FlowView, NodeView
from penstock.inspector.inspector import Inspector
from penstock.inspector.job_search import JobSearch, SearchProgress
from penstock.inspector.job_views import (
    ActView,
    AttemptView,
    ErrorView,
    JobPage,
    JobRow,
    JobView,
    LogLineView,
    PartitionView,
    UniqueView,
)
from penstock.inspector.queue_views import (
    BatchView,
    EntryView,
    LimitsView,
    ParkedView,
    QueueStatsView,
    QueueView,
)
from penstock.inspector.requests import Bulk, Change, Filter, parse_address, parse_state
from penstock.inspector.worker_views import RunningView, WorkerView

__all__ = [
    "ActView",
    "AttemptView",
    "BatchView",
    "Bulk",
    "Change",
    "EntryView",
    "ErrorView",
    "Filter",
    "FlowInspector",
    "FlowPageView",
    "FlowView",
    "Inspector",
    "JobPage",
    "JobRow",
    "JobSearch",
    "JobView",
    "LimitsView",
    "LogLineView",
    "NodeView",
    "ParkedView",
    "PartitionView",
    "QueueStatsView",
    "QueueView",
    "RunningView",
    "SearchProgress",
    "UniqueView",
    "WorkerView",
    "iso",
    "parse_address",
    "parse_state",
]
