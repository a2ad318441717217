"""Compares a ledger with its store and decides whether all promises were kept."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from penstock.job import Job, Ref
from penstock.store import QueueInfo, QueueStats, Store
from penstock.testing.ledger import rules
from penstock.testing.ledger.counters import counters
from penstock.testing.ledger.facts import Fault
from penstock.testing.ledger.history import History, Run, Story, read
from penstock.testing.ledger.verdict import Crash, Finding, Rerun, Verdict

__all__ = ["Snapshot", "acheck", "check", "judge", "snapshot"]

_CHUNK = 1_000


class Snapshot(msgspec.Struct, frozen=True):
    """What a store has: of the jobs that a ledger knows, those that are there; and its counters."""

    jobs: dict[Ref, Job]
    queues: list[QueueInfo]
    stats: list[QueueStats]


def check(
    directory: str | Path, store: Store, *, finished: bool = True, exclusive: bool = True, slack: int = 0
) -> Verdict:
    """The verdict on this ledger and its store. Call it when nobody produces or works any more.

    `finished`: all work should be done, so a job that is not is a finding. `exclusive`: nobody else uses
    the store's queues, so its counters must agree. `slack`: by how many ms the clocks of store and
    ledger may differ before a start counts as early (0 on one machine).
    """
    return asyncio.run(acheck(directory, store, finished=finished, exclusive=exclusive, slack=slack))


async def acheck(
    directory: str | Path, store: Store, *, finished: bool = True, exclusive: bool = True, slack: int = 0
) -> Verdict:
    """The same inside an event loop."""
    history = read(directory)
    seen = await snapshot(store, history)
    return judge(history, seen, finished=finished, exclusive=exclusive, slack=slack)


async def snapshot(store: Store, history: History) -> Snapshot:
    """Ask the store about every job of the ledger, and for its counters."""
    refs = list(dict.fromkeys(story.ref for story in history.stories))
    jobs: dict[Ref, Job] = {}
    for start in range(0, len(refs), _CHUNK):
        found = await store.get(refs[start : start + _CHUNK])
        jobs.update({job.ref: job for job in found if job is not None})
    return Snapshot(jobs, await store.queues(), await store.stats(days=1))


def judge(
    history: History, seen: Snapshot, *, finished: bool = True, exclusive: bool = True, slack: int = 0
) -> Verdict:
    """The verdict, from facts alone."""
    now = time.time_ns() // 1_000_000
    last = history.by_ref()
    findings: list[Finding] = []
    ends: Counter[str] = Counter()
    for story in history.stories:
        is_last = last[story.ref] is story
        job = seen.jobs.get(story.ref) if is_last else None
        end, broken = rules.end_of(story, job, now, purged=story.ref.queue in history.purged, last=is_last)
        ends[end] += 1
        findings += broken
        if finished and end == "unfinished" and job is not None:
            says = f"the work is over, and it is still {job.state.value}"
            findings.append(Finding("one end", says, *_address(story)))
        findings += rules.fencing(story)
        findings += rules.attempts(story)
    too_early = [finding for story in history.stories for finding in rules.early(story, slack)]
    findings += too_early
    findings += rules.uniqueness(history.stories)
    causes: Counter[str] = Counter()
    for story in history.stories:
        for cause, finding in rules.reruns(story, history):
            causes[cause] += 1
            findings += [] if finding is None else [finding]
    if exclusive:
        findings += counters(history.stories, seen.jobs, seen.queues, seen.stats)
    if history.torn:
        findings.append(Finding("ledger", f"{history.torn} line(s) cannot be read: its disk was full?"))
    return Verdict(
        **_numbers(history.stories, ends),
        early=len(too_early),
        reruns=dict(causes),
        crashes=[_crash(fault, history) for fault in history.faults if fault.kind == "kill"],
        lateness=sorted(_lateness(history.stories)),
        findings=findings,
    )


def _numbers(stories: Sequence[Story], ends: Counter[str]) -> dict[str, int]:
    return {
        "offered": sum(1 for s in stories if s.offers),
        "enqueued": sum(1 for s in stories if s.acknowledged),
        "refused": sum(1 for s in stories if s.offers and not s.acknowledged and not s.unknown),
        "unknown": sum(1 for s in stories if s.unknown),
        **{end: ends[end] for end in ("completed", "cancelled", "dead", "deleted", "unfinished", "lost")},
        "runs": sum(len(s.runs) for s in stories),
        "stale": sum(1 for s in stories for act in s.acts if act.answer == "stale"),
    }


def _lateness(stories: Sequence[Story]) -> Iterator[int]:
    for story in stories:
        moved = any(op.asked.verb in ("reschedule", "retry") for op in story.operations)
        if story.offer is not None and story.offer.delayed and story.runs and not moved:
            yield story.runs[0].start.at - story.offer.due


def _crash(fault: Fault, history: History) -> Crash:
    held = [
        rerun
        for story in history.stories
        for i, run in enumerate(story.runs)
        if (rerun := _held(fault, story, run, story.runs[i + 1 :])) is not None
    ]
    return Crash(fault.target, fault.cause, fault.at, held)


def _held(fault: Fault, story: Story, run: Run, later: Sequence[Run]) -> Rerun | None:
    """What became of a run that the killed process had begun and not ended; None for any other."""
    if fault.target not in run.pids or run.start.mono > fault.mono:
        return None
    if (run.end is not None and run.end.mono < fault.mono) or any(act.applied for act in run.acts):
        return None
    task = story.offer.task if story.offer else ""
    again = later[0] if later else None
    return Rerun(
        *_address(story),
        task,
        attempt_before=run.attempt,
        attempt=None if again is None else again.attempt,
        seconds=None if again is None else (again.start.mono - fault.mono) / 1e9,
        worker="" if again is None else again.worker,
    )


def _address(story: Story) -> tuple[str, str]:
    return story.ref.queue, story.ref.id
