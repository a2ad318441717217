"""Rules about the leases, attempts and start times of one job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from penstock.verify.ledger.reading.story import Act, Run, Story
from penstock.verify.ledger.rules.case import Case, broken
from penstock.verify.ledger.rules.causes import cause_of, effective
from penstock.verify.ledger.verdict import Violation

__all__ = ["attempts", "cause_of", "early", "fencing"]


# ── fencing ──────────────────────────────────────────────────────────────────────────────────────


def fencing(story: Story, case: Case) -> Iterator[Violation]:
    """Check that only the holder of the lease changes a running job, and only once.

    Outcomes and leases that the store may have lost are ignored.
    """
    applied = [act for act in story.acts if act.applied and act.asked.token]
    for token, n in Counter(act.asked.token for act in applied if not case.forgiven(act.answered)).items():
        if n > 1:
            yield broken(story, "fencing", f"{n} outcomes under the same lease were applied ({token})")
    granted = {lease.token: lease for lease in reversed(story.leases)}
    lasting = [lease for lease in granted.values() if not case.forgiven(lease.mono)]
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
        forgotten = case.forgiven.lease(before.granted) or case.forgiven.lease(before.start.mono)
        if after.attempt <= before.attempt and not given_back and not forgotten:
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
    granted = [lease.mono for lease in story.leases if lease.token == run.token] or [run.start.mono]
    return any(map(case.forgiven, [*granted, *(act.answered for act in run.acts if act.applied)]))


# ── time ─────────────────────────────────────────────────────────────────────────────────────────


def early(story: Story, case: Case) -> Iterator[Violation]:
    """Check that no run starts before its due time: after its delay, or after the delay of a retry."""
    if story.offer is None:
        return
    due, since = story.offer.due, story.began
    for run in story.runs:
        at, least = case.history.at(run.start), due
        if at < least - case.slack:
            least = min([due, *_moved(story, since, run.start.mono)])
        if at < least - case.slack:
            yield broken(story, "early", f"attempt {run.attempt} started {least - at} ms too early")
        own = effective(run)
        waits = own is not None and own.applied and own.asked.state in ("retryable", "scheduled")
        due = 0
        if own is not None and waits and not case.forgiven(own.answered):
            due = case.history.at(own.asked) + own.asked.delay
        since = run.start.mono


def _moved(story: Story, since: int, until: int) -> Iterator[int]:
    """New due times from operations between these moments."""
    for op in story.operations:
        if op.asked.verb in ("reschedule", "retry") and since <= op.asked.mono <= until and op.accepted:
            yield op.asked.due if op.asked.verb == "reschedule" else 0
