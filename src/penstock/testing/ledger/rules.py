"""The promises, one by one, each asked of the story of one job."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from penstock.job import Job
from penstock.testing.ledger.facts import Fault
from penstock.testing.ledger.history import TERMINAL_STATES, Act, History, Run, Story
from penstock.testing.ledger.verdict import Finding

__all__ = ["attempts", "cause_of", "early", "end_of", "fencing", "reruns", "uniqueness"]

#: Errors that say that a process died, not that the function failed.
_CRASHES = {"WorkerLost", "LeaseLost", "ChildDied"}


# ── one end ──────────────────────────────────────────────────────────────────────────────────────


def end_of(story: Story, job: Job | None, now: int, *, purged: bool, last: bool) -> tuple[str, list[Finding]]:
    """How the job ended (a terminal state, deleted, unfinished, lost or never) and what is wrong with it.

    `job`: as the store has it; `last`: this is the last life of its id, the one that the store knows.
    """
    if not _taken(story):
        return "never", _there_though_refused(story, job)
    ends = _ends(story)
    told = {act.asked.state for act in ends} | ({"cancelled"} if _told_cancelled(story) else set())
    broken = _ended_twice(story, ends, told)
    if job is not None:
        return _kept_end(story, job, told, broken)
    if _deleted(story):
        return "deleted", broken
    end = ends[-1].asked.state if ends else "cancelled" if told else _presumed(story, now)
    if end is None:
        if purged:
            return "deleted", broken
        says = "it was acknowledged, has not ended, and is not in the store"
        if not last:
            says = "its id was taken again before it had ended"
        return "lost", [*broken, _finding(story, "lost", says)]
    if ends and last and not purged and now < ends[-1].asked.at + ends[-1].asked.keep - 1_000:
        broken.append(_finding(story, "kept", f"it ended as {end}, shall still be kept, and is not there"))
    return end, broken


def _taken(story: Story) -> bool:
    return story.acknowledged or bool(story.leases or story.runs)


def _there_though_refused(story: Story, job: Job | None) -> list[Finding]:
    verdicts = {v.verdict for v in story.verdicts}
    if job is not None and not story.unknown and not verdicts & {"exists", "duplicate"}:
        said = ", ".join(sorted(verdicts)) or "nothing"
        return [_finding(story, "refused", f"the store said {said} to its enqueue, and has it")]
    return []


def _since(story: Story) -> int:
    """When its present life began (mono): an operator's retry makes an ended job as new."""
    retries = [op.asked.mono for op in story.operations if op.asked.verb == "retry" and _accepted(op.answer)]
    return max(retries, default=0)


def _accepted(answer: str | None) -> bool:
    return answer not in ("", "running")


def _ends(story: Story) -> list[Act]:
    since = _since(story)
    return [a for a in story.acts if a.terminal and a.applied and a.asked.mono >= since]


def _told_cancelled(story: Story) -> bool:
    since = _since(story)
    return any(
        op.asked.verb == "cancel" and op.answer == "cancelled" and op.asked.mono >= since
        for op in story.operations
    )


def _deleted(story: Story) -> bool:
    return any(op.asked.verb == "delete" and _accepted(op.answer) for op in story.operations)


def _ended_twice(story: Story, ends: list[Act], told: set[str]) -> list[Finding]:
    if len(ends) > 1 or len(told) > 1:
        states = " and ".join([act.asked.state for act in ends] if len(ends) > 1 else sorted(told))
        return [_finding(story, "one end", f"it ended more than once: {states}")]
    return []


def _kept_end(story: Story, job: Job, told: set[str], broken: list[Finding]) -> tuple[str, list[Finding]]:
    state = job.state.value
    if state not in TERMINAL_STATES:
        if told:
            broken.append(_otherwise(story, told, state))
        return "unfinished", broken
    if told and state not in told:
        broken.append(_otherwise(story, told, state))
    elif state == "completed" and not told:
        broken += _completed_by_nobody(story)
    return state, broken


def _otherwise(story: Story, told: set[str], state: str) -> Finding:
    return _finding(story, "one end", f"it ended as {' and '.join(sorted(told))}; the store has it {state}")


