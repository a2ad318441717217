"""Stores flows, in steps if they are large."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from penstock.client.flows.build import Builder
from penstock.client.flows.flow_handle import FlowHandle
from penstock.client.timeouts import refuse_in_loop
from penstock.core.duration import Duration, milliseconds
from penstock.core.errors import ConfigError, JobExists, JobNotFound
from penstock.core.flow import FlowInfo, FlowPolicy, FlowState, NewFlow, NewNode
from penstock.core.ids import check_id, mint, mint_token
from penstock.core.job import FINISHED_KEPT
from penstock.stores.contract import FLOW_STEP, Store, most_steps

__all__ = ["Submission", "asubmit", "submit"]

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
        if self.builder.client is None:
            raise ConfigError("a flow without a single job cannot be stored: no app is known to it")
        store: Store = self.builder.client.store
        return store

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

    def parts(self, flow: NewFlow) -> Iterator[tuple[list[NewNode], bool]]:
        """The nodes in steps, and whether it is the last one."""
        nodes = self.builder.new_nodes(flow, self._kept_nodes)
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
    store = submission.store
    if not store.url.startswith("memory:"):
        refuse_in_loop("enqueue() of a flow", "await ….aenqueue()")
    flow, info = submission.flow(), None
    for nodes, last in submission.parts(flow):
        info = _checked(flow, nodes, store.sync.put_flow(flow, nodes, start=last))
    for _ in range(0 if info is None else most_steps(info)):
        if not _unfinished(info) or not store.sync.advance_flows():
            break
        (info,) = store.sync.get_flows([flow.ref])
    return submission.handle(flow)


async def asubmit(submission: Submission[R]) -> FlowHandle[R]:
    """Like `submit`, without blocking the event loop."""
    store, flow, info = submission.store, submission.flow(), None
    for nodes, last in submission.parts(flow):
        info = _checked(flow, nodes, await store.put_flow(flow, nodes, start=last))
    for _ in range(0 if info is None else most_steps(info)):
        if not _unfinished(info) or not await store.advance_flows():
            break
        (info,) = await store.get_flows([flow.ref])
    return submission.handle(flow)


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
