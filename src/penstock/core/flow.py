"""Flows, as values: jobs that depend on each other, and what has become of them.

docs/concepts/flows.md explains nodes, counting and states. Instants are ms since the epoch.
"""

from __future__ import annotations

import enum
from collections.abc import Generator
from typing import Annotated

import msgspec

from penstock.core.errors import ConfigError
from penstock.core.job import FINISHED_KEPT, NewJob, Ref, State
from penstock.core.security import Secret

#: Retention (ms) of a flow that has failed or was cancelled: until then it can be retried.
FAILED_KEPT = 90 * 86_400_000
#: Time (ms) from the storing of its first nodes to the removal of a flow that was not started.
BUILDING_KEPT = 3_600_000
#: The reasons of jobs that are cancelled with their flow.
FLOW_CANCELLED = "cancelled with its flow"
FLOW_STOPPED = "cancelled because another node of its flow failed"
FLOW_ABANDONED = "cancelled with the job that waited for it"


class FlowPolicy(enum.StrEnum):
    """What happens to the other nodes if one fails."""

    STOP = "stop"  # cancel all that have not ended
    FINISH = "finish"  # run those that do not depend on it
    IGNORE = "ignore"  # run all of them; the result of the failed node is None

    __hash__ = str.__hash__


class When(enum.StrEnum):
    """When a node starts: after its predecessors."""

    SUCCESS = "success"  # all have completed
    END = "end"  # all have ended, in any way
    FAILURE = "failure"  # one has failed

    __hash__ = str.__hash__


class NodeState(enum.StrEnum):
    """The state of a node. Every state except the first two is an end."""

    WAITING = "waiting"  # for its predecessors
    ACTIVE = "active"  # its job is in its queue: the job has the details
    COMPLETED = "completed"
    DEAD = "dead"
    CANCELLED = "cancelled"  # also: its job has expired
    GONE = "gone"  # its job was removed before it ended, or was not enqueued
    SKIPPED = "skipped"  # a predecessor failed, or its flow was cancelled: it has no job
    UNUSED = "unused"  # it waited for a failure, and there was none: it has no job

    __hash__ = str.__hash__


#: The states of nodes that have not ended.
OPEN = (NodeState.WAITING, NodeState.ACTIVE)


class FlowState(enum.StrEnum):
    """The state of a flow."""

    BUILDING = "building"  # its nodes are being stored; nothing runs
    RUNNING = "running"
    STOPPING = "stopping"  # a node failed, or it was cancelled: its other nodes are being cancelled
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    __hash__ = str.__hash__


#: The states of flows that have ended.
CLOSED = (FlowState.COMPLETED, FlowState.FAILED, FlowState.CANCELLED)


class NewFlow(msgspec.Struct, frozen=True, array_like=True):
    """A producer's request for a flow. `queue` is its home: the flow is stored beside the jobs of this queue.

    - `key`: random; tells a repeated request from another flow with the same id.
    - `result`: the node whose value is the result of the flow.
    - `retention`: ms for which the completed flow is kept, with the results of its nodes.
    - `wakes`: the id of a job in this queue, which is suspended until the flow has ended. If that job is
      cancelled, dead or removed before, the flow is cancelled.
    - `starts`: how many jobs it starts with, by queue: these queues must be open and have room for them. Jobs
      that follow are taken by any queue, as are all jobs of a flow that belongs to a running job (`wakes`).
    """

    id: str
    queue: str = "default"
    name: str = ""
    policy: FlowPolicy = FlowPolicy.STOP
    key: str = ""
    result: int = 0
    retention: int = FINISHED_KEPT
    wakes: str = ""
    starts: tuple[tuple[str, int], ...] = ()

    @property
    def ref(self) -> Ref:
        return Ref(self.queue, self.id)


class NewNode(msgspec.Struct, frozen=True, array_like=True):
    """A node of a new flow, with its number in the flow.

    - `job`: its job; None: a join, which has no job, ends as soon as it may start, and whose value is the
      list of the values of its `inputs`.
    - `waits`: the number of its predecessors, each of which names this node in its `next`.
    - `inputs`: of a job, the nodes whose values it takes.
    - `uses`: the number of nodes that have this one in their `inputs`: its result is removed when all of them
      have completed, or at once if there are none. -1: it is kept with the flow.
    - `ref`: in place of `job`, a job that was enqueued before, with this node as its `flow`. Such a node is
      stored by a call before the one that starts the flow, so that no end of its job is missed.
    """

    index: int
    job: NewJob | None = None
    next: tuple[int, ...] = ()
    waits: int = 0
    when: When = When.SUCCESS
    inputs: tuple[int, ...] = ()
    uses: int = -1
    ref: Ref | None = None


