"""Kills of workers by their supervisors: which ones the ledger confirms, so that they may explain a rerun."""

from __future__ import annotations

from penstock.verify.ledger.facts import Fault
from penstock.verify.ledger.reading.history import History
from penstock.verify.ledger.reading.story import Story

__all__ = ["SUPERVISOR_KILL", "is_confirmed"]

#: The kind of fault with which a supervisor records that it kills a worker; its cause is the reason.
SUPERVISOR_KILL = "supervisor-kill"
#: A worker that drains has asked for no job for at least this long (ns) when its supervisor kills it.
_DRAINED_FOR = 1_000_000_000


def is_confirmed(kill: Fault, history: History) -> bool:
    """Whether other facts confirm the supervisor's reason.

    Either the worker had leased a job named in the reason for longer than the job's timeout, and the worker
    had neither recorded its end nor settled it. Or the reason names no job: then the worker had to end, and
    asked for none.
    """
    words = set(kill.cause.split())
    named = [story for story in history.stories if story.ref.id in words]
    if named:
        return any(_was_overdue(story, kill) for story in named)
    since = kill.mono - _DRAINED_FOR
    leases = (lease for story in history.stories for lease in story.leases if lease.pid == kill.target)
    return "drain" in words and not any(since < lease.sent < kill.mono for lease in leases)


def _was_overdue(story: Story, kill: Fault) -> bool:
    if story.offer is None or not story.offer.timeout:
        return False
    ended = {
        run.token
        for run in story.runs
        # an end inside of the task's own process may not have reached the worker
        if run.end is not None and not run.end.inside and run.end.mono <= kill.mono
    }
    ended |= {act.asked.token for act in story.acts if act.asked.mono <= kill.mono}
    return any(
        lease.pid == kill.target
        and lease.token not in ended
        and lease.mono + story.offer.timeout * 1_000_000 <= kill.mono
        for lease in story.leases
    )
