"""The flow protocol keeps its invariants in every reachable state, and each broken variant is detected.

`flow_protocol.py` is the model, `flow_invariants.py` has the invariants. The graphs are as small as a rule
allows; the number of faults is limited.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.core.flow import FlowPolicy, NodeState, When
from penstock.core.flow_engine import FlowEngine, LiveNode
from tests.model.checker import Checked, Step, explore
from tests.model.flow_invariants import END, each_step, promises
from tests.model.flow_protocol import (
    Counter,
    End,
    FlowProtocol,
    Host,
    J,
    KeptJob,
    NodeAct,
    Phase,
    Plan,
    World,
    put,
)

PAIR = [(0, 1)]
CHORD = [(0, 2), (1, 2)]
#: Two members, their join, and a node that waits for it.
HANDLED = [*CHORD, (2, 3)]


def check(model: FlowProtocol) -> Checked[World]:
    try:
        return explore(model, always=promises(model), each_step=each_step(model), end=END)
    finally:
        model.planned.cache_clear()  # hundreds of thousands of objects, which slow down every collection


# ── the protocol ─────────────────────────────────────────────────────────────────────────────────

#: What is looked at, and how many states there are at least.
LOOKED_AT: dict[str, tuple[FlowProtocol, int]] = {
    "a chord, one fault": (FlowProtocol(3, CHORD, faults=1, on_jobs=("deletes", "cancels")), 3_000),
    "a pair, two faults": (FlowProtocol(2, PAIR, on_jobs=("deletes",)), 8_000),
    "a pair, members are retried": (FlowProtocol(2, PAIR, faults=1, on_jobs=("retries",)), 1_000),
    "a pair in other slots, two faults": (
        FlowProtocol(2, PAIR, apart=True, keep=False, on_jobs=(), wishes=("cancel",)),
        2_000,
    ),
    "a pair whose id is taken, two faults": (FlowProtocol(2, PAIR, apart=True, taken=[1], on_jobs=()), 1_000),
    "in one step, with a handler, three faults": (
        FlowProtocol(4, HANDLED, joins=[2], when={3: When.FAILURE}, faults=3, one_step=True),
        4_700,
    ),
    "in short steps, with a handler, two faults": (
        FlowProtocol(4, HANDLED, joins=[2], when={3: When.END}, one_step=True, step=1),
        10_000,
    ),
    "cancelled, with a callback": (
        FlowProtocol(3, [(0, 2), (1, 2)], when={2: When.END}, faults=2, wishes=["cancel"], on_jobs=()),
        20_000,
    ),
    "cancelled in short steps, with a callback": (
        FlowProtocol(
            4,
            HANDLED,
            joins=[2],
            when={2: When.END, 3: When.END},
            faults=3,
            wishes=["cancel"],
            on_jobs=("deletes",),
            one_step=True,
            step=1,
        ),
        4_000,
    ),
    "in short steps, others are finished, two faults": (
        FlowProtocol(3, CHORD, policy=FlowPolicy.FINISH, one_step=True, step=1),
        2_000,
    ),
    "in short steps, retried, three faults": (
        FlowProtocol(3, [(0, 2)], when={2: When.END}, faults=3, one_step=True, step=1, on_jobs=()),
        4_000,
    ),
    "in short steps, with an error handler, retried, three faults": (
        FlowProtocol(3, [(0, 2)], when={2: When.FAILURE}, faults=3, one_step=True, step=1, on_jobs=()),
        4_000,
    ),
}


@pytest.mark.parametrize("name", LOOKED_AT)
def test_every_promise_holds_in_every_state(name: str) -> None:
    model, floor = LOOKED_AT[name]
    found = check(model)
    print(f"{name}: {found}")
    assert found.wrong is None, str(found.wrong)
    assert found.states >= floor
    assert found.ends


# ── broken ones ──────────────────────────────────────────────────────────────────────────────────


class CountsANoteAgain(FlowProtocol):
    """A counter that is lowered by each note, not by the change of a node's state."""

    def count(self, engine: FlowEngine, host: Host, end: End) -> None:
        if end.stamp > host.stamps[end.node]:
            super().count(engine, host, end)
            return
        ended = host.node(end.node)
        for successor in () if ended is None else ended.next:
            node = host.node(successor)
            assert node is not None
            node.pending -= 1

    def reduced(self, world: World, counter: Counter) -> Counter:
        return counter


class NotesTheEndLater(FlowProtocol):
    """The end of a job and its note are two steps, and a worker may die between them."""

    def _run(self, world: World, n: int) -> Iterator[Step]:
        yield from super()._run(world, n)
        job = world.jobs[n]
        if job.state is J.RUNNING and world.faults:
            ended = put(world.jobs, n, KeptJob(J.COMPLETED, job.stamp, job.enqueued, done=True))
            after = world._replace(jobs=ended, faults=world.faults - 1)
            yield Step(NodeAct("a worker", "completes, and dies before its note,", n), after, False)


