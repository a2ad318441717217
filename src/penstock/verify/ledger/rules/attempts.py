"""Rules about the leases, attempts and start times of one job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from penstock.verify.ledger.reading.story import Act, Run, Story
from penstock.verify.ledger.rules.case import Case, broken
from penstock.verify.ledger.rules.causes import cause_of, effective, was_read_late
from penstock.verify.ledger.verdict import Violation

__all__ = ["attempts", "cause_of", "early", "fencing"]


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
        forgotten = case.forgiven.lease(before.asked, before.start.mono)
        late = was_read_late(story, before, after, case.forgiven)
        if after.attempt <= before.attempt and not (given_back or forgotten or late):
            says = f"attempt {before.attempt} had started and did not count: the next one was {after.attempt}"
            yield broken(story, "attempts", says)
        snoozed = any(act.asked.state == "scheduled" for act in before.acts)
        if story.offer.at_most_once and not snoozed:
            yield broken(story, "at most once", f"the job started again (attempt {after.attempt})")


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
        if before is not None and was_read_late(story, before, run, case.forgiven):
            continue
        at, least = case.history.at(run.start), due
        if at < least - case.slack:
            least = min([due, *_moved(story, since, run.start.mono)])
        if at < least - case.slack:
            yield broken(story, "early", f"attempt {run.attempt} started {least - at} ms too early")
        own = effective(run)
        waits = own is not None and own.applied and own.asked.state in ("retryable", "scheduled")
        due = 0
        if own is not None and waits and not case.forgiven(*own.call):
            due = case.history.at(own.asked) + own.asked.delay
        since = run.start.mono


def _moved(story: Story, since: int, until: int) -> Iterator[int]:
    """New due times from operations between these moments."""
    for op in story.operations:
        if op.asked.verb in ("reschedule", "retry") and op.may_lie(since, until):
            yield op.asked.due if op.asked.verb == "reschedule" else 0