def _completed_by_nobody(story: Story) -> list[Finding]:
    """Only a holder can complete a job, and each holder wrote down what it asked."""
    said = [a for a in story.acts if a.asked.state == "completed" and a.asked.mono >= _since(story)]
    if any(a.perhaps for a in said) or not (story.leases or story.runs or story.acts):
        return []  # or nobody here watched it
    if said:
        return [_finding(story, "fencing", f"a {said[-1].answer} outcome took effect: the job is completed")]
    return [_finding(story, "fencing", "it is completed, and none of its holders said so")]


def _presumed(story: Story, now: int) -> str | None:
    """An end that nobody was told of: the holder was killed before the answer, or its time had passed."""
    since = _since(story)
    for act in reversed(story.acts):
        over = act.asked.keep == 0 or now >= act.asked.at + act.asked.keep
        if act.terminal and act.perhaps and over and act.asked.mono >= since:
            return act.asked.state
    expires = story.offer.expires if story.offer else None
    return "cancelled" if expires is not None and expires <= now else None


# ── who may change it ────────────────────────────────────────────────────────────────────────────


def fencing(story: Story) -> Iterator[Finding]:
    """Only the holder of the lease changes a running job, once."""
    applied = Counter(act.asked.token for act in story.acts if act.applied and act.asked.token)
    for token, n in applied.items():
        if n > 1:
            yield _finding(story, "fencing", f"{n} outcomes under the same lease were applied ({token})")
    granted = {lease.token: lease.mono for lease in reversed(story.leases)}
    for act in story.acts:
        mine = granted.get(act.asked.token)
        if not act.applied or mine is None:
            continue
        if any(mine < mono < act.asked.mono for mono in granted.values()):
            says = f"a stale outcome ({act.asked.state}) was applied after the job had been leased anew"
            yield _finding(story, "fencing", says)
    for token, one, other in story.shared:
        yield _finding(story, "fencing", f"processes {one} and {other} both ran it under lease {token}")


# ── attempts ─────────────────────────────────────────────────────────────────────────────────────


def attempts(story: Story) -> Iterator[Finding]:
    """Attempts stay within their limit, each started one counts, and at-most-once means it."""
    if story.offer is None:
        return
    limit = story.offer.max_attempts
    for run in story.runs:
        if run.attempt > limit:
            yield _finding(story, "attempts", f"attempt {run.attempt} started; its limit is {limit}")
    for before, after in pairwise(story.runs):
        if story.operated("retry", before.start.mono, after.start.mono):
            continue
        given_back = any(not act.asked.charge and not _refused(act) for act in before.acts)
        if after.attempt <= before.attempt and not given_back:
            says = f"attempt {before.attempt} had started and did not count: the next was {after.attempt} too"
            yield _finding(story, "attempts", says)
        snoozed = any(act.asked.state == "scheduled" for act in before.acts)
        if story.offer.at_most_once and not snoozed:
            yield _finding(story, "at most once", f"it started again (attempt {after.attempt})")


def _refused(act: Act) -> bool:
    return act.answer in ("stale", "gone")


# ── time ─────────────────────────────────────────────────────────────────────────────────────────


def early(story: Story, slack: int = 0) -> Iterator[Finding]:
    """Nothing runs before its time: not before its delay, nor before the pause that a retry must make."""
    if story.offer is None:
        return
    due, since = story.offer.due, story.began
    for run in story.runs:
        start = run.start
        moved = [
            op.asked.due if op.asked.verb == "reschedule" else 0
            for op in story.operations
            if op.asked.verb in ("reschedule", "retry")
            and since <= op.asked.mono <= start.mono
            and _accepted(op.answer)
        ]
        least = min([due, *moved])
        if start.at < least - slack:
            yield _finding(story, "early", f"attempt {run.attempt} started {least - start.at} ms too early")
        own = _effective(run)
        waits = own is not None and own.applied and own.asked.state in ("retryable", "scheduled")
        due = own.asked.at + own.asked.delay if own is not None and waits else 0
        since = start.mono


