"""Rules about the leases, attempts and start times of one job, and the cause of each second run.

Some tasks record their attempts themselves. Their calls lie ready in a child before they begin. Until then
the worker may take them back, and the death of the child costs them nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from penstock.verify.ledger.facts import Fault
from penstock.verify.ledger.history import History
from penstock.verify.ledger.rules.case import Case, broken
from penstock.verify.ledger.rules.faults import LostLease, word_of
from penstock.verify.ledger.story import Act, Run, Story
from penstock.verify.ledger.verdict import Duplicate, Violation

# ── causes ───────────────────────────────────────────────────────────────────────────────────────


#: Errors that mean the death of a process, not a failure of the function.
_CRASH_ERRORS = {"WorkerLost", "LeaseLost", "ChildDied"}
#: Causes of intended runs: the lifecycle or an operator wanted them.
_WANTED = frozenset({"operator", "failure", "timeout", "snooze", "release", "resume"})


class SecondRun(NamedTuple):
    """A second run: its cause, its description if it was unwanted, its finding if it broke a guarantee."""

    cause: str
    duplicate: Duplicate | None = None
    finding: Violation | None = None


class _Cause(NamedTuple):
    word: str
    fault: Fault | None = None


def reruns(story: Story, case: Case) -> Iterator[SecondRun]:
    """Describe each run after the first."""
    for before, after in pairwise(story.runs):
        cause = _cause_of(story, before, after, case)
        if cause.word in _WANTED:
            yield SecondRun(cause.word)
            continue
        ended = cause.word.startswith("ended ")
        word = "unexplained" if ended else cause.word
        duplicate = _duplicate(story, before, after, word, cause.fault, case.history)
        if word != "unexplained":
            yield SecondRun(word, duplicate)
            continue
        why = f"the job had {cause.word}" if ended else "no recorded fact explains it"
        says = f"the job ran again (attempt {after.attempt} after {before.attempt}): {why}"
        yield SecondRun(word, duplicate, Violation("cause", says, story.ref.queue, story.ref.id))


def _cause_of(story: Story, before: Run, after: Run, case: Case) -> _Cause:
    """The cause of the run `after`.

    One of: failure, timeout, crash (of the process of the run), snooze, resume, release, operator, undone
    (the store may have lost the job's end, or the lease of this run), or the type of the fault (kill, stop,
    store …) that cost the lease.
    """
    if story.operated("retry", before.granted, after.start.mono):
        return _Cause("operator")
    return _own_cause(story, before, after, case)


def _own_cause(story: Story, before: Run, after: Run, case: Case) -> _Cause:
    """The cause of the run `after`, regardless of operations."""
    own = effective(before)
    fault = case.faults_by_target.cause(_lost_lease(story, before, after))
    if was_read_late(story, before, after, case):
        return _Cause("undone", fault)
    if own is not None and own.applied and own.asked.mono <= after.start.mono:
        if own.terminal:
            undone = case.forgiven(*own.call)
            return _Cause("undone", fault) if undone else _Cause(f"ended as {own.asked.state}")
        word = _of_outcome(own)
        return _Cause(word, fault if word == "crash" else None)
    if fault is not None:
        return _Cause(word_of(fault), fault)
    return _Cause(_of_outcome(own) if own is not None and not own.terminal else "unexplained")


def end_of_run(story: Story, before: Run, after: Run, case: Case) -> str:
    """How the run `before` ended, in a word as of `_cause_of`, regardless of operations since then."""
    return _own_cause(story, before, after, case).word


def effective(run: Run) -> Act | None:
    """The settlement of a run that was applied, else one that may have been."""
    for act in run.acts:
        if act.applied:
            return act
    return next((act for act in run.acts if act.perhaps), None)


def was_read_late(story: Story, before: Run, after: Run, case: Case) -> bool:
    """Whether the store may have granted the lease of `after` before that of `before`, and then lost it.

    The worker of `after` read the answer late and does not know that: its run proves nothing about what came
    in between.
    """
    if after.lease is None:
        return False
    sent, received = story.call_of(after.lease)
    return sent < before.granted and case.forgiven(sent, received)


def _of_outcome(act: Act) -> str:
    if act.asked.state == "scheduled":
        return "snooze"
    if act.asked.state == "suspended":
        return "resume"
    if not act.asked.error:
        return "release"
    if act.asked.error == "Timeout":
        return "timeout"
    return "crash" if act.asked.error in _CRASH_ERRORS else "failure"


def _lost_lease(story: Story, before: Run, after: Run) -> LostLease:
    """The lease of the run `before`, as far as recorded, until the next lease of the job."""
    # a lease that was requested before this one arrived may be older, even if its reply came later
    newer = (lease.mono for lease in story.leases if lease.asked > before.granted)
    end = min([*newer, after.start.mono])
    given = 0 if before.lease is None else before.lease.lease * 1_000_000
    return LostLease(before.pids, before.asked, before.start.mono, end, given, story.ref.queue)


def _duplicate(
    story: Story, before: Run, after: Run, cause: str, fault: Fault | None, history: History
) -> Duplicate:
    lost = _lost_lease(story, before, after)
    return Duplicate(
        story.ref.queue,
        story.ref.id,
        story.offer.task if story.offer else "",
        attempt_before=before.attempt,
        attempt=after.attempt,
        cause=cause,
        fault_at=None if fault is None else history.at(fault),
        fault_target=0 if fault is None else fault.target,
        leased_from=history.wall(lost.begin) or before.start.at,
        leased_until=history.wall(lost.end) or after.start.at,
    )


# ── fencing ──────────────────────────────────────────────────────────────────────────────────────


def fencing(story: Story, case: Case) -> Iterator[Violation]:
    """Check that only the holder of the lease changes a running job, and only once.

    Outcomes and leases that the store may have lost are ignored.
    """
    applied = [act for act in story.acts if act.applied and act.asked.token]
    for token, n in Counter(act.asked.token for act in applied if not case.forgiven(*act.call)).items():
        if n > 1:
            yield broken(story, "fencing", f"{n} outcomes under the same lease were applied ({token})")
    granted = {lease.token: lease for lease in reversed(story.leases)}
    lasting = [lease for lease in granted.values() if not case.forgiven(*story.call_of(lease))]
    for act in applied:
        mine = granted.get(act.asked.token)
        # leases may arrive out of order: only a lease that was requested later is certainly newer
        if mine is not None and any(mine.mono < one.asked and one.mono < act.asked.mono for one in lasting):
            says = f"a stale outcome ({act.asked.state}) was applied after the job had been leased again"
            yield broken(story, "fencing", says)
    for token, one, other in story.shared:
        yield broken(story, "fencing", f"processes {one} and {other} both ran it under lease {token}")


# ── attempts ─────────────────────────────────────────────────────────────────────────────────────


def attempts(story: Story, case: Case) -> Iterator[Violation]:
    """Check the limit of attempts, that each started attempt counts, and at-most-once delivery."""
    if story.offer is None:
        return
    limit = story.offer.max_attempts
    for run in story.runs:
        if run.attempt > limit:
            yield broken(story, "attempts", f"attempt {run.attempt} started; its limit is {limit}")
    for before, after in pairwise(story.runs):
        if story.operated("retry", before.granted, after.start.mono) or _was_undone(story, before, case):
            continue
        given_back = any(not act.asked.charge and not _refused(act) for act in before.acts)
        given_back = given_back or any(_begins_undo(act, before, after) for act in story.acts)
        forgotten = case.forgiven.lease(before.asked, before.start.mono)
        late = was_read_late(story, before, after, case)
        if after.attempt <= before.attempt and not (given_back or forgotten or late):
            says = f"attempt {before.attempt} had started and did not count: the next one was {after.attempt}"
            yield broken(story, "attempts", says)
        snoozed = any(act.asked.state == "scheduled" for act in before.acts)
        if story.offer.at_most_once and not snoozed:
            yield broken(story, "at most once", f"the job started again (attempt {after.attempt})")


def _begins_undo(act: Act, before: Run, after: Run) -> bool:
    """Whether this outcome of a lost run lets the flow run once more, without a charge, to undo its steps."""
    between = before.start.mono < act.asked.mono < after.start.mono
    return between and act.asked.state == "suspended" and not act.asked.charge and not _refused(act)


def _refused(act: Act) -> bool:
    return act.answer in ("stale", "gone")


def _was_undone(story: Story, run: Run, case: Case) -> bool:
    """Whether the store may have lost the lease or the end of this run."""
    if not case.forgiven:
        return False
    calls = [story.call_of(lease) for lease in story.leases if lease.token == run.token]
    calls = calls or [(run.start.mono, run.start.mono)]
    calls += [act.call for act in run.acts if act.applied]
    if story.offer is not None and (run.attempt >= story.offer.max_attempts or story.offer.at_most_once):
        calls.append((run.granted, run.start.mono))  # in between its start was recorded
    return any(case.forgiven(*call) for call in calls)


# ── time ─────────────────────────────────────────────────────────────────────────────────────────


def early(story: Story, case: Case) -> Iterator[Violation]:
    """Check that no run starts before its due time: after its delay, or after the delay of a retry.

    A run whose lease the store may have granted before the run before it, and lost, is ignored.
    """
    if story.offer is None:
        return
    due, since = story.offer.due, story.began
    for before, run in zip([None, *story.runs], story.runs, strict=False):
        if before is not None and was_read_late(story, before, run, case):
            continue
        at, least = case.history.at(run.start), due
        if at < least - case.slack:
            least = min([due, *_moved(story, since, run.start.mono, case)])
        if at < least - case.slack:
            yield broken(story, "early", f"attempt {run.attempt} started {least - at} ms too early")
        own = effective(run)
        waits = own is not None and own.applied and own.asked.state in ("retryable", "scheduled")
        due = 0
        if own is not None and waits and not case.forgiven(*own.call):
            due = case.history.at(own.asked) + own.asked.delay
        since = run.start.mono


def _moved(story: Story, since: int, until: int, case: Case) -> Iterator[int]:
    """New due times from operations between these moments. The clock of their process may be wrong."""
    for op in story.operations:
        if op.asked.verb == "cancel" and op.changes and op.asked.mono <= until:
            yield 0  # a flow with steps to undo was asked to stop: it is due at once
        if op.asked.verb in ("reschedule", "retry") and op.may_lie(since, until):
            moved = case.history.at(op.asked) + op.asked.due - op.asked.at
            yield moved if op.asked.verb == "reschedule" else 0


# ── functions that record themselves ─────────────────────────────────────────────────────────────


#: Errors of a call whose child died, or was killed for it.
_KILLED = ("ChildDied", "Timeout")
#: A process may run for this long (ns) after SIGKILL was sent to it.
_DIES_WITHIN = 5_000_000


def begun(case: Case) -> Iterator[Violation]:
    """Check the settlements of attempts against the starts and ends that their functions recorded."""
    charged: dict[int, list[tuple[Story, Act]]] = defaultdict(list)  # by worker: attempts that never began
    for story in case.history.stories:
        if story.offer is None or not story.offer.self_recorded:
            continue
        runs = {run.token: run for run in story.runs}
        for act in story.acts:
            run = runs.get(act.asked.token)
            if run is None and act.asked.error in _KILLED and act.asked.charge and act.asked.token:
                charged[act.asked.pid].append((story, act))
            elif act.asked.state == "completed":
                yield from _completed(story, act, run)
            elif run is not None and not act.asked.charge and not act.asked.error:
                yield from _given_back(story, act, run)
    for worker, found in charged.items():
        for story, act in found[_deaths_at_begin(case, worker) :]:
            says = f"an attempt was charged with {act.asked.error}, and its function had not begun"
            yield broken(story, "attempts", says)


def _completed(story: Story, act: Act, run: Run | None) -> Iterator[Violation]:
    """A finding for a completed attempt whose function had not returned."""
    if run is None:
        yield broken(story, "attempts", "the job was completed, and its function never began")
    elif run.end is None or run.end.outcome != "returned" or run.end.mono > act.asked.mono:
        yield broken(story, "attempts", "the job was completed, and its function had not returned")


def _given_back(story: Story, act: Act, run: Run) -> Iterator[Violation]:
    """A finding for a function that begins or ends after its worker had released the job."""
    last = run.start.mono if run.end is None else run.end.mono
    if act.asked.state == "available" and last > act.asked.mono + _DIES_WITHIN:
        yield broken(story, "fencing", "the function ran although its worker had released the job")


def _deaths_at_begin(case: Case, worker: int) -> int:
    """How many attempts of this worker may have died after their begin and before their function's record.

    One for each child that did not die in a recorded attempt.
    """
    children = {pid for pid, parent in case.history.parents.items() if parent == worker}
    died = {run.start.pid for story in case.history.stories for run in story.runs if run.end is None}
    return len(children - died)
