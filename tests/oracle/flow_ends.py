"""The ends of jobs that are nodes of flows, noted by a verb and counted at its end, in the same step."""

from __future__ import annotations

from typing import NamedTuple

from penstock.core.flow import NodeState, outcome_of
from penstock.core.job import Job
from penstock.core.relations import FlowMember

__all__ = ["FlowEnd", "end_of"]


class FlowEnd(NamedTuple):
    """The end of the job `job_id` of a node. `outcome`: None if the job, which had ended, runs again."""

    member: FlowMember
    job_id: str
    outcome: NodeState | None
    result: bytes | None = None


def end_of(member: FlowMember, job: Job) -> FlowEnd:
    """The end of this job; GONE if it is removed before it has ended."""
    return FlowEnd(member, job.id, outcome_of(job.state), job.result)
