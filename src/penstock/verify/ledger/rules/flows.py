"""Rules about flows: each reaches an end, the one that was expected, and each node runs once, in its turn."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

import msgspec

from penstock.client.flows.values import decoded
from penstock.core.flow import OPEN, FlowNode, FlowPolicy, FlowState, NodeState, When
from penstock.core.job import Ref
from penstock.verify.ledger.facts import StepRecorded
from penstock.verify.ledger.rules.case import Case, StoredFlow
from penstock.verify.ledger.story import TERMINAL_STATES, FlowStory, Run, StepFact, Story, label_of
from penstock.verify.ledger.verdict import FlowNumbers, Violation

_BAD = (NodeState.DEAD, NodeState.CANCELLED, NodeState.GONE, NodeState.SKIPPED)
#: A flow that hangs is described by at most this many of its open nodes.
_DESCRIBED = 3

#: The numbers of the predecessors of each node.
_Before = Mapping[int, list[int]]


def flows(case: Case, *, finished: bool) -> Iterator[Violation]:
    """Check every flow of the ledger."""
    for story in case.history.flows.values():
        seen = case.flows.get(story.ref)
        if seen is None:
            yield from _lost(story, case)
            continue
        if seen.info.ended:
            yield from _ended(story, seen, case)
        elif finished and _was_started(story, seen):
            yield _broken(story, f"the flow hangs: it is {seen.info.state.value}, {_open_nodes(seen, case)}")
        yield from _in_turn(story, seen, case)
    yield from _enqueued_once(case)


def flow_numbers(case: Case) -> FlowNumbers:
    """How many flows, steps and signals there were."""
    ends = Counter(seen.info.state for seen in case.flows.values())
    stored = [one for one in case.history.flows.values() if one.acknowledged_call or one.ref in case.flows]
    records = [
        label_of(fact.step)
        for story in case.history.stories
        for fact in story.steps or ()
        if isinstance(fact, StepRecorded) and fact.status == "stored" and fact.value is not None
    ]
    closed = (FlowState.COMPLETED, FlowState.FAILED, FlowState.CANCELLED)
    return FlowNumbers(
        stored=len(stored),
        completed=ends[FlowState.COMPLETED],
        failed=ends[FlowState.FAILED],
        cancelled=ends[FlowState.CANCELLED],
        hanging=sum(n for state, n in ends.items() if state not in closed),
        nodes=sum(seen.info.total for seen in case.flows.values()),
        suspended=sum(
            1 for story in case.history.stories for act in story.acts if act.asked.state == "suspended"
        ),
        steps=sum(1 for one in records if one.is_step),
        signals=sum(1 for one in case.history.signals if one.answer in ("received", "stored")),
        undone=sum(1 for one in records if one.suffix == "undone"),
        effects=sum(len(found) for steps in case.history.effects.values() for found in steps.values()),
    )


def _broken(story: FlowStory, says: str) -> Violation:
    shape = "" if story.expected is None else f" ({story.expected.shape})"
    return Violation("flows", says + shape, story.ref.queue, story.ref.id)


def _lost(story: FlowStory, case: Case) -> Iterator[Violation]:
    call = story.acknowledged_call
    if call is not None and not case.forgiven.enqueue(*call):
        yield _broken(story, "the flow was acknowledged, and is not in the store")


def _was_started(story: FlowStory, seen: StoredFlow) -> bool:
    """Whether the flow had to run: its producer may have died between two of its parts."""
    return seen.info.state is not FlowState.BUILDING or story.acknowledged_call is not None


def _open_nodes(seen: StoredFlow, case: Case) -> str:
    """What the nodes that have not ended wait for."""
    said: list[str] = []
    for node in seen.nodes.values():
        if node.state in OPEN:
            job = None if node.job is None else case.jobs.get(node.job)
            what = "no job" if job is None else f"job {job.id} {job.state.value}"
            said.append(f"node {node.index} {node.task or 'join'} {node.state.value} ({what})")
    return "; ".join(said[:_DESCRIBED]) + ("" if len(said) <= _DESCRIBED else f" and {len(said)} in all")


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────


def _ended(story: FlowStory, seen: StoredFlow, case: Case) -> Iterator[Violation]:
    counts = Counter(node.state for node in seen.nodes.values())
    if counts != Counter(seen.info.counts):
        yield _broken(
            story, f"the flow counts {_counts_text(seen.info.counts)}, and has {_counts_text(counts)}"
        )
    yield from _as_expected(story, seen, case)
    if not _was_changed(story, seen, case):
        yield from _by_the_rules(story, seen)


def _counts_text(counts: Mapping[NodeState, int]) -> str:
    return ", ".join(f"{n} {state.value}" for state, n in sorted(counts.items()) if n) or "nothing"


def _was_changed(story: FlowStory, seen: StoredFlow, case: Case) -> bool:
    """Whether somebody cancelled or retried the flow, or one of its jobs."""
    if story.changes:
        return True
    jobs = (case.last.get(node.job) for node in seen.nodes.values() if node.job is not None)
    return any(op.changes for job in jobs if job is not None for op in job.operations)


def _has_lost_a_gather(seen: StoredFlow, case: Case) -> bool:
    """Whether the store was allowed to lose a job of a gather, or its results after its jobs were removed.

    Then the gather fails.
    """
    if not case.forgiven:
        return False
    jobs = [case.last.get(node.job) for node in seen.nodes.values() if node.job is not None]
    gathers = [job for job in jobs if job is not None and any(map(_is_gather, job.steps or ()))]
    if any(
        _is_gather(one) and case.forgiven(one.sent, one.mono) for job in gathers for one in job.steps or ()
    ):
        return True
    begins = tuple(f"{job.ref.id}." for job in gathers)  # the ids of their jobs
    return any(
        story.ref.id.startswith(begins) and any(case.forgiven(*call) for call in story.calls)
        for story in case.history.stories
    )


def _is_gather(fact: StepFact) -> TypeGuard[StepRecorded]:
    if not isinstance(fact, StepRecorded):
        return False
    label = label_of(fact.step)
    return label.kind == "gather" and label.suffix in ("", "failed")


def _as_expected(story: FlowStory, seen: StoredFlow, case: Case) -> Iterator[Violation]:
    """Check the state and the result of the flow against those that were computed beforehand."""
    expected, state = story.expected, seen.info.state
    if expected is None:
        return
    excused = _was_changed(story, seen, case) or _has_lost_a_gather(seen, case)
    may = {*expected.ends, *(("cancelled", "failed") if excused else ())}
    if state.value not in may:
        bad = [f"node {n.index} {n.task} {n.state.value}" for n in seen.nodes.values() if n.state in _BAD]
        which = f" ({'; '.join(bad[:_DESCRIBED])})" if bad else ""
        yield _broken(story, f"the flow is {state.value}{which}, expected was {' or '.join(sorted(may))}")
    elif state is FlowState.COMPLETED and expected.result and not _lacks_values(seen, excused):
        found = _value(seen)
        if found != msgspec.json.decode(expected.result):
            yield _broken(story, f"the result of the flow is {found!r}, expected was {expected.result}")


def _lacks_values(seen: StoredFlow, excused: bool) -> bool:
    """Whether a changed flow may have completed without the values of all its nodes."""
    return excused and seen.info.spec.policy is FlowPolicy.IGNORE


def _value(seen: StoredFlow) -> Any:
    try:
        return decoded(seen.info.spec.result, seen.nodes, _decode)
    except (KeyError, msgspec.DecodeError) as error:
        return error


def _decode(node: FlowNode) -> Any:
    return None if node.result is None else msgspec.json.decode(node.result)


def _by_the_rules(story: FlowStory, seen: StoredFlow) -> Iterator[Violation]:
    """Check the end of each node against those of its predecessors, as docs/concepts/flows.md says."""
    before, policy = _before(seen), seen.info.spec.policy
    stopped = policy is FlowPolicy.STOP and seen.info.state is not FlowState.COMPLETED
    for node in seen.nodes.values():
        states = [seen.nodes[one].state for one in before[node.index]]
        bad = policy is not FlowPolicy.IGNORE and any(state in _BAD for state in states)
        ran = node.state not in (NodeState.SKIPPED, NodeState.UNUSED)
        wrong = False
        if node.when is When.FAILURE:
            wrong = ran is not bad
        elif node.when is When.END:
            wrong = not ran
        elif not stopped:
            wrong = ran is bad
        elif bad:
            wrong = ran
        if wrong:
            says = f"node {node.index} {node.task or 'join'} is {node.state.value}, and its predecessors are "
            yield _broken(story, says + (", ".join(state.value for state in states) or "none"))


def _before(seen: StoredFlow) -> dict[int, list[int]]:
    before: dict[int, list[int]] = defaultdict(list)
    for node in seen.nodes.values():
        for successor in node.next:
            before[successor].append(node.index)
    return before


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────


def _in_turn(story: FlowStory, seen: StoredFlow, case: Case) -> Iterator[Violation]:
    """Check that no node starts before its predecessors have ended, and that none completes without a run.

    An operator may complete a node.
    """
    before = _before(seen)
    for node in seen.nodes.values():
        job = None if node.job is None else case.last.get(node.job)
        if job is None:
            continue
        ends = [act for act in job.acts if act.asked.state == "completed" and (act.applied or act.perhaps)]
        if node.state is NodeState.COMPLETED and not ends and not any(job.accepted("complete")):
            yield _broken(story, f"node {node.index} {node.task} is completed, and no run of its job was")
        started = min((run.start.mono for run in job.runs if not _may_be_undone(job, run, case)), default=0)
        if node.when is not When.SUCCESS or not started:
            continue
        for one in _jobs_before(node.index, before, seen.nodes):
            other = case.last.get(one)
            if other is not None and _ended_first_at(other) > started:
                says = (
                    f"node {node.index} {node.task} started before job {one.id}, on which it depends, ended"
                )
                yield _broken(story, says)


def _may_be_undone(story: Story, run: Run, case: Case) -> bool:
    """Whether the store may have lost the lease of this run, and with it members that were added before.

    They are added again as other jobs, which end after the run.
    """
    call = (run.start.mono, run.start.mono) if run.lease is None else story.call_of(run.lease)
    return case.forgiven(*call)


def _jobs_before(index: int, before: _Before, nodes: Mapping[int, FlowNode]) -> Iterator[Ref]:
    """The jobs that must end before this node, also through joins."""
    stack = list(before.get(index, ()))
    while stack:
        node = nodes[stack.pop()]
        if node.job is None:
            stack += before.get(node.index, ())
        elif node.state in (NodeState.COMPLETED, NodeState.DEAD):
            yield node.job


def _ended_first_at(story: Story) -> int:
    """When the first settlement was sent (mono) that ended the job, or an act that may have; 0: none."""
    acts = [act.asked.mono for act in story.acts if act.asked.state in TERMINAL_STATES]
    acts += [op.asked.mono for op in story.operations if op.changes]
    return min(acts, default=0)


def _enqueued_once(case: Case) -> Iterator[Violation]:
    """Check that each node has one job: the one that was offered with its flow."""
    by_node: dict[tuple[str, str, int], set[Ref]] = defaultdict(set)
    for story in case.history.stories:
        for lease in story.leases:
            # a member that was added and lost leaves its number to the next one
            if lease.flow is not None and not case.forgiven(*story.call_of(lease)):
                by_node[lease.flow].add(story.ref)
    for (queue, id, node), jobs in by_node.items():
        seen = case.flows.get(Ref(queue, id))
        wanted = seen.nodes[node].job if seen is not None and node in seen.nodes else None
        strays = jobs - {wanted} if wanted is not None else set(sorted(jobs, key=str)[1:])
        if strays:
            names = ", ".join(sorted(ref.id for ref in jobs))
            yield Violation("flows", f"node {node} was enqueued more than once: {names}", queue, id)
