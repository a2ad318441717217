"""A model of the flow protocol of Redis: ends of jobs are noted in one slot, and counted in another.

The rules are the real ones: `core/flow_engine.py` computes each change of the flow. The model has what is
around it, one command at a time: workers that end jobs, *counters* (settling workers, `advance_flows`, and
operators that cancel or retry the flow), the notes of ends, and the outbox for jobs of other slots. A counter
may stop for good between any two commands, which is also what a lost reply comes to; another one may act
meanwhile.

A counter reads notes, reads the flow and computes a change, retries and cancels jobs, stores the change if
the flow is as it was read, delivers the outbox, and removes the notes.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from penstock.core.flow import FlowPolicy, FlowState, NewFlow, NewNode, NodeState, When
from penstock.core.flow_engine import FlowEngine, LiveFlow, LiveNode, Sweep
from penstock.core.job import NewJob, Ref
from penstock.core.relations import FlowMember
from tests.model.checker import Step

__all__ = ["Counter", "End", "FlowProtocol", "J", "NodeAct", "Phase", "Plan", "StoredFlow", "World", "put"]


class J(enum.IntEnum):
    """The state of a job. REMOVED: it was there, and its id is free again."""

    NONE = 0
    QUEUED = 1
    RUNNING = 2
    ASKED = 3  # running, and asked to stop
    COMPLETED = 4
    DEAD = 5
    CANCELLED = 6
    REMOVED = 7


_RUNS = (J.RUNNING, J.ASKED)
_ENDED = (J.COMPLETED, J.DEAD, J.CANCELLED)
_OUTCOMES = {J.COMPLETED: NodeState.COMPLETED, J.DEAD: NodeState.DEAD, J.CANCELLED: NodeState.CANCELLED}


class KeptJob(NamedTuple):
    """A job. `stamp`: the number of its last note; `enqueued`: how often; `done`: it has completed."""

    state: J = J.NONE
    stamp: int = 0
    enqueued: int = 0
    done: bool = False


class End(NamedTuple):
    """A note: the job of this node has ended so, or (None) runs again."""

    node: int
    stamp: int
    outcome: NodeState | None


class StoredNode(NamedTuple):
    state: NodeState
    pending: int
    failures: int
    swept: bool
    stamp: int


class StoredFlow(NamedTuple):
    state: FlowState
    cancelled: bool
    sweep: Sweep
    cursor: int
    work: tuple[Any, ...]
    counts: tuple[tuple[NodeState, int], ...]
    nodes: tuple[StoredNode, ...]

    @property
    def busy(self) -> bool:
        return bool(self.work) or self.sweep is not Sweep.NONE


class Plan(NamedTuple):
    """A change of the flow, not stored yet. `flow` None: the flow has changed since it was read."""

    flow: StoredFlow | None
    jobs: tuple[int, ...]
    cancels: tuple[int, ...]
    retries: tuple[int, ...]


class Phase(enum.IntEnum):
    """What a counter does next."""

    IDLE = 0
    READ = 1  # read the flow, and compute
    STEER = 2  # retry and cancel jobs
    STORE = 3
    DELIVER = 4
    TIDY = 5  # remove the notes


class Counter(NamedTuple):
    """One that changes the flow. `wish`: of an operator; `lying`: entries of the outbox it delivers."""

    phase: Phase = Phase.IDLE
    notes: tuple[End, ...] = ()
    wish: str = ""
    plan: Plan | None = None
    lying: tuple[int, ...] = ()


class World(NamedTuple):
    flow: StoredFlow
    jobs: tuple[KeptJob, ...]
    notes: tuple[End, ...] = ()
    outbox: tuple[int, ...] = ()  # nodes whose jobs are to be enqueued in another slot
    delivered: tuple[int, ...] = ()  # remembered in the slot of the job
    counters: tuple[Counter, ...] = ()
    faults: int = 0  # how many more there may be


class NodeAct(NamedTuple):
    """Who does what, about which node."""

    who: str
    verb: str
    node: int = -1

    def __str__(self) -> str:
        return f"{self.who} {self.verb}" + (f" {self.node}" if self.node >= 0 else "")


class FlowProtocol:
    """All that may happen to one flow. `edges`: predecessor and successor; `joins`: nodes without a job;
    `taken`: nodes whose ids belong to other jobs.

    - `apart`: jobs are in other slots than the flow. `keep`: completed jobs are kept; else ids are free.
    - `one_step`: what follows from an end is in its step, as in SQLite; else it is noted for counters.
    - `step`: the budget of one change, in steps of the engine.
    - `faults`: at most so many dead counters, acts of operators, and jobs that do not complete.
    """

    rules = FlowEngine

    def __init__(
        self,
        nodes: int,
        edges: Sequence[tuple[int, int]],
        *,
        joins: Sequence[int] = (),
        when: dict[int, When] | None = None,
        policy: FlowPolicy = FlowPolicy.STOP,
        apart: bool = False,
        keep: bool = True,
        taken: Sequence[int] = (),
        one_step: bool = False,
        step: int = 100,
        faults: int = 2,
        counters: int = 2,
        wishes: Sequence[str] = ("cancel", "retry"),
        on_jobs: Sequence[str] = ("deletes", "cancels", "retries"),
    ) -> None:
        self.before = {n: [a for a, b in edges if b == n] for n in range(nodes)}
        self.when = when or {}
        self.joins = joins
        self.apart, self.keep, self.taken = apart, keep, taken
        self.one_step, self.step = one_step, step
        self.wishes, self.on_jobs = wishes, on_jobs
        self._faults, self._counters = faults, counters
        self.spec = NewFlow("f", "home", policy=policy, key="k")
        self._new = [
            NewNode(
                n,
                None if n in joins else NewJob(str(n), "t", queue="q", flow=FlowMember("home", "f", n)),
                tuple(b for a, b in edges if a == n),
                len(self.before[n]),
                self.when.get(n, When.SUCCESS),
                tuple(self.before[n]) if n in joins else (),
            )
            for n in range(nodes)
        ]
        self.planned = functools.cache(self._planned)

    def first(self) -> World:
        """The flow is stored, and nobody has started it."""
        nodes = tuple(StoredNode(NodeState.WAITING, node.waits, 0, False, 0) for node in self._new)
        flow = StoredFlow(
            FlowState.RUNNING, False, Sweep.START, 0, (), ((NodeState.WAITING, len(nodes)),), nodes
        )
        jobs = tuple(KeptJob(J.COMPLETED if n in self.taken else J.NONE) for n in range(len(nodes)))
        return World(flow, jobs, counters=(Counter(),) * self._counters, faults=self._faults)

    def plain(self, world: World) -> World:
        """One counter is as good as another."""
        if self.one_step:
            return world
        counters = tuple(sorted((self.reduced(world, one) for one in world.counters), key=_order))
        return world if counters == world.counters else world._replace(counters=counters)

    def reduced(self, world: World, counter: Counter) -> Counter:
        """What a counter still can do: notes that were counted, and void changes, do nothing more."""
        phase, notes, wish, plan, _ = counter
        if phase is Phase.IDLE:
            return counter
        if phase is Phase.TIDY:
            left = tuple(end for end in notes if end in world.notes)
            return counter if left == notes else Counter(phase, left) if left else Counter()
        if phase is Phase.STORE and plan is not None and plan.flow is None:
            phase, plan = Phase.READ, None
        if phase is Phase.READ:
            nodes = world.flow.nodes
            notes = tuple(end for end in notes if end in world.notes or end.stamp > nodes[end.node].stamp)
            if not notes and not wish and not world.flow.busy:
                return Counter()
        return (
            counter
            if phase is counter.phase and notes == counter.notes
            else Counter(phase, notes, wish, plan)
        )

    def steps(self, world: World) -> Iterator[Step]:
        for n in range(len(world.jobs)):
            for what, after, helps in self._run(world, n):
                yield Step(what, self._counted(after) if self.one_step else after, helps)
        if self.one_step:
            yield from self._change_in_one_step(world)
            return
        yield from self._begin(world)
        for c, counter in enumerate(world.counters):
            if counter.phase is not Phase.IDLE:
                yield from self._go_on(world, c, counter)

    # ── jobs ──

    def _run(self, world: World, n: int) -> Iterator[Step]:
        job = world.jobs[n]
        if n in self.taken:
            return
        if job.state is J.QUEUED:
            yield Step(NodeAct("a worker", "starts", n), _job(world, n, job._replace(state=J.RUNNING)))
        elif job.state in _RUNS:
            if job.state is J.ASKED:
                yield Step(NodeAct("a worker", "stops", n), self.ended(world, n, J.CANCELLED))
            yield Step(NodeAct("a worker", "completes", n), self.ended(world, n, J.COMPLETED))
        if not world.faults:
            return
        less = world._replace(faults=world.faults - 1)
        if job.state in _RUNS:
            yield Step(NodeAct("a worker", "fails", n), self.ended(less, n, J.DEAD), False)
        for verb in self.on_jobs:
            after = getattr(self, verb)(less, n, job)
            if after is not None:
                yield Step(NodeAct("an operator", verb, n), after, False)

    def ended(self, world: World, n: int, state: J) -> World:
        """The end of a job, and its note, are one step."""
        job = world.jobs[n]
        kept = state if self.keep or state is not J.COMPLETED else J.REMOVED
        job = KeptJob(kept, job.stamp + 1, job.enqueued, job.done or state is J.COMPLETED)
        return _job(self.noted(world, End(n, job.stamp, _OUTCOMES[state])), n, job)

    def noted(self, world: World, end: End) -> World:
        return world._replace(notes=tuple(sorted((*world.notes, end), key=_place)))

    def deletes(self, world: World, n: int, job: KeptJob) -> World | None:
        if job.state in (J.NONE, J.REMOVED, *_RUNS):
            return None
        if job.state is J.QUEUED:
            return self.gone(world, n, job)
        return _job(world, n, job._replace(state=J.REMOVED))

    def gone(self, world: World, n: int, job: KeptJob) -> World:
        """A job that is removed before its end leaves a note, too."""
        job = job._replace(state=J.REMOVED, stamp=job.stamp + 1)
        return _job(self.noted(world, End(n, job.stamp, NodeState.GONE)), n, job)

    def cancels(self, world: World, n: int, job: KeptJob) -> World | None:
        if job.state is J.QUEUED:
            return self.ended(world, n, J.CANCELLED)
        return _job(world, n, job._replace(state=J.ASKED)) if job.state is J.RUNNING else None

    def retries(self, world: World, n: int, job: KeptJob) -> World | None:
        if job.state not in _ENDED:
            return None
        job = job._replace(state=J.QUEUED, stamp=job.stamp + 1)
        return _job(self.noted(world, End(n, job.stamp, None)), n, job)

    # ── in one step ──

    def _change_in_one_step(self, world: World) -> Iterator[Step]:
        if world.flow.busy:
            yield Step(NodeAct("somebody", "continues the flow"), self._counted(self._change(world, (), "")))
        for wish in self.wishes if world.faults else ():
            less = world._replace(faults=world.faults - 1)
            after = self._counted(self._change(less, (), wish))
            yield Step(NodeAct("an operator", f"wants to {wish} the flow"), after, False)

    def _counted(self, world: World) -> World:
        """The world after the step: the ends that it causes are counted in it."""
        while world.notes:
            world = self._change(world._replace(notes=()), world.notes, "")
        return world

    def _change(self, world: World, notes: tuple[End, ...], wish: str) -> World:
        plan = self.planned(world.flow, notes, wish, _missing(world))
        assert plan.flow is not None
        world = self.acted(world._replace(flow=plan.flow), plan)
        for n in plan.jobs:
            world = self.enqueued(world, n)
        return world

    # ── counters ──

    def _begin(self, world: World) -> Iterator[Step]:
        """An idle counter reads notes (of one settlement, or all), continues the flow, or delivers."""
        c = next((c for c, one in enumerate(world.counters) if one.phase is Phase.IDLE), None)
        if c is None:
            return
        choices = {world.notes, *((end,) for end in world.notes)} - {()}
        for notes in sorted(choices):
            yield Step(
                NodeAct("a counter", f"reads the notes of {[end.node for end in notes]}"),
                _counter(world, c, Counter(Phase.READ, notes)),
            )
        if world.flow.busy:
            yield Step(NodeAct("a counter", "continues the flow"), _counter(world, c, Counter(Phase.READ)))
        if world.outbox:
            lying = Counter(Phase.DELIVER, lying=world.outbox)
            yield Step(NodeAct("a counter", "reads the outbox"), _counter(world, c, lying))
        if world.faults:
            less = world._replace(faults=world.faults - 1)
            for wish in self.wishes:
                asks = _counter(less, c, Counter(Phase.READ, wish=wish))
                yield Step(NodeAct("an operator", f"wants to {wish} the flow"), asks, False)

    def _go_on(self, world: World, c: int, counter: Counter) -> Iterator[Step]:
        if world.faults:
            dead = _counter(world._replace(faults=world.faults - 1), c, Counter())
            yield Step(NodeAct(f"counter {c}", "dies"), dead, False)
        phase = counter.phase
        if phase is Phase.READ:
            yield Step(NodeAct(f"counter {c}", "reads the flow"), self.read(world, c, counter))
        elif phase is Phase.STEER:
            yield Step(NodeAct(f"counter {c}", "retries and cancels"), self.act(world, c, counter))
        elif phase is Phase.STORE:
            yield Step(NodeAct(f"counter {c}", "stores the change"), self.store(world, c, counter))
        elif phase is Phase.DELIVER:
            yield Step(NodeAct(f"counter {c}", "delivers"), self.deliver(world, c, counter))
        else:
            notes = tuple(end for end in world.notes if end not in counter.notes)
            after = _counter(world._replace(notes=notes), c, Counter())
            yield Step(NodeAct(f"counter {c}", "removes its notes"), after)

    def read(self, world: World, c: int, counter: Counter) -> World:
        plan = self.planned(world.flow, counter.notes, counter.wish, _missing(world))
        acts = plan.cancels or plan.retries
        return _counter(world, c, counter._replace(phase=Phase.STEER if acts else Phase.STORE, plan=plan))

    def act(self, world: World, c: int, counter: Counter) -> World:
        plan = counter.plan
        assert plan is not None
        if plan.cancels:
            world = self.before_cancels(world)
        return _counter(self.acted(world, plan), c, counter._replace(phase=Phase.STORE))

    def before_cancels(self, world: World) -> World:
        """Deliver the outbox: a job that lies there could not be cancelled."""
        for n in world.outbox:
            world = self.follow(world, n)
        return world._replace(outbox=())

    def acted(self, world: World, plan: Plan) -> World:
        for n in plan.retries:
            world = self.retried_by_flow(world, n)
        for n in plan.cancels:
            world = self.cancels(world, n, world.jobs[n]) or world
        return world

    def retried_by_flow(self, world: World, n: int) -> World:
        """A flow never retries a job that has completed meanwhile."""
        job = world.jobs[n]
        return world if job.state is J.COMPLETED else self.retries(world, n, job) or world

    def store(self, world: World, c: int, counter: Counter) -> World:
        plan = counter.plan
        assert plan is not None
        if not self.may_store(plan):
            return _counter(world, c, counter._replace(phase=Phase.READ, plan=None))
        world = self.changed(world, plan)
        if self.apart and plan.jobs:
            lying = tuple(sorted({*world.outbox, *plan.jobs}))
            after = counter._replace(phase=Phase.DELIVER, plan=None, lying=plan.jobs)
            return _counter(world._replace(outbox=lying), c, after)
        for n in plan.jobs:
            world = self.enqueued(world, n)
        return _counter(world, c, _done(counter))

    def may_store(self, plan: Plan) -> bool:
        return plan.flow is not None

    def changed(self, world: World, plan: Plan) -> World:
        """Store the flow; what others have computed meanwhile is void."""
        assert plan.flow is not None
        others = tuple(
            one if one.plan is None else one._replace(plan=self.void(one.plan)) for one in world.counters
        )
        return world._replace(flow=plan.flow, counters=others)

    def void(self, plan: Plan) -> Plan:
        return plan._replace(flow=None, jobs=())

    def enqueued(self, world: World, n: int) -> World:
        """A job whose id is taken ends its node."""
        job = world.jobs[n]
        if job.state not in (J.NONE, J.REMOVED):
            job = job._replace(stamp=job.stamp + 1)
            return _job(self.noted(world, End(n, job.stamp, NodeState.GONE)), n, job)
        return _job(world, n, job._replace(state=J.QUEUED, enqueued=job.enqueued + 1))

    def deliver(self, world: World, c: int, counter: Counter) -> World:
        """One job is enqueued; then its entry is removed."""
        n, *rest = counter.lying
        if n in world.delivered or n not in world.outbox:
            outbox = tuple(one for one in world.outbox if one != n)
            after = counter._replace(lying=tuple(rest)) if rest else _done(counter)
            return _counter(self.follow(world, n)._replace(outbox=outbox), c, after)
        return _counter(self.follow(world, n), c, counter)

    def follow(self, world: World, n: int) -> World:
        if n in world.delivered:
            return world
        delivered = tuple(sorted((*world.delivered, n)))
        return self.enqueued(world._replace(delivered=delivered), n)

    # ── the real rules ──

    def _planned(self, flow: StoredFlow, notes: tuple[End, ...], wish: str, missing: tuple[int, ...]) -> Plan:
        host = Host(self._new, flow, missing)
        head = LiveFlow(
            self.spec,
            1,
            flow.state,
            total=len(flow.nodes),
            counts=dict(flow.counts),
            cancelled=flow.cancelled,
            sweep=flow.sweep,
            cursor=flow.cursor,
            work=list(flow.work),
        )
        engine = self.rules(head, host)
        for end in sorted(notes, key=_place):
            self.count(engine, host, end)
        if wish == "cancel":
            engine.cancel(0)
        elif wish == "retry":
            engine.retry(0)
        engine.advance(self.step)
        return host.plan(head)

    def count(self, engine: FlowEngine, host: Host, end: End) -> None:
        """As `flow_ends.py` counts a note."""
        if end.stamp <= host.stamps[end.node]:
            return
        host.stamps[end.node] = end.stamp
        engine.reopened(end.node, 0)
        if end.outcome is not None:
            engine.ended(end.node, end.outcome, None, 0)


class Host:
    """A flow that was read, for its engine."""

    now = 2

    def __init__(self, new: Sequence[NewNode], flow: StoredFlow, missing: Sequence[int]) -> None:
        self.stamps = [node.stamp for node in flow.nodes]
        self.jobs: list[int] = []
        self.cancels: list[int] = []
        self.retries: list[int] = []
        self._missing = missing
        self._nodes = [LiveNode.of(one) for one in new]
        for node, stored in zip(self._nodes, flow.nodes, strict=True):
            node.state, node.pending, node.failures, node.swept, _ = stored

    def node(self, index: int) -> LiveNode | None:
        return self._nodes[index]

    def loaded(self, indexes: Iterable[int]) -> bool:
        return True

    def touch(self, node: LiveNode) -> None:
        pass

    def enqueue(self, job: NewJob) -> bool:
        self.jobs.append(int(job.id))
        return True

    def cancel(self, ref: Ref, reason: str) -> None:
        self.cancels.append(int(ref.id))

    def retry(self, ref: Ref) -> bool:
        if int(ref.id) in self._missing:
            return False
        self.retries.append(int(ref.id))
        return True

    def plan(self, head: LiveFlow) -> Plan:
        nodes = tuple(
            StoredNode(node.state, node.pending, node.failures, node.swept, stamp)
            for node, stamp in zip(self._nodes, self.stamps, strict=True)
        )
        counts = tuple(sorted((state, n) for state, n in head.counts.items() if n))
        flow = StoredFlow(
            head.state, head.cancelled, head.sweep, head.cursor, tuple(head.work), counts, nodes
        )
        return Plan(flow, tuple(self.jobs), tuple(self.cancels), tuple(self.retries))


# ── changing a world ──


def put(all: tuple[Any, ...], n: int, one: Any) -> tuple[Any, ...]:
    return (*all[:n], one, *all[n + 1 :])


def _job(world: World, n: int, job: KeptJob) -> World:
    flow, jobs, notes, outbox, delivered, counters, faults = world  # `_replace` takes three times as long
    return World(flow, put(jobs, n, job), notes, outbox, delivered, counters, faults)


def _counter(world: World, c: int, counter: Counter) -> World:
    flow, jobs, notes, outbox, delivered, counters, faults = world
    return World(flow, jobs, notes, outbox, delivered, put(counters, c, counter), faults)


def _missing(world: World) -> tuple[int, ...]:
    return tuple(n for n, job in enumerate(world.jobs) if job.state in (J.NONE, J.REMOVED))


def _done(counter: Counter) -> Counter:
    """What is left when the change is stored: notes to remove, if there are any."""
    return Counter(Phase.TIDY, counter.notes) if counter.notes else Counter()


def _place(end: End) -> tuple[int, int]:
    return end.node, end.stamp


def _order(counter: Counter) -> tuple[Any, ...]:
    return counter.phase, counter.notes, counter.wish, counter.lying, counter.plan is None, repr(counter.plan)
