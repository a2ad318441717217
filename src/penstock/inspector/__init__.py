"""The operator's view of a store: queries and operations for the command line, the dashboard and HTTP."""

from penstock.core.formats import iso
from penstock.inspector.as_json import as_json
from penstock.inspector.audit import AuditFilter, AuditPage, ShownEntry
from penstock.inspector.bulk_acts import BulkAct, BulkActs, BulkState
from penstock.inspector.entries import EntryPageView, EntryRunsView, EntryView, PreviewView, RunView, preview
from penstock.inspector.flow_inspector import FlowGraphView, FlowInspector, GraphNode, MembersView
from penstock.inspector.inspector import Inspector
from penstock.inspector.job_acts import Change, JobAct
from penstock.inspector.job_filters import (
    FILTERS,
    ends_of_ranges,
    filter_texts,
    parse_address,
    parse_state,
    read_filter,
)
from penstock.inspector.job_search import JobSearch, SearchProgress, StartedBatchesView
from penstock.inspector.job_views import (
    AttemptView,
    JobView,
)
from penstock.inspector.overview import Overview
from penstock.inspector.queue_views import (
    ParkedView,
    QueueView,
)
from penstock.inspector.reasons import Reason, WhyView
from penstock.inspector.rights import RIGHTS, right_of
from penstock.inspector.statistics import (
    ErrorGroupView,
    PeriodDepthView,
    PeriodStatsView,
    QueueDepthView,
    StatsInspector,
    TaskStatsView,
    TimesView,
)
from penstock.inspector.step_views import (
    DurableStepView,
    SetAsideView,
    StepsView,
    WaitView,
    short_name,
    step_text,
)
from penstock.inspector.undo import UndoStep
from penstock.inspector.worker_views import WorkerView
from penstock.stores.worker_commands import SentCommand, WorkerAct

__all__ = [
    "FILTERS",
    "RIGHTS",
    "AttemptView",
    "AuditFilter",
    "AuditPage",
    "BulkAct",
    "BulkActs",
    "BulkState",
    "Change",
    "DurableStepView",
    "EntryPageView",
    "EntryRunsView",
    "EntryView",
    "ErrorGroupView",
    "FlowGraphView",
    "FlowInspector",
    "GraphNode",
    "Inspector",
    "JobAct",
    "JobSearch",
    "JobView",
    "MembersView",
    "Overview",
    "ParkedView",
    "PeriodDepthView",
    "PeriodStatsView",
    "PreviewView",
    "QueueDepthView",
    "QueueView",
    "Reason",
    "RunView",
    "SearchProgress",
    "SentCommand",
    "SetAsideView",
    "ShownEntry",
    "StartedBatchesView",
    "StatsInspector",
    "StepsView",
    "TaskStatsView",
    "TimesView",
    "UndoStep",
    "WaitView",
    "WhyView",
    "WorkerAct",
    "WorkerView",
    "as_json",
    "ends_of_ranges",
    "filter_texts",
    "iso",
    "parse_address",
    "parse_state",
    "preview",
    "read_filter",
    "right_of",
    "short_name",
    "step_text",
]