# ── second runs ──────────────────────────────────────────────────────────────────────────────────


def reruns(story: Story, history: History) -> Iterator[tuple[str, Finding | None]]:
    """The cause of each run after the first; a finding where there is none."""
    for before, after in pairwise(story.runs):
        cause = cause_of(story, before, after, history)
        if cause == "unexplained" or cause.startswith("ended "):
            why = "nothing that is written down explains it"
            if cause != "unexplained":
                why = f"it had {cause}"
            says = f"it ran again (attempt {after.attempt} after {before.attempt}): {why}"
            yield "unexplained", _finding(story, "cause", says)
        else:
            yield cause, None


def cause_of(story: Story, before: Run, after: Run, history: History) -> str:
    """Why the job ran again: failure, timeout, crash (of its own process), snooze, release, operator,
    or the kind of the fault (kill, stop, store …) that cost its lease; else unexplained."""
    if story.operated("retry", before.start.mono, after.start.mono):
        return "operator"
    own = _effective(before)
    if own is not None and own.applied and own.asked.mono <= after.start.mono:
        return f"ended as {own.asked.state}" if own.terminal else _of_outcome(own)
    fault = _fault_of(before, after, history)
    if fault is not None:
        return fault.kind
    return _of_outcome(own) if own is not None and not own.terminal else "unexplained"


def _effective(run: Run) -> Act | None:
    """What its holder settled and the store took, or perhaps took."""
    for act in run.acts:
        if act.applied:
            return act
    return next((act for act in run.acts if act.perhaps), None)


def _of_outcome(act: Act) -> str:
    if act.asked.state == "scheduled":
        return "snooze"
    if not act.asked.error:
        return "release"
    if act.asked.error == "Timeout":
        return "timeout"
    return "crash" if act.asked.error in _CRASHES else "failure"


def _fault_of(before: Run, after: Run, history: History) -> Fault | None:
    """The harm that cost this run its lease."""
    pids = _with_parents(before.pids, history)
    for fault in history.faults:
        if fault.mono > after.start.mono or (fault.target and fault.target not in pids):
            continue
        # a kill ends what ran then; a stopped process or an absent store may have been so before
        if fault.kind != "kill" or fault.mono >= before.start.mono:
            return fault
    return None


def _with_parents(pids: Iterable[int], history: History) -> set[int]:
    found: set[int] = set()
    for pid in pids:
        while pid and pid not in found:
            found.add(pid)
            pid = history.parents.get(pid, 0)
    return found


# ── unique ───────────────────────────────────────────────────────────────────────────────────────


def uniqueness(stories: Iterable[Story]) -> Iterator[Finding]:
    """Of two jobs with one unique key the first has ended, or its period is over, before the second."""
    holders: dict[tuple[str, str], list[Story]] = defaultdict(list)
    for story in stories:
        if story.offer is not None and story.offer.unique and story.acknowledged:
            holders[story.ref.queue, story.offer.unique].append(story)
    for same in holders.values():
        for first, second in pairwise(sorted(same, key=lambda story: story.began)):
            if second.began > _acknowledged_at(first) and _holds(first, _acknowledged_at(second)):
                says = f"its unique key was still held by job {first.ref.id}"
                yield _finding(second, "unique", says)


def _acknowledged_at(story: Story) -> int:
    return min(v.mono for v in story.verdicts if v.verdict in ("new", "follows"))


def _holds(story: Story, mono: int) -> bool:
    """Whether it certainly had its key at that moment: nobody had even tried to end it."""
    assert story.offer is not None
    until = story.offer.unique_until
    if until is not None and mono - story.began >= (until - story.offer.at) * 1_000_000:
        return False
    tries = [act.asked.mono for act in story.acts if act.terminal]
    tries += [op.asked.mono for op in story.operations if op.asked.verb in ("cancel", "delete")]
    silent = not tries and not story.runs  # who may have ended it unseen?
    return (bool(tries) and min(tries) > mono) or (silent and story.offer.expires is None)


def _finding(story: Story, promise: str, says: str) -> Finding:
    return Finding(promise, says, story.ref.queue, story.ref.id)
