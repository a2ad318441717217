"""The verbs of flows, and the ends of jobs that are nodes of flows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nlargest

from msgspec.structs import replace

from penstock.core.flow import USED, FlowInfo, FlowNode, FlowState, NewFlow, NewNode, NodeState, outcome_of
from penstock.core.flow_engine import FlowEngine, LiveNode, is_abandoned, joins_on, new_flow
from penstock.core.job import NewJob, Ref, State
from penstock.core.relations import FlowMember
from penstock.stores.contract import FLOW_STEP, EnqueueStatus, FlowChange, FlowPage, JobRetry
from penstock.stores.cursors import flow_cursor
from tests.oracle.flow_rows import MemoryFlow
from tests.oracle.state import MemoryState
from tests.oracle.verbs.changing import change_jobs
from tests.oracle.verbs.producing import admit, cancel_one, enqueue_one
from tests.oracle.verbs.stepping import wake_job

__all__ = [
    "add_to_flow",
    "advance_flows",
    "change_flow",
    "count_ends",
    "flow_nodes",
    "get_flows",
    "list_flows",
    "put_flow",
]


class _Host:
    """What the engine asks of this store."""

    def __init__(self, memory: MemoryState, flow: MemoryFlow) -> None:
        self._memory = memory
        self._nodes = flow.nodes
        self.now = memory.clock.now()

    def node(self, index: int) -> LiveNode | None:
        return self._nodes[index] if 0 <= index < len(self._nodes) else None

    def loaded(self, indexes: Iterable[int]) -> bool:
        return True

    def touch(self, node: LiveNode) -> None:
        """Nodes are changed in place."""

    def inputs(self, index: int) -> tuple[int, ...]:
        return self._nodes[index].inputs

    def released(self, node: LiveNode) -> None:
        if node.uses == 0 and node.ref is not None:
            node.result = USED

    def enqueue(self, job: NewJob) -> bool:
        return enqueue_one(self._memory, job, self.now, follows=True).status is EnqueueStatus.NEW

    def adopt(self, node: LiveNode) -> NodeState | None:
        row = None if node.ref is None else self._memory.row(node.ref)
        if row is None:
            return NodeState.GONE
        return outcome_of(row.job.state) if row.job.ended else None

    def wake(self, ref: Ref) -> None:
        row = self._memory.row(ref)
        if row is not None and not row.job.ended:
            wake_job(self._memory, row, self.now)

    def cancel(self, ref: Ref, reason: str) -> None:
        cancel_one(self._memory, ref, reason, self.now)

    def retry(self, ref: Ref) -> bool:
        row = self._memory.row(ref)
        if row is not None and row.job.state is State.COMPLETED:
            return True  # by an act whose end is counted after this one
        return self.rerun(ref)

    def rerun(self, ref: Ref) -> bool:
        return change_jobs(self._memory, [JobRetry(ref, expires_in=None)])[0].before is not None


def put_flow(memory: MemoryState, spec: NewFlow, nodes: Sequence[NewNode], start: bool) -> FlowInfo | None:
    flow = memory.flows.get(spec.ref)
    if flow is None:
        now = memory.clock.now()
        admit(memory, spec, now)
        flow = memory.flows.create(new_flow(spec, now))
    head = flow.head
    if head.spec.key != spec.key or not joins_on(head, nodes):
        return None
    if head.state is FlowState.BUILDING:
        new = [LiveNode.of(node) for node in nodes if node.index >= head.total]
        flow.nodes += new
        head.stored(len(new))
        if start:
            _engine(memory, flow).start(FLOW_STEP)
        flow.parent_ended = is_abandoned(head, _parent_of(memory, flow))
    return _after(memory, flow)


def add_to_flow(
    memory: MemoryState, ref: Ref, join: int, jobs: Sequence[NewJob], key: str = ""
) -> FlowInfo | None:
    flow = memory.flows.get(ref)
    if flow is None:
        return None
    if key in flow.added:
        return flow.head.info()
    first = flow.head.total
    members = [replace(job, flow=FlowMember(ref.queue, ref.id, first + n)) for n, job in enumerate(jobs)]
    flow.nodes += [
        LiveNode.of(NewNode(first + n, job, next=(join,), uses=1)) for n, job in enumerate(members)
    ]
    if not _engine(memory, flow).add(join, members):
        del flow.nodes[first:]
        return None
    if key:
        flow.added.add(key)
    return _after(memory, flow)


def get_flows(memory: MemoryState, refs: Sequence[Ref]) -> list[FlowInfo | None]:
    found = [memory.flows.get(ref) for ref in refs]
    return [None if flow is None else flow.head.info() for flow in found]


def flow_nodes(memory: MemoryState, ref: Ref, indexes: Sequence[int], results: bool) -> list[FlowNode | None]:
    flow = memory.flows.get(ref)
    if flow is None:
        return [None] * len(indexes)
    host = _Host(memory, flow)
    found = [host.node(index) for index in indexes]
    shown = [None if node is None else node.shown() for node in found]
    return shown if results else [None if node is None else replace(node, result=None) for node in shown]


def list_flows(memory: MemoryState, after: str | None, limit: int) -> FlowPage:
    every = ((flow.head.created_at, ref.queue, ref.id) for ref, flow in memory.flows.items())
    if after is not None:
        before = flow_cursor(after)
        every = (place for place in every if place < before)
    places = nlargest(limit + 1, every)
    infos = [memory.flows[Ref(queue, id)].head.info() for _, queue, id in places[:limit]]
    return FlowPage.of(infos, places, limit)


def change_flow(
    memory: MemoryState, ref: Ref, change: FlowChange, node: int | None = None
) -> FlowInfo | None:
    flow = memory.flows.get(ref)
    if flow is None:
        return None
    engine = _engine(memory, flow)
    if change is FlowChange.CANCEL:
        engine.cancel(FLOW_STEP)
    elif node is None:
        engine.retry(FLOW_STEP)
    else:
        engine.rerun(node, FLOW_STEP)
    return _after(memory, flow)


def advance_flows(memory: MemoryState, limit: int) -> int:
    now, done = memory.clock.now(), 0
    for ref in list(memory.flows.busy):
        flow = memory.flows[ref]
        engine = _engine(memory, flow)
        state = _parent_of(memory, flow) if flow.parent_ended else None
        if flow.parent_ended and is_abandoned(flow.head, state):
            engine.abandon(state, limit)
            done += 1
        flow.parent_ended = False
        if flow.head.busy:
            done += engine.advance(limit)
        elif flow.head.releases:
            done += engine.release(limit)
        _changed(memory, flow)
    for ref in memory.flows.over(now):
        memory.flows.remove(ref)
        done += 1
    return done


def _parent_of(memory: MemoryState, flow: MemoryFlow) -> State | None:
    row = memory.row(Ref(flow.head.spec.queue, flow.head.spec.wakes))
    gone = State.COMPLETED if flow.parent_completed else None
    return gone if row is None else row.job.state


def count_ends(memory: MemoryState) -> None:
    """Count the ends that a verb has noted."""
    while memory.flow_ends:
        ends, memory.flow_ends = memory.flow_ends, []
        for end in ends:
            member = end.member
            flow = memory.flows.get(Ref(member.queue, member.id))
            if flow is None or not _is_job_of(flow, member.node, end.job_id):
                continue
            engine = _engine(memory, flow)
            if end.outcome is None:
                engine.reopened(member.node, FLOW_STEP)
            else:
                engine.ended(member.node, end.outcome, end.result, FLOW_STEP)
            _changed(memory, flow)


def _is_job_of(flow: MemoryFlow, index: int, id: str) -> bool:
    ref = flow.nodes[index].ref if index < len(flow.nodes) else None
    return ref is not None and ref.id == id


def _engine(memory: MemoryState, flow: MemoryFlow) -> FlowEngine:
    return FlowEngine(flow.head, _Host(memory, flow))


def _after(memory: MemoryState, flow: MemoryFlow) -> FlowInfo:
    """The flow after the verb, and after the ends that the verb has caused."""
    _changed(memory, flow)
    count_ends(memory)
    return flow.head.info()


def _changed(memory: MemoryState, flow: MemoryFlow) -> None:
    memory.flows.changed(flow)
    if flow.head.over:
        memory.waiters.notify_over(flow.head.spec.ref)
