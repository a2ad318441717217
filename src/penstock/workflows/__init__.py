"""Workflows: chains, groups, chords and graphs of jobs, kept in the store, and jobs of several durable steps.

See docs/workflows.md and docs/durable-steps.md.
"""

from __future__ import annotations

from penstock.client.flows.canvas import Canvas, Flow, NodeRef, immutable, into
from penstock.client.flows.canvas import Chain as chain
from penstock.client.flows.canvas import Chord as chord
from penstock.client.flows.canvas import Group as group
from penstock.client.flows.flow_handle import FlowHandle
from penstock.core.flow import FlowInfo, FlowPolicy, FlowState, NodeState
from penstock.workflows.durable_steps import StepFlow, SyncStepFlow, current_flow, current_sync_flow

__all__ = [
    "Canvas",
    "Flow",
    "FlowHandle",
    "FlowInfo",
    "FlowPolicy",
    "FlowState",
    "NodeRef",
    "NodeState",
    "StepFlow",
    "SyncStepFlow",
    "chain",
    "chord",
    "current_flow",
    "current_sync_flow",
    "group",
    "immutable",
    "into",
]
