"""Recovery times: after a kill, after the store's return, and from a job's due time to its start."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.verify.ledger.facts import Fault
from penstock.verify.ledger.reading.history import History
from penstock.verify.ledger.reading.story import Run, Story
from penstock.verify.ledger.rules.case import Case
from penstock.verify.ledger.rules.faults import LostLease, word_of
from penstock.verify.ledger.verdict import Crash, Rerun

__all__ = ["Late", "crashes", "lateness", "restarts"]

_KILLS = ("kill", "kill-worker")
#: Types of faults after which the store is restarted or replaced.
_RETURNS = ("restart-store", "power-cut", "failover")
#: A job that starts more than this after its due time (ms) is late.
_LATE = 1_000

_Runs = dict[int, list[tuple[Story, int]]]


class Late(NamedTuple):
    """A delayed job: how many ms after its due time it started, and whether it is late without a cause."""

    ms: int
    unexplained: bool


def crashes(history: History) -> list[Crash]:
    """Each kill of a worker process, and the jobs that the process was running."""
    kills = [fault for fault in history.faults if fault.kind in _KILLS]
    killed = {fault.target for fault in kills}
    of_pid: _Runs = defaultdict(list)
    for story in history.stories:
        for i, run in enumerate(story.runs):
            if not run.processes.isdisjoint(killed) and not any(act.applied for act in run.acts):
                for pid in run.processes & killed:
                    of_pid[pid].append((story, i))
    return [_crash(fault, of_pid) for fault in kills]


def _crash(fault: Fault, of_pid: _Runs) -> Crash:
    held = [
        rerun
        for story, i in of_pid.get(fault.target, [])
        if (rerun := _interrupted_run(fault, story, story.runs[i], story.runs[i + 1 :])) is not None
    ]
    return Crash(fault.target, fault.cause, fault.at, held)


def _interrupted_run(fault: Fault, story: Story, run: Run, later: Sequence[Run]) -> Rerun | None:
    """The rerun of a job that the killed process was running; None for any other job.

    Also None if another process had started the job before the kill. The caller has left out runs with an
    applied outcome.
    """
    again = later[0] if later else None
    ended = run.end is not None and run.end.mono < fault.mono
    if ended or run.start.mono > fault.mono or (again is not None and again.start.mono < fault.mono):
        return None
    return Rerun(
        story.ref.queue,
        story.ref.id,
        story.offer.task if story.offer else "",
        attempt_before=run.attempt,
        attempt=None if again is None else again.attempt,
        seconds=None if again is None else (again.start.mono - fault.mono) / 1e9,
        worker="" if again is None else again.worker,
    )


def restarts(history: History) -> list[float]:
    """Seconds from each return of the store to the first start of a job."""
    starts = sorted(run.start.mono for story in history.stories for run in story.runs)
    waits: list[float] = []
    for fault in history.faults:
        if word_of(fault) in _RETURNS and fault.seconds:
            back = fault.mono + int(fault.seconds * 1e9)
            i = bisect_left(starts, back)
            waits += [(starts[i] - back) / 1e9] if i < len(starts) else []
    return sorted(waits)


def lateness(case: Case) -> Iterator[Late]:
    """The lateness of each delayed job that was not rescheduled and is not collected for a batch."""
    for story in case.history.stories:
        offer = story.offer
        if offer is None or not offer.delayed or not story.runs or offer.collected:
            continue
        if any(op.asked.verb in ("reschedule", "retry") for op in story.operations):
            continue
        first = min(story.runs, key=lambda run: run.start.mono)
        start = first.start
        ms = case.history.at(start) - offer.due
        free = offer.partition is None and story.ref.queue not in case.history.limits
        began = start.mono - max(0, ms) * 1_000_000
        wait = LostLease(first.pids, began, began, start.mono, queue=story.ref.queue)
        blamed = case.faults_by_target.cause(wait) is not None
        yield Late(ms, ms > _LATE and free and not blamed and not case.clock_skewed)
