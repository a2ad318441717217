"""Workflows: jobs of several durable steps. See docs/durable-steps.md."""

from __future__ import annotations

from penstock.workflows.durable_steps import StepFlow, SyncStepFlow, current_flow, current_sync_flow

__all__ = ["StepFlow", "SyncStepFlow", "current_flow", "current_sync_flow"]