class CancelForgetsWhatRuns(FlowProtocol):
    def acted(self, world: World, plan: Plan) -> World:
        queued = tuple(n for n in plan.cancels if world.jobs[n].state is J.QUEUED)
        return super().acted(world, plan._replace(cancels=queued))


class CancelsAfterItHasStored(FlowProtocol):
    """The change is stored first, and what it wants of jobs is forgotten if the counter dies."""

    def read(self, world: World, c: int, counter: Counter) -> World:
        world = super().read(world, c, counter)
        after = world.counters[c]._replace(phase=Phase.STORE)
        return world._replace(counters=put(world.counters, c, after))

    def store(self, world: World, c: int, counter: Counter) -> World:
        plan = counter.plan
        after = super().store(world, c, counter)
        if plan is None or plan.flow is None or not plan.cancels:
            return after
        acts = counter._replace(phase=Phase.STEER, plan=plan)
        return after._replace(counters=put(after.counters, c, acts))

    def act(self, world: World, c: int, counter: Counter) -> World:
        assert counter.plan is not None
        world = self.acted(world, counter.plan)
        tidies = Counter(Phase.TIDY, counter.notes)
        return world._replace(counters=put(world.counters, c, tidies))


class EnqueuesBeforeItHasStored(FlowProtocol):
    def read(self, world: World, c: int, counter: Counter) -> World:
        world = super().read(world, c, counter)
        after = world.counters[c]._replace(phase=Phase.STEER)
        return world._replace(counters=put(world.counters, c, after))

    def acted(self, world: World, plan: Plan) -> World:
        for n in plan.jobs:
            world = self.enqueued(world, n)
        return super().acted(world, plan)

    def store(self, world: World, c: int, counter: Counter) -> World:
        assert counter.plan is not None
        return super().store(world, c, counter._replace(plan=counter.plan._replace(jobs=())))


class RemovesNotesBeforeTheyAreCounted(FlowProtocol):
    def read(self, world: World, c: int, counter: Counter) -> World:
        left = tuple(end for end in world.notes if end not in counter.notes)
        return super().read(world._replace(notes=left), c, counter)


class StoresWhateverHasHappened(FlowProtocol):
    """The change is stored although another one was stored since the flow was read."""

    def void(self, plan: Plan) -> Plan:
        return plan


class RetriesWhatHasCompleted(FlowProtocol):
    """A flow is retried twice at once: the slower one retries a job that has completed meanwhile."""

    def retried_by_flow(self, world: World, n: int) -> World:
        return self.retries(world, n, world.jobs[n]) or world


class DeliversAgain(FlowProtocol):
    """The slot of the job does not remember what was delivered to it."""

    def follow(self, world: World, n: int) -> World:
        return self.enqueued(world, n)

    def deliver(self, world: World, c: int, counter: Counter) -> World:
        tidied = super().deliver(world, c, counter)
        return tidied._replace(delivered=tuple(sorted({*world.delivered, counter.lying[0]})))


class CancelsBeforeItDelivers(FlowProtocol):
    """A job in the outbox of one that has died is delivered after its flow was cancelled."""

    def before_cancels(self, world: World) -> World:
        return world


class ForgetsWhatWasRemoved(FlowProtocol):
    def gone(self, world: World, n: int, job: KeptJob) -> World:
        return world._replace(jobs=put(world.jobs, n, job._replace(state=J.REMOVED)))


class ForgetsThatAnIdIsTaken(FlowProtocol):
    def enqueued(self, world: World, n: int) -> World:
        return world if n in self.taken else super().enqueued(world, n)


class RetriesWithoutANote(FlowProtocol):
    def retries(self, world: World, n: int, job: KeptJob) -> World | None:
        after = super().retries(world, n, job)
        return after and after._replace(notes=world.notes)


class StopsWithoutAnotherLook(FlowProtocol):
    """A pass that stops a flow takes the place of one that would have started a node."""

    class rules(FlowEngine):
        def _stop(self, node: LiveNode) -> None:
            if self._stops(node):
                super()._stop(node)


class LeavesHandlersSkipped(FlowProtocol):
    """A flow was cancelled, retried, and fails again before its handler waits again."""

    class rules(FlowEngine):
        def _stop(self, node: LiveNode) -> None:
            if self._stops(node):
                super()._stop(node)
            else:
                self._decide(node)


class CancelsCallbacks(FlowProtocol):
    """A cancelled flow skips what waits for any end."""

    class rules(FlowEngine):
        def _stops(self, node: LiveNode) -> bool:
            return node.when is When.SUCCESS or self.flow.cancelled


class StopsCallbacksThatRun(FlowProtocol):
    """A cancelled flow cancels the callbacks that run already."""

    class rules(FlowEngine):
        def _stop(self, node: LiveNode) -> None:
            super()._stop(node)
            if node.when is When.END and node.state is NodeState.ACTIVE and node.ref is not None:
                self._host.cancel(node.ref, "cancelled with its flow")


class CallsBackAtTheFirstEnd(FlowProtocol):
    """A callback starts with the first node that ends, although others still run."""

    class rules(FlowEngine):
        def _decide(self, node: LiveNode) -> None:
            if node.when is When.END and node.state is NodeState.WAITING and self.flow.has_failures:
                self._start(node)
            else:
                super()._decide(node)


