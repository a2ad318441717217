"""Recovery: after a kill, after the store's return, from a due time to the start; and during a lost shard.

While one shard is away, the queues of the other shards make progress.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set
from itertools import chain
from typing import NamedTuple

from penstock.verify.ledger.facts import Fault
from penstock.verify.ledger.history import History
from penstock.verify.ledger.rules.case import FOR_EVER, Case
from penstock.verify.ledger.rules.faults import LostLease, with_parents, word_of
from penstock.verify.ledger.story import Act, Run, Story
from penstock.verify.ledger.verdict import Crash, Rerun, Violation

_KILLS = ("kill", "kill-worker")
#: Types of faults after which the store is restarted or replaced.
_RETURNS = ("restart-store", "power-cut", "failover")
#: A job that starts more than this after its due time (ms) is late.
_START_LATE = 1_000

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
        yield Late(ms, ms > _START_LATE and free and not blamed and not case.clock_skewed)


# ── lost shards ──────────────────────────────────────────────────────────────────────────────────


#: Minimum of waiting jobs to check a queue by itself, and to check all healthy queues together.
_ENOUGH, _AT_LEAST = 20, 5
#: Workers that stop do so once they have noticed the loss, within this time (ns): jobs leased before prove
#: no progress.
_NOTICED = 2_000_000_000
#: A store that is not away answers within this time (ns).
_ANSWERED = 1_000_000_000
#: A worker proves nothing if it stalled for this part of the time after the loss was noticed.
_STALLED = 0.25
#: Answers by which a store refuses an outcome: it is not away.
_REFUSED = ("stale", "gone")


class LostShard(NamedTuple):
    """A span (wall clock, ms) in which a shard was away, and the queues of the other shards."""

    begin: int
    end: int
    queues: tuple[str, ...]


class _Seen(NamedTuple):
    """The jobs of a queue during a loss: waiting ones; started ones; outcomes sent in time; and applied."""

    waiting: int = 0
    started: int = 0
    sent: int = 0
    applied: int = 0

    @property
    def fails_to_start(self) -> bool:
        return self.waiting >= _ENOUGH and not self.started

    @property
    def fails_to_end(self) -> bool:
        return self.sent >= _AT_LEAST and not self.applied


def healthy_shards(case: Case, lost_shards: Sequence[LostShard]) -> Iterator[Violation]:
    """Check that during each lost shard jobs started in every healthy queue with enough waiting jobs, and
    that outcomes which workers sent were applied.

    If no single queue has enough waiting jobs, all healthy queues are checked together. How long a function
    takes is not judged, because a machine may be slow. A span without a worker that ran through it without
    a fault and without stalling is not checked.
    """
    if not lost_shards:
        return
    by_queue: dict[str, list[Story]] = defaultdict(list)
    for story in case.history.stories:
        by_queue[story.ref.queue].append(story)
    for one in lost_shards:
        begin, end = case.history.mono(one.begin), case.history.mono(one.end)
        healthy = set() if begin is None or end is None else _healthy_workers(case, begin, end)
        if begin is None or end is None or not healthy:
            continue
        seen = {queue: _seen(by_queue[queue], begin, end, healthy, case) for queue in one.queues}
        yield from _findings(seen, (one.end - one.begin) / 1_000)


def _findings(seen: dict[str, _Seen], seconds: float) -> Iterator[Violation]:
    away = f"while another shard was away for {seconds:.1f} s"
    for queue, its in seen.items():
        if its.fails_to_start:
            says = f"{its.waiting} job(s) were ready {away}, and none started"
            yield Violation("lost shard", says, queue)
        if its.fails_to_end:
            says = f"the outcomes of {its.sent} job(s) were sent {away}, and none was applied"
            yield Violation("lost shard", says, queue)
    waiting = sum(its.waiting for its in seen.values())
    alone = any(its.waiting >= _ENOUGH for its in seen.values())
    if waiting >= _AT_LEAST and not alone and not any(its.started for its in seen.values()):
        says = f"{waiting} job(s) of all available queues were ready {away}, and none started"
        yield Violation("lost shard", says)


def _healthy_workers(case: Case, begin: int, end: int) -> set[int]:
    """The processes that leased jobs before and after the span, without a fault and stalls in between."""
    leases = [lease for story in case.history.stories for lease in story.leases]
    lived = {one.pid for one in leases if one.mono < begin} & {one.pid for one in leases if one.mono >= end}
    harmed = {
        fault.pid if word_of(fault) == "block-loop" else fault.target
        for fault in case.history.faults
        if fault.mono < end and fault.mono + int(fault.seconds * 1e9) >= begin
    }
    stalled: Counter[int] = Counter()
    for stall in case.history.stalls:
        began = stall.mono - int(stall.seconds * 1e9)
        stalled[stall.pid] += max(0, min(end, stall.mono) - max(begin, began))
    most = (end - begin - _NOTICED) * _STALLED
    return {
        pid
        for pid in lived
        if stalled[pid] < most and (harmed - {0}).isdisjoint(with_parents([pid], case.history.parents))
    }


def _seen(stories: Sequence[Story], begin: int, end: int, healthy: Set[int], case: Case) -> _Seen:
    half, noticed = begin + (end - begin) // 2, begin + _NOTICED
    waiting: Counter[str] = Counter()  # by key, of which only some may run at a time
    started, outcomes = 0, []
    for story in stories:
        if story.offer is not None and _waits(story, half, case):
            key = story.offer.partition
            if key is None or waiting[key] < story.offer.partition_most:
                waiting["" if key is None else key] += 1
        started += any(run.granted >= noticed and run.start.mono < end for run in story.runs)
        outcomes += [a for a in story.acts if a.terminal and noticed <= a.asked.mono < end - _ANSWERED]
    sent = {act.asked.id for act in outcomes if act.asked.pid in healthy and act.answer not in _REFUSED}
    applied = sum(1 for act in outcomes if act.applied and act.answered < end)
    return _Seen(waiting.total(), started, len(sent), applied)


def _waits(story: Story, by: int, case: Case) -> bool:
    """Whether the job was ready to start at this moment (mono): acknowledged, due, and no worker had it.

    A collected job waits for its batch, and when a rescheduled or retried one was due is not certain.
    """
    offer, since = story.offer, story.acknowledged_at
    if offer is None or since is None or since > by or offer.collected or min(_ends(story)) < by:
        return False
    if any(op.asked.verb in ("reschedule", "retry") for op in story.operations):
        return False
    leases = [lease for lease in story.leases if lease.mono <= by]
    if leases:
        return any(
            act.applied and act.asked.token == leases[-1].token and act.answered + _delay(act) <= by
            for act in story.acts
        )
    due = case.history.mono(offer.due)
    return due is not None and due <= by


def _delay(act: Act) -> int:
    return act.asked.delay * 1_000_000


def _ends(story: Story) -> Iterator[int]:
    """When the job ended or may have ended, also with its batch."""
    for act in chain(story.acts, *(batch.acts for batch in story.batches)):
        if act.terminal and (act.applied or act.perhaps):
            yield act.asked.mono
    for op in story.operations:
        if op.asked.verb in ("cancel", "complete", "delete", "discard", "move"):
            yield op.asked.mono
    yield FOR_EVER
