"""Compares a ledger with its store and decides whether all guarantees were kept."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TypedDict, Unpack

import msgspec

from penstock.core.job import Job, Ref
from penstock.inspector import Inspector
from penstock.stores.contract import (
    FLOW_STEP,
    QueueInfo,
    QueueStats,
    Resolution,
    StatsRow,
    Store,
    StoredStep,
)
from penstock.verify.ledger.reading.history import History, Story, read, uncollected
from penstock.verify.ledger.rules import attempts, ends
from penstock.verify.ledger.rules.acts import acts
from penstock.verify.ledger.rules.batches import batches
from penstock.verify.ledger.rules.begun import begun
from penstock.verify.ledger.rules.case import Case, StoredFlow, broken
from penstock.verify.ledger.rules.causes import SecondRun, reruns
from penstock.verify.ledger.rules.counters import counters
from penstock.verify.ledger.rules.faces import Numbers, counted, faces, numbers_of, tasks_of_queues
from penstock.verify.ledger.rules.faults import ForgivenSpans, fault_index_of, word_of
from penstock.verify.ledger.rules.flows import flow_numbers, flows
from penstock.verify.ledger.rules.lost_shards import LostShard, went_on
from penstock.verify.ledger.rules.partitions import partitions, queue_limits
from penstock.verify.ledger.rules.periodic import periods
from penstock.verify.ledger.rules.recovery import crashes, lateness, restarts
from penstock.verify.ledger.rules.scraped import scraped
from penstock.verify.ledger.rules.signals import signals
from penstock.verify.ledger.rules.steps import steps
from penstock.verify.ledger.rules.supervisor_kills import SUPERVISOR_KILL
from penstock.verify.ledger.rules.unique import uniqueness
from penstock.verify.ledger.verdict import Duplicate, Verdict, Violation
from penstock.web.store_metrics import queue_metrics, read_stores

__all__ = ["Snapshot", "Span", "Terms", "acheck", "check", "snapshot", "verdict_on"]

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
    refs = list(dict.fromkeys(story.ref for story in history.stories))
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
        await store.stats(days=1),
        borrows,
        await _flows(store, list(history.flows)),
        {story.ref: await store.steps(story.ref) for story in history.stories if story.steps},
        metrics,
        {"the inspector": await _inspected(store)},
        (await store.read_stats(Resolution.DAY, span=Resolution.DAY.length * Resolution.DAY.kept)).rows,
    )


async def _inspected(store: Store) -> Numbers:
    """What the inspector shows: all faces but the metrics show what it has."""
    inspector = Inspector(store)
    queues, stats = await inspector.queues(), await inspector.stats(days=1)
    return numbers_of(map(msgspec.structs.asdict, queues), map(msgspec.structs.asdict, stats))


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
    excused = ForgivenSpans(forgiven, history, undone, unleased)
    with uncollected():
        return _verdict_on(
            history, seen, finished, exclusive, slack, tuple(asked), excused, tuple(lost_shards)
        )


def _verdict_on(
    history: History,
    seen: Snapshot,
    finished: bool,
    exclusive: bool,
    slack: int,
    asked: Sequence[str],
    forgiven: ForgivenSpans,
    lost_shards: Sequence[LostShard],
) -> Verdict:
    injected = Counter(word_of(fault) for fault in history.faults if fault.kind != SUPERVISOR_KILL)
    case = Case(
        history,
        seen.jobs,
        time.time_ns() // 1_000_000,
        fault_index_of(history),
        forgiven,
        history.by_ref(),
        slack,
        clock_skewed=seen.borrows_clock and "clock" in injected,
        flows=seen.flows,
        steps=seen.steps,
        nodes={
            node.job: node
            for flow in seen.flows.values()
            for node in flow.nodes.values()
            if node.job is not None
        },
    )
    fates, findings = _fates(case, finished=finished)
    too_early = [finding for story in history.stories for finding in attempts.early(story, case)]
    findings += [] if case.clock_skewed else too_early
    for story in history.stories:
        findings += chain(attempts.fencing(story, case), attempts.attempts(story, case))
    findings += chain(begun(case), uniqueness(case), partitions(case), queue_limits(case))
    findings += chain(batches(case, exclusive=exclusive), periods(case), went_on(case, lost_shards))
    findings += acts(case)
    findings += chain(flows(case, finished=finished), steps(case), signals(case))
    again = [one for s in history.stories for one in reruns(s, history, case.faults_by_target, case.forgiven)]
    findings += [one.finding for one in again if one.finding is not None]
    if exclusive:
        findings += counters(history.stories, seen.jobs, seen.queues, seen.stats, case.forgiven)
        if seen.metrics is not None:
            findings += scraped(seen.metrics, seen.queues, seen.stats)
        findings += faces(seen.shown, counted(seen.queues, seen.stats))
        if not case.forgiven:
            findings += tasks_of_queues(seen.tasks, seen.stats)
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


def _fates(case: Case, *, finished: bool) -> tuple[Counter[str], list[Violation]]:
    """Count the jobs by how they ended, and find wrong ends. A batch counts by its members."""
    fates: Counter[str] = Counter()
    findings: list[Violation] = []
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