#: The result of a node in place of one that was removed after its use.
USED = b""


class FlowNode(msgspec.Struct, frozen=True):
    """A stored node, as it was at one instant.

    - `result`: what its job returned, encoded; None: nothing; `USED`: it was removed after its use.
    - `uses`: how many nodes still need its value; -1: it is kept with the flow.
    """

    index: int
    state: NodeState
    job: Ref | None = None
    task: str = ""
    when: When = When.SUCCESS
    next: tuple[int, ...] = ()
    inputs: tuple[int, ...] = ()
    result: Annotated[bytes | None, Secret.RESULT] = None
    uses: int = -1


class FlowInfo(msgspec.Struct, frozen=True):
    """A stored flow. `counts`: its nodes by state; states without nodes are absent."""

    spec: NewFlow
    state: FlowState
    created_at: int
    ended_at: int | None = None
    total: int = 0
    counts: dict[NodeState, int] = {}

    @property
    def ref(self) -> Ref:
        return self.spec.ref

    @property
    def ended(self) -> bool:
        return self.state in CLOSED


_END = "flow/"


def end_of_flow(flow: Ref) -> Ref:
    """The ref by which `wait_for_end` waits for the result of a flow, or its end. No job has such an id."""
    return Ref(flow.queue, _END + flow.id)


def flow_with_end(ref: Ref) -> Ref | None:
    """The flow whose end this ref stands for; None if it is the ref of a job."""
    return Ref(ref.queue, ref.id.removeprefix(_END)) if ref.id.startswith(_END) else None


_OUTCOMES = {
    State.COMPLETED: NodeState.COMPLETED,
    State.DEAD: NodeState.DEAD,
    State.CANCELLED: NodeState.CANCELLED,
}


def outcome_of(state: State) -> NodeState:
    """The end of a node whose job has ended in this state; GONE if the job was removed before it ended."""
    return _OUTCOMES.get(state, NodeState.GONE)


# ── whether a flow can run again from a node ─────────────────────────────────────────────────────


#: A plan: yields numbers of nodes to read, at most `_READ_AT_ONCE` at a time, and is sent the nodes.
Reads = Generator[list[int], list[FlowNode | None], list[FlowNode]]
_READ_AT_ONCE = 1_000
#: States of nodes whose jobs have run, and would run again.
_HAVE_RUN = (NodeState.COMPLETED, NodeState.DEAD, NodeState.CANCELLED)


def nodes_to_rerun(first: int) -> Reads:
    """Read the node and all that follow it; returns those whose jobs have run.

    Raises ConfigError if one of them takes a result that was removed after its use.
    """
    found = yield from _read([first])
    at = [first]
    while at:
        nodes = [found[one] for one in at if one in found]
        at = list(dict.fromkeys(one for node in nodes for one in node.next if one not in found))
        found |= yield from _read(at)
    wanted = {one: node.index for node in found.values() for one in node.inputs if one not in found}
    for index, node in (yield from _read(sorted(wanted))).items():
        if node.uses == 0:
            raise ConfigError(
                f"node {wanted[index]} takes the result of node {index}, which was removed after its use: "
                f"run the flow again from node {index}, or enqueue flows with keep_nodes="
            )
    return [node for node in found.values() if node.job is not None and node.state in _HAVE_RUN]


def refuse_gone(nodes: list[FlowNode], gone: set[Ref]) -> None:
    """Raise ConfigError if the job of one of these nodes is gone."""
    for node in nodes:
        if node.job in gone:
            raise ConfigError(
                f"node {node.index}, {node.task}, cannot run again: its job is not kept any more. Give its "
                "task a longer retention=, or enqueue flows with keep_nodes="
            )


def _read(wanted: list[int]) -> Generator[list[int], list[FlowNode | None], dict[int, FlowNode]]:
    found: dict[int, FlowNode] = {}
    for at in range(0, len(wanted), _READ_AT_ONCE):
        part = wanted[at : at + _READ_AT_ONCE]
        found |= {node.index: node for node in (yield part) if node is not None}
    return found
