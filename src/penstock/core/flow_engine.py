"""What follows from the end of a node: the rules of flows, for all stores.

docs/concepts/flows.md explains them. Why a successor, as the callback of a chord, is enqueued exactly once:

- A node knows how many of its predecessors have not ended (`pending`). The end that makes it 0 starts the
  node: the node's new state and its job are stored in one write. If the job belongs in another slot of a
  Cluster, or in one queue more than a script on Redis takes (200), that write leaves an entry in its place,
  which is delivered once (`stores/redis/verbs/delivering.py`).
- An end is counted once. SQLite and memory count it in the transaction that ends the job
  (`stores/sql/verbs/settling.py`). On Redis the script that ends the job counts it or notes it with a number;
  a node remembers the highest number that was counted (`stores/redis/verbs/flow_store.py`).
- A flow that has changed since it was read is read again, and the rules are applied to what it is now
  (`stores/redis/scripts/flow_commit.lua`).
- The job has the id that the node got when its flow was made. What is repeated after a lost reply finds it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from penstock.core.errors import ConfigError
from penstock.core.flow import (
    BUILDING_KEPT,
    CLOSED,
    FAILED_KEPT,
    FLOW_ABANDONED,
    FLOW_CANCELLED,
    FLOW_STOPPED,
    OPEN,
    FlowInfo,
    FlowNode,
    FlowPolicy,
    FlowState,
    NewFlow,
    NewNode,
    NodeState,
    When,
)
from penstock.core.job import NewJob, Ref, State


class Effect(enum.IntEnum):
    """What the end of a node, or its new start, does to each successor."""

    SUCCEEDED = 0
    FAILED = 1
    REOPENED = 2  # undoes SUCCEEDED
    REOPENED_FAILED = 3  # undoes FAILED
    RERUN = 4  # undoes SUCCEEDED, and runs the successor again
    RERUN_FAILED = 5  # undoes FAILED, and runs the successor again

    @property
    def pending(self) -> int:
        return -1 if self < Effect.REOPENED else 1

    @property
    def failures(self) -> int:
        return (0, 1, 0, -1, 0, -1)[self]


class Sweep(enum.IntEnum):
    """A pass over all nodes, in the order of their numbers, in bounded steps."""

    NONE = 0
    START = 1  # start waiting nodes that may start
    STOP = 2  # cancel all nodes that have not ended
    REOPEN = 3  # run again what a STOP has cancelled or skipped; then START
    RETRY = 4  # run all failed and skipped nodes again; then START


_BAD = (NodeState.DEAD, NodeState.CANCELLED, NodeState.GONE, NodeState.SKIPPED)


class LiveFlow(msgspec.Struct):
    """A stored flow.

    - `answered`: its result exists. `abandoned`: the job that waits for it (`spec.wakes`) has ended.
    - `work`: effects that have not reached all successors, oldest first: (node, next position, effect).
    - `releases`: nodes that need their inputs no longer (-1), or again (1): (node, next position, change).
    """

    spec: NewFlow
    created_at: int
    state: FlowState = FlowState.BUILDING
    ended_at: int | None = None
    over_at: int = 0
    total: int = 0
    counts: dict[NodeState, int] = msgspec.field(default_factory=dict[NodeState, int])
    cancelled: bool = False
    sweep: Sweep = Sweep.NONE
    cursor: int = 0
    answered: bool = False
    work: list[tuple[int, int, Effect]] = msgspec.field(default_factory=list[tuple[int, int, Effect]])
    releases: list[tuple[int, int, int]] = msgspec.field(default_factory=list[tuple[int, int, int]])
    abandoned: bool = False

    @property
    def busy(self) -> bool:
        """Whether `advance` has something to do."""
        return bool(self.work) or self.sweep is not Sweep.NONE

    @property
    def over(self) -> bool:
        """Whether there is nothing to wait for: its result exists, or it has ended."""
        return self.answered or self.state in CLOSED

    @property
    def unfinished(self) -> bool:
        """Whether something is left over for `advance` or `release`."""
        return self.busy or bool(self.releases)

    @property
    def failed(self) -> bool:
        """Whether a node has ended in a way that its policy counts as a failure."""
        return self.spec.policy is not FlowPolicy.IGNORE and self.has_failures

    @property
    def has_failures(self) -> bool:
        return any(self.counts.get(state) for state in _BAD)

    def stored(self, nodes: int) -> None:
        """Count nodes that were stored before the start; jobs of earlier ones may have ended."""
        self.total += nodes
        self.counts[NodeState.WAITING] = self.counts.get(NodeState.WAITING, 0) + nodes

    def info(self) -> FlowInfo:
        counts = {state: n for state, n in self.counts.items() if n}
        return FlowInfo(self.spec, self.state, self.created_at, self.ended_at, self.total, counts)


class LiveNode(msgspec.Struct):
    """A stored node.

    - `job`: kept until it is enqueued. `swept`: its job was cancelled by a STOP.
    - `again`: its job has run, and is retried when the node starts.
    - `external`: its job is enqueued by others.
    - `takes`: it has a job with inputs. `inputs`: read on request.
    """

    index: int
    state: NodeState = NodeState.WAITING
    pending: int = 0
    failures: int = 0
    when: When = When.SUCCESS
    next: tuple[int, ...] = ()
    inputs: tuple[int, ...] = ()
    ref: Ref | None = None
    task: str = ""
    job: NewJob | None = None
    result: bytes | None = None
    swept: bool = False
    again: bool = False
    takes: bool = False
    uses: int = -1
    external: bool = False

    @classmethod
    def of(cls, new: NewNode) -> LiveNode:
        job = new.job
        return cls(
            new.index,
            pending=new.waits,
            when=new.when,
            next=new.next,
            inputs=new.inputs,
            ref=new.ref if job is None else job.ref,
            task="" if job is None else job.task,
            job=job,
            takes=job is not None and bool(new.inputs),
            uses=new.uses,
            external=new.ref is not None,
        )

    def shown(self) -> FlowNode:
        return FlowNode(
            self.index,
            self.state,
            self.ref,
            self.task,
            self.when,
            self.next,
            self.inputs,
            self.result,
            self.uses,
        )


class FlowHost(Protocol):
    """What the engine asks of a store, inside one atomic step."""

    @property
    def now(self) -> int: ...

    def node(self, index: int) -> LiveNode | None:
        """The node with this number; the same object for the same number."""
        ...

    def loaded(self, indexes: Iterable[int]) -> bool:
        """Whether `node` can give these nodes now. If not, `advance` stops, until it is called again."""
        ...

    def touch(self, node: LiveNode) -> None:
        """Note that the node has changed."""
        ...

    def inputs(self, index: int) -> tuple[int, ...]:
        """The inputs of a node that `release` asks for."""
        ...

    def released(self, node: LiveNode) -> None:
        """Note that `uses` has changed; if it is 0, the result is removed (`USED`)."""
        ...

    def enqueue(self, job: NewJob) -> bool:
        """Enqueue a job even if its queue is closed or full. False: it was not stored."""
        ...

    def adopt(self, node: LiveNode) -> NodeState | None:
        """Make an enqueued job that of a node. Answer: its end, if it has ended or is gone."""
        ...

    def wake(self, ref: Ref) -> None:
        """Make a suspended job available; if it runs, its next suspension makes it available at once."""
        ...

    def cancel(self, ref: Ref, reason: str) -> None:
        """Cancel a job, or ask it to stop."""
        ...

    def retry(self, ref: Ref) -> bool:
        """Run an ended job again, of a node that has failed. False: it does not exist.

        If the job has completed meanwhile, it does not run again: another process has retried it, or an
        operator has completed it.
        """
        ...

    def rerun(self, ref: Ref) -> bool:
        """Run an ended job again, also a completed one. False: it does not exist."""
        ...


class FlowEngine:
    """Applies the rules to one flow."""

    def __init__(self, flow: LiveFlow, host: FlowHost) -> None:
        self.flow = flow
        self._host = host
        self._advancing = False

    # ── what happens to nodes ────────────────────────────────────────────────────────────────────

    def ended(self, index: int, outcome: NodeState, result: bytes | None, budget: int) -> None:
        """The job of a node has ended. Repeated calls change nothing."""
        node = self._host.node(index)
        if node is None or node.state not in OPEN:
            return
        if outcome is not NodeState.CANCELLED:
            node.swept = False  # it has ended by itself, before the flow could cancel it
        elif self._runs_on(node):
            return
        node.result = result if node.uses or self._needed_again() else None
        self._resolve(node, outcome)
        self.advance(budget)

    def completed(self, ends: Iterable[tuple[int, bytes | None]], budget: int) -> None:
        """The jobs of these nodes have completed: as `ended` for each, but each join is counted once."""
        flow, host = self.flow, self._host
        reached: dict[int, int] = {}
        ended, again = 0, self._needed_again()
        for index, result in ends:
            node = host.node(index)
            if node is None or node.state is not NodeState.ACTIVE:
                continue
            if flow.work or len(node.next) > 1 or node.takes or index == flow.spec.result:
                self.ended(index, NodeState.COMPLETED, result, 0)  # in the order of effects that wait
                continue
            node.state, node.result = NodeState.COMPLETED, result if node.uses or again else None
            ended += 1
            host.touch(node)
            for successor in node.next:
                reached[successor] = reached.get(successor, 0) + 1
        if ended:
            self._count(NodeState.ACTIVE, -ended)
            self._count(NodeState.COMPLETED, ended)
        for successor, n in reached.items():
            self._affect(successor, Effect.SUCCEEDED, n)
        self.advance(budget)

    def reopened(self, index: int, budget: int) -> None:
        """The ended job of a node runs again."""
        node, flow = self._host.node(index), self.flow
        if node is None or node.state in OPEN:
            return
        self._reopen(node, NodeState.ACTIVE)
        if flow.state is not FlowState.RUNNING:  # a sweep has cancelled or skipped others, or it has ended
            self._run_again(Sweep.REOPEN)
        self.advance(budget)

    def add(self, join: int, jobs: list[NewJob]) -> bool:
        """Add jobs as further predecessors and inputs of a join."""
        flow, into = self.flow, self._host.node(join)
        if flow.state is not FlowState.RUNNING or into is None:
            return False
        if into.job is not None or into.ref is not None or into.state is not NodeState.WAITING:
            return False
        into.pending += len(jobs)
        into.inputs += tuple(job.flow.node for job in jobs if job.flow is not None)
        self._host.touch(into)
        for _ in jobs:
            node = self._host.node(flow.total)
            assert node is not None  # the store has stored it
            flow.total += 1
            self._count(NodeState.WAITING, 1)
            self._start(node)
        self.advance(len(jobs))
        return True

    # ── what is wanted of the flow ───────────────────────────────────────────────────────────────

    def start(self, budget: int) -> None:
        """Start a flow whose nodes are all stored."""
        if self.flow.state is FlowState.BUILDING:
            self.flow.state = FlowState.RUNNING
            self._sweep(Sweep.START)
            self.advance(budget)

    def cancel(self, budget: int) -> None:
        flow = self.flow
        if flow.state in CLOSED:
            return
        flow.cancelled = True
        if (
            flow.state is FlowState.BUILDING
        ):  # nothing runs; kept as before, so that no later part begins it anew
            flow.state, flow.ended_at = FlowState.CANCELLED, self._host.now
            return
        flow.state = FlowState.STOPPING
        self._sweep(Sweep.STOP)
        self.advance(budget)

    def abandon(self, parent: State | None, budget: int) -> None:
        """Cancel a flow whose job does not wait for it any longer. `parent`: the state of that job."""
        flow = self.flow
        flow.abandoned = True
        if parent is State.COMPLETED:  # it is building (`is_abandoned`): its jobs go on
            self.cancel(budget)
            return
        if flow.state is FlowState.BUILDING:  # the jobs of its nodes are enqueued already
            flow.state = FlowState.RUNNING
        self.cancel(budget)

    def retry(self, budget: int) -> None:
        if self.flow.has_failures:
            self._run_again(Sweep.RETRY)
            self.advance(budget)

    def rerun(self, index: int, budget: int) -> None:
        """Run an ended node and all that follow it again, and all failed nodes. Raises ConfigError."""
        flow, node = self.flow, self._host.node(index)
        if flow.state not in CLOSED:
            raise ConfigError(
                f"flow {flow.spec.id} is {flow.state.value}: it can run again from a node after it has ended"
            )
        if node is None or node.ref is None or node.state in (NodeState.SKIPPED, NodeState.UNUSED):
            raise ConfigError(f"flow {flow.spec.id} has no job that has run as its node {index}")
        if node.state in OPEN or not self._host.rerun(node.ref):
            raise ConfigError(f"node {index} of flow {flow.spec.id} cannot run again: its job is gone")
        self._run_again(Sweep.RETRY)
        self._reopen(node, NodeState.ACTIVE, rerun=True)
        self.advance(budget)

    def release(self, budget: int) -> int:
        """Remove results that no node needs any longer, in about `budget` steps; returns the steps done."""
        releases = self.flow.releases
        index, at, change = releases.pop(0)
        inputs = self._host.inputs(index)
        if at + budget < len(inputs):
            releases.insert(0, (index, at + budget, change))
        for one in inputs[at : at + budget]:
            node = self._host.node(one)
            if node is None or node.uses < 0:
                continue
            before, node.uses = node.uses, max(0, node.uses + change)
            self._host.released(node)
            if node.ref is None and (before == 0) != (node.uses == 0):  # a join needs its inputs as long
                releases.append((one, 0, change))
        return 1 + min(budget, len(inputs) - at)

    def advance(self, budget: int) -> int:
        """Do what is left over, in at most about `budget` steps; returns the number of steps done."""
        if self._advancing:  # called from within a step: the step in progress continues with it
            return 0
        self._advancing, left = True, budget
        try:
            while left > 0 and self.flow.busy and self._host.loaded(self.wanted(left)):
                left -= self._spread(left) if self.flow.work else self._sweep_one()
        finally:
            self._advancing = False
        self._finish()
        return budget - left

    def wanted(self, budget: int) -> Sequence[int]:
        """The nodes that the next step concerns, as far as they are known."""
        flow = self.flow
        if flow.work:
            index, at, _ = flow.work[0]
            if not self._host.loaded((index,)):
                return (index,)
            node = self._host.node(index)
            return () if node is None else node.next[at : at + budget]
        return (flow.cursor,) if flow.sweep is not Sweep.NONE and flow.cursor < flow.total else ()

    # ── private ──────────────────────────────────────────────────────────────────────────────────

    def _sweep(self, sweep: Sweep) -> None:
        self.flow.sweep, self.flow.cursor = sweep, 0

    def _run_again(self, sweep: Sweep) -> None:
        flow = self.flow
        flow.state, flow.ended_at = FlowState.RUNNING, None
        flow.cancelled = flow.abandoned = False
        self._sweep(sweep)

    def _count(self, state: NodeState, n: int) -> None:
        self.flow.counts[state] = self.flow.counts.get(state, 0) + n

    def _set(self, node: LiveNode, state: NodeState) -> None:
        self._count(node.state, -1)
        self._count(state, 1)
        node.state = state
        self._host.touch(node)

    def _good(self, state: NodeState) -> bool:
        if state in (NodeState.COMPLETED, NodeState.UNUSED):
            return True
        return self.flow.spec.policy is FlowPolicy.IGNORE

    def _resolve(self, node: LiveNode, outcome: NodeState) -> None:
        """End a node; its successors follow by `_spread`."""
        flow, good = self.flow, self._good(outcome)
        self._set(node, outcome)
        if node.index == flow.spec.result:
            flow.answered = outcome is NodeState.COMPLETED
        if node.takes and outcome is NodeState.COMPLETED:
            flow.releases.append((node.index, 0, -1))
        flow.work.append((node.index, 0, Effect.SUCCEEDED if good else Effect.FAILED))
        if not good and flow.spec.policy is FlowPolicy.STOP and flow.state is FlowState.RUNNING:
            flow.state = FlowState.STOPPING
            self._sweep(Sweep.STOP)

    def _runs_on(self, node: LiveNode) -> bool:
        """Run a job again that its flow had cancelled, if the flow was retried before the job ended."""
        if self.flow.state is FlowState.STOPPING:
            node.swept = node.swept or self._stops(node)  # a crash may have hidden that the flow cancelled it
            return False
        if not node.swept or self.flow.state is not FlowState.RUNNING or node.ref is None:
            return False
        node.swept = False
        self._host.touch(node)
        return self._host.retry(node.ref)

    def _needed_again(self) -> bool:
        """Whether nodes that run again may need results that nobody needed any longer."""
        return any(change > 0 for _, _, change in self.flow.releases)

    def _reopen(self, node: LiveNode, state: NodeState, *, rerun: bool = False) -> None:
        effect = Effect.REOPENED if self._good(node.state) else Effect.REOPENED_FAILED
        if rerun:
            effect = Effect(effect + 2)
        if node.index == self.flow.spec.result:
            self.flow.answered = False
        if node.takes and node.state is NodeState.COMPLETED:
            self._take_again(node.index)
        node.swept = False  # its result stays until it ends again: its successors may be about to read it
        self._set(node, state)
        self.flow.work.append((node.index, 0, effect))

    def _take_again(self, index: int) -> None:
        releases = self.flow.releases
        if (index, 0, -1) in releases:
            releases.remove((index, 0, -1))
        else:
            releases.append((index, 0, 1))

    def _spread(self, budget: int) -> int:
        """Pass one effect on to some successors; returns the number of steps."""
        index, at, effect = self.flow.work.pop(0)
        node = self._host.node(index)
        assert node is not None
        after = at + budget
        if after < len(node.next):
            self.flow.work.insert(0, (index, after, effect))
        for successor in node.next[at:after]:
            self._affect(successor, effect)
        return 1 + min(budget, len(node.next) - at)

    def _affect(self, index: int, effect: Effect, n: int = 1) -> None:
        """Pass the effect of `n` predecessors on to a node."""
        node = self._host.node(index)
        assert node is not None
        node.pending += n * effect.pending
        node.failures += n * effect.failures
        self._host.touch(node)
        if effect >= Effect.RERUN and node.state not in OPEN:
            node.again = node.again or (node.job is None and node.ref is not None)
            self._reopen(node, NodeState.WAITING, rerun=True)
            return
        passed = node.state is NodeState.UNUSED or (node.state is NodeState.SKIPPED and node.failures == 0)
        if passed and effect >= Effect.REOPENED and self.flow.state is FlowState.RUNNING:
            self._reopen(node, NodeState.WAITING)
        else:
            self._decide(node)

    def _decide(self, node: LiveNode) -> None:
        """Start a waiting node, or skip it, if its predecessors allow that by now."""
        if node.state is not NodeState.WAITING or self.flow.sweep in (Sweep.REOPEN, Sweep.RETRY):
            return
        if node.when is When.SUCCESS:
            if node.failures > 0:
                self._resolve(node, NodeState.SKIPPED)
            elif node.pending == 0:
                self._start(node)
        elif node.when is When.END:
            if node.pending == 0:
                self._start(node)
        elif node.failures > 0:
            self._start(node)
        elif node.pending == 0:
            self._resolve(node, NodeState.UNUSED)

    def _start(self, node: LiveNode) -> None:
        stopping = self.flow.state is FlowState.STOPPING
        if stopping and self._stops(node) and not node.external:
            self._resolve(node, NodeState.SKIPPED)
        elif node.again and node.ref is not None:
            node.again = False
            if self._host.rerun(node.ref):
                self._set(node, NodeState.ACTIVE)
            else:
                self._resolve(node, NodeState.GONE)
        elif node.external:
            node.external = False
            outcome = self._host.adopt(node)
            if outcome is None:
                self._set(node, NodeState.ACTIVE)
            else:
                self._resolve(node, outcome)
        elif node.job is None:  # a join; or a job that cannot be read
            self._resolve(node, NodeState.COMPLETED if node.ref is None else NodeState.GONE)
        else:
            job, node.job = node.job, None
            self._set(node, NodeState.ACTIVE)
            if not self._host.enqueue(job):
                self._resolve(node, NodeState.GONE)

    def _sweep_one(self) -> int:
        flow = self.flow
        if flow.cursor >= flow.total:
            again = flow.sweep in (Sweep.REOPEN, Sweep.RETRY)
            self._sweep(Sweep.START if again else Sweep.NONE)
            return 0
        node = self._host.node(flow.cursor)
        flow.cursor += 1
        if node is None:
            return 1
        if flow.sweep is Sweep.START:
            self._decide(node)
        elif flow.sweep is Sweep.STOP:
            self._stop(node)
        else:
            self._bring_back(node)
        return 1

    def _stops(self, node: LiveNode) -> bool:
        """Whether a flow that stops cancels this node.

        A node for any end runs in any case, and one for a failure unless the flow is cancelled.
        """
        return node.when is When.SUCCESS or (node.when is When.FAILURE and self.flow.cancelled)

    def _stop(self, node: LiveNode) -> None:
        if not self._stops(node):
            # it may be left over: this pass has replaced one that would have brought it back or started it
            if node.state is NodeState.SKIPPED:
                self._reopen(node, NodeState.WAITING)
            self._decide(node)
            return
        if node.external:  # its job is in a queue before the node starts
            self._start(node)
        if node.state is NodeState.WAITING:
            self._resolve(node, NodeState.SKIPPED)
        elif node.state is NodeState.ACTIVE and node.ref is not None:
            node.swept = True
            self._host.touch(node)
            self._host.cancel(node.ref, self._reason)

    @property
    def _reason(self) -> str:
        """Why jobs are cancelled."""
        if self.flow.abandoned:
            return FLOW_ABANDONED
        return FLOW_CANCELLED if self.flow.cancelled else FLOW_STOPPED

    def _bring_back(self, node: LiveNode) -> None:
        if node.state is NodeState.SKIPPED:
            self._reopen(node, NodeState.WAITING)
        elif node.state in (NodeState.DEAD, NodeState.CANCELLED) and node.ref is not None:
            wanted = node.swept or self.flow.sweep is Sweep.RETRY
            if wanted and self._host.retry(node.ref):
                self._reopen(node, NodeState.ACTIVE)

    def _finish(self) -> None:
        """End the flow if all its nodes have ended."""
        flow = self.flow
        if flow.busy or flow.state in CLOSED or flow.state is FlowState.BUILDING:
            return
        if any(flow.counts.get(state) for state in OPEN):
            return
        flow.ended_at = now = self._host.now
        if flow.cancelled and flow.has_failures:
            flow.state = FlowState.CANCELLED
        else:
            flow.state = FlowState.FAILED if flow.failed else FlowState.COMPLETED
        kept = flow.spec.retention
        if flow.spec.wakes:
            self._host.wake(Ref(flow.spec.queue, flow.spec.wakes))
        flow.over_at = now + (kept if flow.state is FlowState.COMPLETED else max(kept, FAILED_KEPT))


def new_flow(spec: NewFlow, now: int) -> LiveFlow:
    """A flow without nodes. If it is never started, it is removed after `BUILDING_KEPT`."""
    return LiveFlow(spec, now, over_at=now + BUILDING_KEPT)


def is_abandoned(flow: LiveFlow, parent: State | None) -> bool:
    """Whether the job that waits for a flow has ended without it. `parent`: its state; None: it is gone.

    If that job has completed, the flow goes on. A flow that was not started never will be: it is abandoned.
    """
    if not flow.spec.wakes or flow.state in CLOSED or flow.abandoned:
        return False
    if parent is State.COMPLETED:
        return flow.state is FlowState.BUILDING
    return parent in (State.DEAD, State.CANCELLED, None)


def joins_on(flow: LiveFlow, nodes: Sequence[NewNode]) -> bool:
    """Whether these nodes can be stored: those before them are there, or the flow takes no more."""
    return flow.state is not FlowState.BUILDING or not nodes or nodes[0].index <= flow.total
