"""Compares a ledger with its store, decides whether all guarantees were kept, and sums up the numbers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypedDict, Unpack

import msgspec

from penstock.core.job import Job, Ref
from penstock.inspector import Inspector, as_json
from penstock.stores.contract import (
    FLOW_STEP,
    Capability,
    QueueInfo,
    QueueStats,
    Resolution,
    StatsRow,
    Store,
    StoredStep,
)
from penstock.verify.ledger.history import History, read, uncollected
from penstock.verify.ledger.rules import attempts, ends
from penstock.verify.ledger.rules.attempts import SecondRun, begun, reruns
from penstock.verify.ledger.rules.case import Case, StoredFlow, broken
from penstock.verify.ledger.rules.counters import (
    Numbers,
    counted,
    counters,
    faces,
    numbers_of,
    scraped,
    tasks_of_queues,
)
from penstock.verify.ledger.rules.ends import acts, batches
from penstock.verify.ledger.rules.faults import SUPERVISOR_KILL, FaultIndex, ForgivenSpans, word_of
from penstock.verify.ledger.rules.flows import flow_numbers, flows
from penstock.verify.ledger.rules.keys import partitions, periods, queue_limits, uniqueness
from penstock.verify.ledger.rules.recovery import LostShard, crashes, healthy_shards, lateness, restarts
from penstock.verify.ledger.rules.steps import effects, signals, steps
from penstock.verify.ledger.story import Story
from penstock.verify.ledger.verdict import Duplicate, Verdict, Violation
from penstock.web.store_metrics import queue_metrics, read_stores

#: Begin and end, in ms since the epoch.
Span = tuple[int, int]

_CHUNK = 1_000
#: At most this many second runs are described one by one.
_DESCRIBED = 1_000
#: Stores without their own clock: they take the time from the process that uses them.
_BORROWED_CLOCK = ("sqlite:", "memory:")


class Snapshot(msgspec.Struct, frozen=True):
    """The contents of a store: the jobs and flows of the ledger that exist, counters, and metrics if read."""

    jobs: dict[Ref, Job]
    queues: list[QueueInfo]
    stats: list[QueueStats]
    borrows_clock: bool = False
    flows: dict[Ref, StoredFlow] = {}
    steps: dict[Ref, list[StoredStep]] = {}  # of the jobs that have recorded one
    metrics: str | None = None
    #: What each face shows of the queues, by its name.
    shown: Mapping[str, Numbers] = {}
    tasks: list[StatsRow] = []  # the statistics of each task by day
    followed: bool = True  # whether the store tells what became of a job; else `jobs` is empty


class Terms(TypedDict, total=False):
    """The options of a check.

    - `finished`: every job must have ended; an unfinished job is a finding (default True).
    - `exclusive`: only the ledger's processes use the queues, so the store's counters must agree (default
      True).
    - `slack`: tolerated difference between the clocks of store and ledger in ms, before a start counts as
      early (default 0, for one machine).
    - `asked`: types of faults that had to be injected; a type that never happened is a finding.
    - `forgiven`: spans whose acknowledged writes the store may lose, as its settings allow. Examples: the
      second before a power cut with an append-only file that is synced every second; a failover to a replica
      that lags. A missing job then counts as forgiven, not as lost, and a job that had ended may run again.
    """

    finished: bool
    exclusive: bool
    slack: int
    asked: Iterable[str]
    forgiven: Iterable[Span]


def check(directory: str | Path, store: Store, **terms: Unpack[Terms]) -> Verdict:
    """The verdict on this ledger and its store; options: `Terms`. Call it when all processes have stopped."""
    return asyncio.run(acheck(directory, store, **terms))


async def acheck(directory: str | Path, store: Store, **terms: Unpack[Terms]) -> Verdict:
    """Async version of `check`."""
    history = read(directory)
    return verdict_on(history, await snapshot(store, history), **terms)


async def snapshot(store: Store, history: History) -> Snapshot:
    """Read every job of the ledger, the counters and the metrics from the store."""
    jobs: dict[Ref, Job] = {}
    can = store.can
    refs = list(dict.fromkeys(story.ref for story in history.stories)) if can(Capability.FOLLOW) else []
    while refs:
        for start in range(0, len(refs), _CHUNK):
            found = await store.get(refs[start : start + _CHUNK])
            jobs.update({job.ref: job for job in found if job is not None})
        # a batch that no worker has fetched is not in the ledger
        of_batches = {Ref(job.queue, job.batch) for job in jobs.values() if job.batch is not None}
        refs = sorted(of_batches - jobs.keys() - set(refs), key=lambda ref: (ref.queue, ref.id))
    borrows = store.url.startswith(_BORROWED_CLOCK)
    metrics = "".join(queue_metrics(await read_stores({"verify": store})))  # as at the scrape of a worker
    return Snapshot(
        jobs,
        await store.queues(),
        await store.stats(days=1) if can(Capability.MEASURE) else [],
        borrows,
        await _flows(store, list(history.flows)),
        {story.ref: await store.steps(story.ref) for story in history.stories if story.steps},
        metrics,
        {"the inspector": await _inspected(store)},
        await _tasks(store) if can(Capability.MEASURE) else [],
        can(Capability.FOLLOW),
    )


async def _tasks(store: Store) -> list[StatsRow]:
    span = Resolution.DAY.length * Resolution.DAY.kept
    return (await store.read_stats(Resolution.DAY, span=span)).rows


async def _inspected(store: Store) -> Numbers:
    """What the inspector shows: all faces but the metrics show what it has."""
    inspector = Inspector(store)
    queues = await inspector.queues()
    stats = await inspector.stats(days=1) if store.can(Capability.MEASURE) else []
    return numbers_of(as_json(queues), as_json(stats))


async def _flows(store: Store, refs: list[Ref]) -> dict[Ref, StoredFlow]:
    """Those of these flows that exist, with their nodes."""
    found: dict[Ref, StoredFlow] = {}
    for start in range(0, len(refs), _CHUNK):
        for info in await store.get_flows(refs[start : start + _CHUNK]):
            if info is None:
                continue
            parts = [range(at, min(info.total, at + FLOW_STEP)) for at in range(0, info.total, FLOW_STEP)]
            nodes = [node for part in parts for node in await store.flow_nodes(info.ref, part)]
            found[info.ref] = StoredFlow(info, {node.index: node for node in nodes if node is not None})
    return found


@uncollected()
def verdict_on(
    history: History,
    seen: Snapshot,
    *,
    finished: bool = True,
    exclusive: bool = True,
    slack: int = 0,
    asked: Iterable[str] = (),
    forgiven: Iterable[Span] = (),
    undone: Iterable[Span] = (),
    unleased: Iterable[Span] = (),
    lost_shards: Iterable[LostShard] = (),
) -> Verdict:
    """The verdict, computed from the facts of a ledger and a snapshot of its store. Options as in `Terms`,
    and:

    - `undone`: spans whose writes the store may lose, except enqueues.
    - `unleased`: spans whose leases the store may lose, except starts that must be recorded first.
    - `lost_shards`: spans in which a shard was away; queues of the other shards must have made progress.
    """
    injected = Counter(word_of(fault) for fault in history.faults if fault.kind != SUPERVISOR_KILL)
    spans = ForgivenSpans(forgiven, history, undone, unleased)
    case = _case(history, seen, spans, slack, clock_skewed=seen.borrows_clock and "clock" in injected)
    fates, findings = _fates(case, seen.queues, finished=finished)
    too_early = [finding for story in history.stories for finding in attempts.early(story, case)]
    findings += [] if case.clock_skewed else too_early
    findings += _of_jobs(case, finished=finished, exclusive=exclusive, lost_shards=tuple(lost_shards))
    again = [one for story in history.stories for one in reruns(story, case)]
    findings += [one.finding for one in again if one.finding is not None]
    if exclusive:
        findings += _of_figures(case, seen)
    findings += _of_the_ledger(history, injected, asked)
    late = list(lateness(case))
    verdict = Verdict(
        forgiven=fates["forgiven"] + sum(1 for one in again if one.cause == "undone"),
        early=len(too_early),
        late=sum(1 for one in late if one.unexplained),
        reruns=dict(Counter(one.cause for one in again)),
        duplicated=sum(1 for one in again if one.duplicate is not None),
        duplicates=_described(again),
        injected=dict(injected),
        crashes=crashes(history),
        restarts=restarts(history),
        lateness=sorted(one.ms for one in late),
        flows=flow_numbers(case),
        findings=findings,
    )
    return msgspec.structs.replace(verdict, **_numbers(history.stories, fates))


def _case(history: History, seen: Snapshot, spans: ForgivenSpans, slack: int, *, clock_skewed: bool) -> Case:
    """What all rules look at."""
    now = time.time_ns() // 1_000_000
    nodes = [node for flow in seen.flows.values() for node in flow.nodes.values()]
    return Case(
        history,
        seen.jobs,
        now,
        FaultIndex(history),
        spans,
        history.by_ref(),
        slack,
        clock_skewed=clock_skewed,
        flows=seen.flows,
        steps=seen.steps,
        nodes={node.job: node for node in nodes if node.job is not None},
        followed=seen.followed,
    )


def _of_jobs(
    case: Case, *, finished: bool, exclusive: bool, lost_shards: tuple[LostShard, ...]
) -> Iterator[Violation]:
    """Findings about the runs of jobs, and of those that share a key, queue, batch, flow or entry."""
    for story in case.history.stories:
        yield from attempts.fencing(story, case)
        yield from attempts.attempts(story, case)
    yield from chain(begun(case), uniqueness(case), partitions(case), queue_limits(case))
    yield from chain(batches(case, exclusive=exclusive), periods(case), healthy_shards(case, lost_shards))
    yield from acts(case)
    yield from chain(flows(case, finished=finished), steps(case), effects(case), signals(case))


def _of_figures(case: Case, seen: Snapshot) -> Iterator[Violation]:
    """Findings about figures of a store that this run has had for itself: they must agree with the ledger."""
    if case.followed:
        yield from counters(case.history.stories, seen.jobs, seen.queues, seen.stats, case.forgiven)
    if seen.metrics is not None:
        yield from scraped(seen.metrics, seen.queues, seen.stats)
    yield from faces(seen.shown, counted(seen.queues, seen.stats))
    if not case.forgiven:
        yield from tasks_of_queues(seen.tasks, seen.stats)


def _fates(
    case: Case, queues: Iterable[QueueInfo], *, finished: bool
) -> tuple[Counter[str], list[Violation]]:
    """Count the jobs by how they ended, and find wrong ends. A batch counts by its members."""
    fates: Counter[str] = Counter()
    findings: list[Violation] = []
    if not case.followed:
        case.unseen_dead = ends.unseen_dead(case, queues)
    for story in case.history.stories:
        fate, wrong = ends.end_of(story, case)
        fates[fate] += not story.members
        findings += wrong
        job = case.job(story)
        if finished and fate == "unfinished" and job is not None:
            says = f"all work is over, and the job is still {job.state.value}"
            findings.append(broken(story, "one end", says))
    return fates, findings


def _of_the_ledger(history: History, injected: Counter[str], asked: Iterable[str]) -> Iterator[Violation]:
    if history.torn:
        yield Violation("ledger", f"{history.torn} line(s) cannot be read: was the disk full?")
    for kind in dict.fromkeys(asked):
        if not injected[kind]:
            yield Violation("faults", f"{kind} was requested, and never happened")


def _described(again: Sequence[SecondRun]) -> list[Duplicate]:
    return [one.duplicate for one in again if one.duplicate is not None][:_DESCRIBED]


def _numbers(stories: Sequence[Story], fates: Counter[str]) -> dict[str, int]:
    return {
        "offered": sum(1 for s in stories if s.offers),
        "enqueued": sum(1 for s in stories if s.acknowledged or (s.of_flow and s.leases)),
        "refused": sum(1 for s in stories if s.offers and not s.acknowledged and not s.unknown),
        "unknown": sum(1 for s in stories if s.unknown and not s.of_flow),
        **{end: fates[end] for end in ("completed", "cancelled", "dead", "deleted", "unfinished", "lost")},
        "runs": sum(len(s.runs) for s in stories),
        "stale": sum(1 for s in stories for act in s.acts if act.answer == "stale"),
    }


# ── the numbers for a report ─────────────────────────────────────────────────────────────────────


#: What a summary has of a verdict as it is.
_COUNTS = (
    "offered",
    "enqueued",
    "refused",
    "unknown",
    "completed",
    "cancelled",
    "dead",
    "deleted",
    "unfinished",
    "lost",
    "forgiven",
    "duplicated",
    "unexplained",
    "early",
    "late",
    "stale",
)
#: At most this many findings are listed, some for each guarantee: a broken store may have one per job.
_FINDINGS = 200


def summary(history: History, verdict: Verdict, *, began: int) -> dict[str, Any]:
    """The numbers of a run that began at `began` (ms since the epoch)."""
    return {
        "injected": dict(sorted(verdict.injected.items())),
        "faults": [
            {
                "at": _since(began, history.at(fault)),
                "kind": word_of(fault),
                "target": str(fault.target) if fault.target > 0 else "",
                "note": fault.cause,
                "seconds": round(fault.seconds, 3),
            }
            for fault in history.faults
        ],
        **{name: getattr(verdict, name) for name in _COUNTS},
        "duplicates": [_duplicate(one, began) for one in verdict.duplicates],
        "recovery": _spread(verdict.recoveries),
        "restart": _spread(verdict.restarts),
        "throughput": _throughput(history, began),
        "findings": [msgspec.structs.asdict(one) for one in verdict.some(_FINDINGS)],
        "verdict": "kept" if verdict.ok else "broken",
        "reasons": [
            f"{n} × {promise}" for promise, n in sorted(Counter(f.promise for f in verdict.findings).items())
        ],
    }


def _duplicate(one: Duplicate, began: int) -> dict[str, Any]:
    return {
        "queue": one.queue,
        "id": one.id,
        "task": one.task,
        "attempt_before": one.attempt_before,
        "attempt": one.attempt,
        "cause": one.cause,
        "fault_at": None if one.fault_at is None else _since(began, one.fault_at),
        "leased_from": _since(began, one.leased_from),
        "leased_until": _since(began, one.leased_until),
    }


def _spread(values: Sequence[float]) -> dict[str, float | int | None]:
    """Number, median, 99th percentile and maximum of sorted values."""
    if not values:
        return {"n": 0, "p50": None, "p99": None, "max": None}
    most = len(values) - 1
    p50, p99 = (round(values[round(most * share)], 3) for share in (0.5, 0.99))
    return {"n": len(values), "p50": p50, "p99": p99, "max": round(values[-1], 3)}


def _throughput(history: History, began: int) -> list[dict[str, int]]:
    """Jobs acknowledged and completed in each second."""
    enqueued: Counter[int] = Counter()
    completed: Counter[int] = Counter()
    for story in history.stories:
        at = story.acknowledged_at
        if at is not None:
            enqueued[_second(history, at, began)] += 1
        done = next((a for a in story.acts if a.applied and a.asked.state == "completed"), None)
        if done is not None:
            completed[_second(history, done.answered, began)] += len(story.members) or 1
    last = max([*enqueued, *completed], default=-1)
    return [{"at": s, "enqueued": enqueued[s], "completed": completed[s]} for s in range(last + 1)]


def _second(history: History, mono: int, began: int) -> int:
    at = history.wall(mono)
    return 0 if at is None else max(0, (at - began) // 1_000)


def _since(began: int, at: int) -> float:
    return round((at - began) / 1_000, 3)
