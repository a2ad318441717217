"""A producer's handle of a flow: its state, its result, its progress, and how to cancel or retry it."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from penstock.client.flows.values import decoded, needed
from penstock.client.timeouts import (
    WaitLimit,
    acall_through_outage,
    await_end,
    call_through_outage,
    refuse_in_loop,
    wait_for_end,
)
from penstock.codec import ANY_RESULT, ResultCodec
from penstock.core.errors import JobDead, JobNotFound, ResultCancelled, ResultTimeout
from penstock.core.flow import (
    OPEN,
    FlowInfo,
    FlowNode,
    FlowState,
    NodeState,
    end_of_flow,
    nodes_to_rerun,
    refuse_gone,
)
from penstock.core.formats import Duration, shown_text
from penstock.core.job import AttemptError, Job, Progress, Ref
from penstock.core.portable import in_process
from penstock.stores.contract import FLOW_STEP, FlowChange, Store, most_steps

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


@in_process("send its queue and id, and make the handle there")
class FlowHandle(msgspec.Struct, Generic[R_co], frozen=True, eq=False):
    """The address of a stored flow and the operations on it. Every method has an async twin with `a`."""

    _store: Store
    queue: str
    id: str
    _codecs: Mapping[int, ResultCodec] = {}
    _result: int | None = None

    @property
    def ref(self) -> Ref:
        return Ref(self.queue, self.id)

    def info(self) -> FlowInfo:
        """The stored flow, with its nodes counted by state. Raises JobNotFound."""
        return self._existing(self._store.sync.get_flows([self.ref])[0])

    async def ainfo(self) -> FlowInfo:
        """Like `info`, without blocking the event loop."""
        return self._existing((await self._store.get_flows([self.ref]))[0])

    def status(self) -> FlowState:
        """The state of the flow. Raises JobNotFound."""
        return self.info().state

    async def astatus(self) -> FlowState:
        """Like `status`, without blocking the event loop."""
        return (await self.ainfo()).state

    def progress(self) -> Progress:
        """How many nodes have ended, of how many."""
        return _progress(self.info())

    async def aprogress(self) -> Progress:
        """Like `progress`, without blocking the event loop."""
        return _progress(await self.ainfo())

    def cancel(self) -> FlowState:
        """Cancel all jobs that have not ended, and start no others. Returns the state after that."""
        return self._change(FlowChange.CANCEL)

    async def acancel(self) -> FlowState:
        """Like `cancel`, without blocking the event loop."""
        return await self._achange(FlowChange.CANCEL)

    def retry(self, *, node: int | None = None) -> FlowState:
        """Run failed jobs again, and what was skipped because of them. Returns the state after that.

        `node`: the number of a node that runs again as well, with all that follow it, also completed ones.
        The flow must have ended. Errors and attempts of earlier runs are kept with the jobs.

        Raises ConfigError if the node, or one that follows it, cannot run again.
        """
        if node is not None:
            again = self._read(nodes_to_rerun(node))
            refs = [one.job for one in again if one.job is not None]
            jobs = self._store.sync.get(refs)
            refuse_gone(again, {ref for ref, job in zip(refs, jobs, strict=True) if job is None})
        return self._change(FlowChange.RETRY, node)

    async def aretry(self, *, node: int | None = None) -> FlowState:
        """Like `retry`, without blocking the event loop."""
        if node is not None:
            again = await self._aread(nodes_to_rerun(node))
            refs = [one.job for one in again if one.job is not None]
            jobs = await self._store.get(refs)
            refuse_gone(again, {ref for ref, job in zip(refs, jobs, strict=True) if job is None})
        return await self._achange(FlowChange.RETRY, node)

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the result, for at most `timeout`, and return it.

        - chain: the result of its last job; group: the list of its members' results, in order; chord: the
          result of its body.
        - Raises JobDead, ResultCancelled, ResultTimeout or JobNotFound.
        """
        refuse_in_loop("result() of a flow", "await ….aresult()")
        wait_limit, end = WaitLimit(timeout), end_of_flow(self.ref)
        while True:
            info = call_through_outage(wait_limit, self.info)
            value = call_through_outage(wait_limit, partial(self._nodes, [info.spec.result]))[0]
            if self._is_over(info, value, wait_limit):
                break
            wait_for_end(self._store, end, wait_limit)
        if value.state is NodeState.COMPLETED:
            value_read: R_co = self._decoded(value.index, self._read(needed([value.index])))
            return value_read
        bad = self._failed(info, [node for at in _steps(info) for node in self._nodes(at)])
        raise self._error(info, bad, self._store.sync.get([bad.job])[0] if bad and bad.job else None)

    async def aresult(self, timeout: Duration | None = None) -> R_co:
        """Like `result`, without blocking the event loop."""
        wait_limit, end = WaitLimit(timeout), end_of_flow(self.ref)
        while True:
            info = await acall_through_outage(wait_limit, self.ainfo)
            value = (await acall_through_outage(wait_limit, partial(self._anodes, [info.spec.result])))[0]
            if self._is_over(info, value, wait_limit):
                break
            await await_end(self._store, end, wait_limit)
        if value.state is NodeState.COMPLETED:
            value_read: R_co = self._decoded(value.index, await self._aread(needed([value.index])))
            return value_read
        bad = self._failed(info, [node for at in _steps(info) for node in await self._anodes(at)])
        raise self._error(info, bad, (await self._store.get([bad.job]))[0] if bad and bad.job else None)

    def __repr__(self) -> str:
        return f"<FlowHandle of {self.id} in the queue {self.queue!r}>"

    # ── private ──────────────────────────────────────────────────────────────────────────────────

    def _existing(self, info: FlowInfo | None) -> FlowInfo:
        if info is None:
            raise JobNotFound(f"{self!r}: the flow is not there: it has ended and was not kept, or never was")
        return info

    def _change(self, change: FlowChange, node: int | None = None) -> FlowState:
        info = self._existing(self._store.sync.change_flow(self.ref, change, node=node))
        for _ in range(most_steps(info)):
            if not self._store.sync.advance_flows():
                break
        return self.status()

    async def _achange(self, change: FlowChange, node: int | None = None) -> FlowState:
        info = self._existing(await self._store.change_flow(self.ref, change, node=node))
        for _ in range(most_steps(info)):
            if not await self._store.advance_flows():
                break
        return await self.astatus()

    def _nodes(self, indexes: list[int]) -> list[FlowNode]:
        return self._all(self._store.sync.flow_nodes(self.ref, indexes))

    async def _anodes(self, indexes: list[int]) -> list[FlowNode]:
        return self._all(await self._store.flow_nodes(self.ref, indexes))

    def _all(self, nodes: list[FlowNode | None]) -> list[FlowNode]:
        found = [node for node in nodes if node is not None]
        if len(found) != len(nodes):
            raise JobNotFound(f"{self!r}: a node of the flow is not there")
        return found

    def _read(self, reading: Generator[list[int], list[FlowNode | None], T]) -> T:
        try:
            wanted = next(reading)
            while True:
                wanted = reading.send(self._store.sync.flow_nodes(self.ref, wanted))
        except StopIteration as end:
            nodes: T = end.value
            return nodes

    async def _aread(self, reading: Generator[list[int], list[FlowNode | None], T]) -> T:
        try:
            wanted = next(reading)
            while True:
                wanted = reading.send(await self._store.flow_nodes(self.ref, wanted))
        except StopIteration as end:
            nodes: T = end.value
            return nodes

    def _decoded(self, root: int, nodes: dict[int, FlowNode]) -> Any:
        return decoded(root, nodes, self._decode)

    def _decode(self, node: FlowNode) -> Any:
        if node.result is None:
            return None
        return self._codecs.get(node.index, ANY_RESULT).decode(node.result)

    def _is_over(self, info: FlowInfo, value: FlowNode, wait_limit: WaitLimit) -> bool:
        if value.state is NodeState.COMPLETED or info.ended:
            return True
        if wait_limit.over:
            raise ResultTimeout(f"{self!r} has no result within {wait_limit}: it is {info.state.value}")
        return False

    @staticmethod
    def _failed(info: FlowInfo, nodes: list[FlowNode]) -> FlowNode | None:
        """The node that says best why there is no result."""
        for state in (NodeState.DEAD, NodeState.GONE, NodeState.CANCELLED):
            for node in nodes:
                if node.state is state:
                    return node
        return None

    def _error(self, info: FlowInfo, bad: FlowNode | None, job: Job | None) -> Exception:
        if info.state is FlowState.CANCELLED or bad is None or bad.state is NodeState.CANCELLED:
            return ResultCancelled(f"{self!r} was cancelled")
        errors: tuple[AttemptError, ...] = () if job is None else job.errors
        why = f"{errors[-1].kind}: {errors[-1].message}" if errors else (job and job.reason) or "it is gone"
        return JobDead(shown_text(f"{self!r}: node {bad.index}, {bad.task}, failed for good: {why}"), errors)


def _progress(info: FlowInfo) -> Progress:
    return Progress(info.total - sum(info.counts.get(state, 0) for state in OPEN), info.total)


def _steps(info: FlowInfo) -> list[list[int]]:
    return [list(range(at, min(info.total, at + FLOW_STEP))) for at in range(0, info.total, FLOW_STEP)]