class StartsAllAtOnce(FlowProtocol):
    class rules(FlowEngine):
        def _decide(self, node: LiveNode) -> None:
            if node.state is NodeState.WAITING:
                self._start(node)


class MiscountsNodes(FlowProtocol):
    class rules(FlowEngine):
        def _count(self, state: NodeState, n: int) -> None:
            if n > 0:
                super()._count(state, n)


class EndsWithItsFirstFailure(FlowProtocol):
    class rules(FlowEngine):
        def _finish(self) -> None:
            counts, active = self.flow.counts, self.flow.counts.get(NodeState.ACTIVE, 0)
            if self.flow.has_failures:
                counts[NodeState.ACTIVE] = 0
            super()._finish()
            counts[NodeState.ACTIVE] = active


ONE_COUNTER: dict[str, Any] = {"counters": 1, "on_jobs": ()}

#: The variant, the promise that it breaks, and the most steps of the way there.
BROKEN: list[tuple[FlowProtocol, str, int]] = [
    (CountsANoteAgain(2, PAIR, on_jobs=()), "each_end_is_counted_once", 12),
    (NotesTheEndLater(2, PAIR, **ONE_COUNTER), "a_node_says_what_became_of_its_job", 6),
    (CancelForgetsWhatRuns(2, PAIR, **ONE_COUNTER), "a_cancelled_flow_has_asked_all_jobs_to_stop", 9),
    (CancelsAfterItHasStored(2, PAIR, **ONE_COUNTER), "a_cancelled_flow_has_asked_all_jobs_to_stop", 9),
    (EnqueuesBeforeItHasStored(1, [], keep=False, on_jobs=()), "a_node_says_what_became_of_its_job", 9),
    (RemovesNotesBeforeTheyAreCounted(2, PAIR, **ONE_COUNTER), "a_node_says_what_became_of_its_job", 8),
    (StoresWhateverHasHappened(2, PAIR, on_jobs=()), "a_node_says_what_became_of_its_job", 12),
    (
        RetriesWhatHasCompleted(1, [], faults=3, on_jobs=()),
        "what_has_completed_runs_again_only_if_asked_to",
        20,
    ),
    (DeliversAgain(1, [], apart=True, keep=False, on_jobs=()), "each_job_is_enqueued_once", 9),
    (
        CancelsBeforeItDelivers(2, PAIR, apart=True, **ONE_COUNTER),
        "a_cancelled_flow_has_asked_all_jobs_to_stop",
        12,
    ),
    (ForgetsWhatWasRemoved(2, PAIR, counters=1), "a_node_says_what_became_of_its_job", 5),
    (ForgetsThatAnIdIsTaken(2, PAIR, taken=[1], faults=0), END[0], 12),
    (RetriesWithoutANote(2, PAIR, counters=1), "a_node_says_what_became_of_its_job", 12),
    (
        StopsWithoutAnotherLook(
            3, [(0, 2)], when={2: When.END}, faults=3, one_step=True, step=1, wishes=["retry"], on_jobs=()
        ),
        END[0],
        11,
    ),
    (
        LeavesHandlersSkipped(
            3, [(0, 2)], when={2: When.FAILURE}, faults=3, one_step=True, step=1, on_jobs=()
        ),
        "a_node_for_a_failure_is_skipped_only_with_a_cancelled_flow",
        20,
    ),
    (
        CancelsCallbacks(2, PAIR, when={1: When.END}, **ONE_COUNTER),
        "a_node_for_any_end_runs_however_its_flow_ends",
        20,
    ),
    (
        StopsCallbacksThatRun(2, PAIR, when={1: When.END}, **ONE_COUNTER),
        "a_node_for_any_end_is_not_cancelled_by_its_flow",
        20,
    ),
    (
        CallsBackAtTheFirstEnd(3, CHORD, when={2: When.END}, counters=1, on_jobs=(), wishes=["cancel"]),
        "a_node_for_any_end_starts_after_all_before_it",
        20,
    ),
    (StartsAllAtOnce(2, PAIR, faults=0), "a_node_starts_after_its_predecessors", 3),
    (MiscountsNodes(2, PAIR, faults=0), "counts_shown_are_true", 3),
    (EndsWithItsFirstFailure(3, CHORD, **ONE_COUNTER), "a_closed_flow_has_no_open_node", 9),
]


@pytest.mark.parametrize(("model", "promise", "steps"), BROKEN, ids=[type(m).__name__ for m, *_ in BROKEN])
def test_a_broken_variant_is_caught(model: FlowProtocol, promise: str, steps: int) -> None:
    wrong = check(model).wrong
    assert wrong is not None
    assert wrong.broken == promise, str(wrong)
    assert len(wrong.steps) <= steps, str(wrong)


def test_every_promise_is_broken_by_some_variant() -> None:
    model = BROKEN[0][0]
    asked = {*promises(model), *each_step(model), END[0]}
    assert {promise for _, promise, *_ in BROKEN} == asked
