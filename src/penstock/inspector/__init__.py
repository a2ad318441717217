"""The operator's view of a store: queries and operations for the command line, the dashboard and HTTP."""

from penstock.core.formats import iso
from penstock.inspector.audit import AuditFilter, AuditPage, ShownEntry
from penstock.inspector.bulk_acts import BulkAct, BulkActs, BulkState
from penstock.inspector.entry_views import EntryView
from penstock.inspector.flow_inspector import FlowInspector
from penstock.inspector.flow_views import FlowPageView, FlowView, NodeView
from penstock.inspector.inspector import Inspector
from penstock.inspector.job_acts import JobAct
from penstock.inspector.job_search import JobSearch, SearchProgress
from penstock.inspector.job_views import (
    ActView,
    AttemptView,
    ErrorView,
    JobRow,
    JobView,
    LogLineView,
    PartitionView,
    UniqueView,
)
from penstock.inspector.limit_views import LimitsView
from penstock.inspector.overview import HeldView, Overview
from penstock.inspector.queue_views import (
    BatchView,
    ParkedView,
    QueueStatsView,
    QueueView,
)
from penstock.inspector.reasons import Reason, WhyView
from penstock.inspector.requests import Change, parse_address, parse_state
from penstock.inspector.rights import RIGHTS, right_of
from penstock.inspector.stats_inspector import StatsInspector
from penstock.inspector.stats_views import ErrorGroupView, PeriodStatsView, TaskStatsView, TimesView
from penstock.inspector.undo import UndoStep
from penstock.inspector.worker_views import RunningView, WorkerView
from penstock.stores.worker_commands import SentCommand, WorkerAct

__all__ = [
    "RIGHTS",
    "ActView",
    "AttemptView",
    "AuditFilter",
    "AuditPage",
    "BatchView",
    "BulkAct",
    "BulkActs",
    "BulkState",
    "Change",
    "EntryView",
    "ErrorGroupView",
    "ErrorView",
    "FlowInspector",
    "FlowPageView",
    "FlowView",
    "HeldView",
    "Inspector",
    "JobAct",
    "JobRow",
    "JobSearch",
    "JobView",
    "LimitsView",
    "LogLineView",
    "NodeView",
    "Overview",
    "ParkedView",
    "PartitionView",
    "PeriodStatsView",
    "QueueStatsView",
    "QueueView",
    "Reason",
    "RunningView",
    "SearchProgress",
    "SentCommand",
    "ShownEntry",
    "StatsInspector",
    "TaskStatsView",
    "TimesView",
    "UndoStep",
    "UniqueView",
    "WhyView",
    "WorkerAct",
    "WorkerView",
    "iso",
    "parse_address",
    "parse_state",
    "right_of",
]
