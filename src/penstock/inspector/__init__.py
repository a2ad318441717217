"""The operator's view of a store: queries and operations for the command line, the dashboard and HTTP."""

from penstock.core.formats import iso
from penstock.inspector.audit import AuditFilter, AuditPage, ShownEntry
from penstock.inspector.batch_search import StartedBatchesView, StartedBatchView
from penstock.inspector.bulk_acts import BulkAct, BulkActs, BulkState
from penstock.inspector.entry_runs import EntryPageView, EntryRunsView, PreviewView, RunView, preview
from penstock.inspector.entry_views import EntryView
from penstock.inspector.flow_graph import FlowGraphView, GraphNodeView, MembersView, MemberView
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
from penstock.inspector.requests import Change, parse_address, parse_state
from penstock.inspector.rights import RIGHTS, right_of
from penstock.inspector.stats_inspector import StatsInspector
from penstock.inspector.stats_views import (
    ErrorGroupView,
    PeriodDepthView,
    PeriodStatsView,
    QueueDepthView,
    TaskStatsView,
    TimesView,
)
from penstock.inspector.step_views import DurableStepView, StepsView, WaitView
from penstock.inspector.undo import UndoStep
from penstock.inspector.why_views import Reason, WhyView
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
    "DurableStepView",
    "EntryPageView",
    "EntryRunsView",
    "EntryView",
    "ErrorGroupView",
    "ErrorView",
    "FlowGraphView",
    "FlowInspector",
    "FlowPageView",
    "FlowView",
    "GraphNodeView",
    "HeldView",
    "Inspector",
    "JobAct",
    "JobRow",
    "JobSearch",
    "JobView",
    "LimitsView",
    "LogLineView",
    "MemberView",
    "MembersView",
    "NodeView",
    "Overview",
    "ParkedView",
    "PartitionView",
    "PeriodDepthView",
    "PeriodStatsView",
    "PreviewView",
    "QueueDepthView",
    "QueueStatsView",
    "QueueView",
    "Reason",
    "RunView",
    "RunningView",
    "SearchProgress",
    "SentCommand",
    "ShownEntry",
    "StartedBatchView",
    "StartedBatchesView",
    "StatsInspector",
    "StepsView",
    "TaskStatsView",
    "TimesView",
    "UndoStep",
    "UniqueView",
    "WaitView",
    "WhyView",
    "WorkerAct",
    "WorkerView",
    "iso",
    "parse_address",
    "parse_state",
    "preview",
    "right_of",
]
