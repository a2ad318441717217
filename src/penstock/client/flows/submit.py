"""Stores flows, in steps if they are large."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from penstock.client.backpressure import Patience, in_loop
from penstock.client.flows.build import Builder, first_jobs
from penstock.client.flows.flow_handle import FlowHandle
from penstock.client.timeouts import refuse_in_loop
from penstock.core.clock import SystemClock
from penstock.core.errors import ConfigError, JobExists, JobNotFound, QueueFull
from penstock.core.flow import FlowInfo, FlowNode, FlowPolicy, FlowState, NewFlow, NewNode, NodeState
from penstock.core.formats import Duration, milliseconds
from penstock.core.ids import check_id, mint, mint_token
from penstock.core.job import FINISHED_KEPT
from penstock.stores.contract import FLOW_STEP, Store, most_steps

R = TypeVar("R")


@dataclasses.dataclass(frozen=True, slots=True)
class Submission(Generic[R]):
    """A flow that is laid out, and how it is to be stored."""

    builder: Builder
    id: str | None
    name: str
    policy: FlowPolicy | str
    retention: Duration | None
    keep_nodes: Duration | None = None

    @property
    def store(self) -> Store:
        store: Store = self.builder.client.store
        return store

    def without_app(self) -> FlowHandle[R] | None:
        """The handle of a flow without jobs, if no app is known to it."""
        if self.builder.client is not None:
            return None
        flow, nodes = self.laid_out()
        ended: Any = WithoutJobs(flow, nodes)
        return FlowHandle(ended, flow.queue, flow.id, {}, flow.result)

    def flow(self) -> NewFlow:
        try:
            policy = FlowPolicy(self.policy)
        except ValueError:
            known = ", ".join(one.value for one in FlowPolicy)
            raise ConfigError(f"policy={self.policy!r} is unknown: use one of {known}") from None
        kept = FINISHED_KEPT if self.retention is None else milliseconds(self.retention, what="retention")
        kept = max(kept, self._kept_nodes or 0)
        id = mint() if self.id is None else check_id(self.id)
        return NewFlow(
            id, self.builder.home(), self.name[:200], policy, mint_token(), self.builder.result, kept
        )

    def laid_out(self) -> tuple[NewFlow, list[NewNode]]:
        """The flow and its nodes, for the store."""
        flow = self.flow()
        nodes = self.builder.new_nodes(flow, self._kept_nodes)
        starts = Counter(job.queue for job in first_jobs(nodes))
        return replace(flow, starts=tuple(starts.items())), nodes

    @staticmethod
    def parts(nodes: list[NewNode]) -> Iterator[tuple[list[NewNode], bool]]:
        """The nodes in steps, and whether it is the last one."""
        for at in range(0, len(nodes), FLOW_STEP):
            yield nodes[at : at + FLOW_STEP], at + FLOW_STEP >= len(nodes)

    @property
    def _kept_nodes(self) -> int | None:
        given = self.keep_nodes
        return None if given is None else milliseconds(given, what="keep_nodes")

    def handle(self, flow: NewFlow) -> FlowHandle[R]:
        return FlowHandle(self.store, flow.queue, flow.id, self.builder.codecs(), flow.result)


def submit(submission: Submission[R]) -> FlowHandle[R]:
    """Store a flow and start it."""
    if (ended := submission.without_app()) is not None:
        return ended
    store = submission.store
    if not store.url.startswith("memory:"):
        refuse_in_loop("enqueue() of a flow", "await ….aenqueue()")
    (flow, all_nodes), info = submission.laid_out(), None
    patience = Patience(submission.builder.client.full_timeout)
    for nodes, last in submission.parts(all_nodes):
        info = _checked(flow, nodes, _put(store, flow, nodes, last, patience))
    submission.builder.client.emit_enqueued(first_jobs(all_nodes))
    for _ in range(0 if info is None else most_steps(info)):
        if not _unfinished(info) or not store.sync.advance_flows():
            break
        (info,) = store.sync.get_flows([flow.ref])
    return submission.handle(flow)


async def asubmit(submission: Submission[R]) -> FlowHandle[R]:
    """Like `submit`, without blocking the event loop."""
    if (ended := submission.without_app()) is not None:
        return ended
    store, (flow, all_nodes), info = submission.store, submission.laid_out(), None
    patience = Patience(submission.builder.client.full_timeout)
    for nodes, last in submission.parts(all_nodes):
        info = _checked(flow, nodes, await _aput(store, flow, nodes, last, patience))
    submission.builder.client.emit_enqueued(first_jobs(all_nodes))
    for _ in range(0 if info is None else most_steps(info)):
        if not _unfinished(info) or not await store.advance_flows():
            break
        (info,) = await store.get_flows([flow.ref])
    return submission.handle(flow)


def _put(
    store: Store, flow: NewFlow, nodes: list[NewNode], start: bool, patience: Patience
) -> FlowInfo | None:
    """Store nodes; if a queue is full and its rule is to wait, wait for room."""
    while True:
        try:
            return store.sync.put_flow(flow, nodes, start=start)
        except QueueFull as full:
            pause = patience.pause(full.retry_after) if full.waits and not in_loop() else None
            if pause is None:
                raise
        time.sleep(pause)


async def _aput(
    store: Store, flow: NewFlow, nodes: list[NewNode], start: bool, patience: Patience
) -> FlowInfo | None:
    while True:
        try:
            return await store.put_flow(flow, nodes, start=start)
        except QueueFull as full:
            pause = patience.pause(full.retry_after) if full.waits else None
            if pause is None:
                raise
        await asyncio.sleep(pause)


def _checked(flow: NewFlow, nodes: list[NewNode], info: FlowInfo | None) -> FlowInfo:
    if info is None and nodes[0].index:
        raise JobNotFound(
            f"the flow {flow.id} is gone: storing its nodes took more than an hour; nothing of it runs"
        )
    if info is None:
        raise JobExists(flow.queue, flow.id)
    return info


def _unfinished(info: Any) -> bool:
    """Whether nodes may be left to start; a small flow is started by the call that stores it."""
    return info is not None and info.state is FlowState.RUNNING and info.total > FLOW_STEP // 4


# ── flows without a job ──────────────────────────────────────────────────────────────────────────

# And without an app, as `group([])`: no store has them, and they have completed.


class _Answers:
    """What a handle asks of its store, in a thread."""

    def __init__(self, flow: NewFlow, nodes: Sequence[NewNode]) -> None:
        now, counts = SystemClock().now(), {NodeState.COMPLETED: len(nodes)}
        self._info = FlowInfo(flow, FlowState.COMPLETED, now, now, len(nodes), counts)
        self._nodes = [
            FlowNode(node.index, NodeState.COMPLETED, when=node.when, next=node.next, inputs=node.inputs)
            for node in nodes
        ]

    def get_flows(self, refs: Sequence[Any]) -> list[FlowInfo]:
        return [self._info]

    def flow_nodes(self, ref: Any, indexes: Sequence[int]) -> list[FlowNode | None]:
        known = len(self._nodes)
        return [self._nodes[index] if 0 <= index < known else None for index in indexes]

    def change_flow(self, ref: Any, change: Any, *, node: int | None = None) -> FlowInfo:
        return self._info

    def advance_flows(self) -> int:
        return 0

    def get(self, refs: Sequence[Any]) -> list[None]:
        return [None] * len(refs)


class WithoutJobs:
    """In place of the store: the same for handles, in an event loop and with `sync` in a thread."""

    def __init__(self, flow: NewFlow, nodes: Sequence[NewNode]) -> None:
        self.sync = _Answers(flow, nodes)

    async def get_flows(self, refs: Sequence[Any]) -> list[FlowInfo]:
        return self.sync.get_flows(refs)

    async def flow_nodes(self, ref: Any, indexes: Sequence[int]) -> list[FlowNode | None]:
        return self.sync.flow_nodes(ref, indexes)

    async def change_flow(self, ref: Any, change: Any, *, node: int | None = None) -> FlowInfo:
        return self.sync.change_flow(ref, change, node=node)

    async def advance_flows(self) -> int:
        return 0

    async def get(self, refs: Sequence[Any]) -> list[None]:
        return self.sync.get(refs)
