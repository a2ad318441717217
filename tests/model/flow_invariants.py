"""The invariants of the flow protocol, one named predicate each."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.flow import CLOSED, OPEN, NodeState, When
from tests.model.flow_protocol import FlowProtocol, J, NodeAct, Phase, World

__all__ = ["END", "each_step", "promises"]

_GOOD = (NodeState.COMPLETED, NodeState.UNUSED)


def is_quiet(world: World) -> bool:
    """Whether nothing is under way: no note, no entry, no change."""
    return (
        not world.notes
        and not world.outbox
        and not world.flow.busy
        and all(counter.phase is Phase.IDLE for counter in world.counters)
    )


def counts_shown_are_true(world: World) -> bool:
    true: dict[NodeState, int] = {}
    for node in world.flow.nodes:
        true[node.state] = true.get(node.state, 0) + 1
    return dict(world.flow.counts) == true


def each_job_is_enqueued_once(world: World) -> bool:
    return all(job.enqueued <= 1 for job in world.jobs)


def a_closed_flow_has_no_open_node(world: World) -> bool:
    return world.flow.state not in CLOSED or all(node.state not in OPEN for node in world.flow.nodes)


def promises(model: FlowProtocol) -> dict[str, Callable[[World], bool]]:
    """Those of every state; some depend on the graph."""

    def each_end_is_counted_once(world: World) -> bool:
        """A node waits for as many as have not ended."""
        nodes = world.flow.nodes
        return world.flow.busy or all(
            node.pending == sum(nodes[one].state in OPEN for one in model.before[n])
            for n, node in enumerate(nodes)
        )

    def a_node_says_what_became_of_its_job(world: World) -> bool:
        if not is_quiet(world):
            return True
        return all(
            n in model.joins or n in model.taken or node.state in _STATES[job.state]
            for n, (node, job) in enumerate(zip(world.flow.nodes, world.jobs, strict=True))
        )

    def a_cancelled_flow_has_asked_all_jobs_to_stop(world: World) -> bool:
        """Unless an operator retries one of them in the same moment."""
        if not is_quiet(world) or not world.flow.cancelled or "retries" in model.on_jobs:
            return True
        return all(
            job.state not in (J.QUEUED, J.RUNNING) or n in after_any_end for n, job in enumerate(world.jobs)
        )

    after_any_end = [n for n, when in model.when.items() if when is When.END]

    def a_node_for_any_end_runs_however_its_flow_ends(world: World) -> bool:
        return world.flow.state not in CLOSED or all(
            world.flow.nodes[n].state not in (NodeState.SKIPPED, NodeState.UNUSED) for n in after_any_end
        )

    def a_node_for_any_end_is_not_cancelled_by_its_flow(world: World) -> bool:
        """Only an operator cancels it."""
        return "cancels" in model.on_jobs or all(
            world.jobs[n].state not in (J.ASKED, J.CANCELLED) for n in after_any_end
        )

    def a_node_for_a_failure_is_skipped_only_with_a_cancelled_flow(world: World) -> bool:
        flow = world.flow
        return (
            flow.state not in CLOSED
            or flow.cancelled
            or all(
                flow.nodes[n].state is not NodeState.SKIPPED
                for n, when in model.when.items()
                if when is When.FAILURE
            )
        )

    return _named(
        counts_shown_are_true,
        each_end_is_counted_once,
        each_job_is_enqueued_once,
        a_node_says_what_became_of_its_job,
        a_closed_flow_has_no_open_node,
        a_cancelled_flow_has_asked_all_jobs_to_stop,
        a_node_for_any_end_runs_however_its_flow_ends,
        a_node_for_any_end_is_not_cancelled_by_its_flow,
        a_node_for_a_failure_is_skipped_only_with_a_cancelled_flow,
    )


#: What a node may be whose job is in this state, when nothing is under way.
_NOT_THERE = (NodeState.WAITING, NodeState.SKIPPED, NodeState.UNUSED)
_STATES: dict[J, tuple[NodeState, ...]] = {
    J.NONE: _NOT_THERE,
    J.QUEUED: (NodeState.ACTIVE,),
    J.RUNNING: (NodeState.ACTIVE,),
    J.ASKED: (NodeState.ACTIVE,),
    J.COMPLETED: (NodeState.COMPLETED,),
    J.DEAD: (NodeState.DEAD,),
    J.CANCELLED: (NodeState.CANCELLED,),
    J.REMOVED: (NodeState.COMPLETED, NodeState.DEAD, NodeState.CANCELLED, NodeState.GONE),
}


def each_step(model: FlowProtocol) -> dict[str, Callable[[World, NodeAct, World], bool]]:
    """The promises of each step."""

    def a_node_starts_after_its_predecessors(before: World, act: NodeAct, after: World) -> bool:
        return all(
            job.enqueued == was.enqueued
            or model.when.get(n, When.SUCCESS) is not When.SUCCESS
            or all(one in model.joins or after.jobs[one].done for one in model.before[n])
            for n, (was, job) in enumerate(zip(before.jobs, after.jobs, strict=True))
        )

    def a_node_for_any_end_starts_after_all_before_it(before: World, act: NodeAct, after: World) -> bool:
        """Unless a job before it is retried in the same moment."""
        if "retry" in model.wishes or "retries" in model.on_jobs:
            return True
        return all(
            job.enqueued == was.enqueued
            or model.when.get(n) is not When.END
            or all(after.flow.nodes[one].state not in OPEN for one in model.before[n])
            for n, (was, job) in enumerate(zip(before.jobs, after.jobs, strict=True))
        )

    def what_has_completed_runs_again_only_if_asked_to(before: World, act: NodeAct, after: World) -> bool:
        return all(
            was.state is not J.COMPLETED or job.state is not J.QUEUED or act.who == "an operator"
            for was, job in zip(before.jobs, after.jobs, strict=True)
        )

    return _named(
        a_node_starts_after_its_predecessors,
        a_node_for_any_end_starts_after_all_before_it,
        what_has_completed_runs_again_only_if_asked_to,
    )


def the_flow_has_ended(world: World) -> bool:
    return is_quiet(world) and world.flow.state in CLOSED


def _named(*predicates: Callable[..., bool]) -> dict[str, Callable[..., bool]]:
    return {predicate.__name__: predicate for predicate in predicates}


END: tuple[str, Callable[[World], bool]] = ("an_end_can_be_reached_from_everywhere", the_flow_has_ended)
