"""What needs attention, most urgent first: each rule looks at the facts and says what it found.

To add a rule, write a function that takes `Facts` and yields `AttentionItem`s, and add it to `RULES`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from penstock.core.job import State
from penstock.core.text import counted
from penstock.inspector import ParkedView, QueueDepthView, QueueView, TaskStatsView, WorkerView
from penstock.inspector.statistics import kept
from penstock.inspector.worker_views import MAY_BE_GONE
from penstock.stores.contract import Finding
from penstock.stores.contract import Level as FindingLevel
from penstock.web.dashboard.formats import ago, span
from penstock.web.dashboard.shared_reads import FRESH, FRESH_CHECKS, FRESH_STATISTICS
from penstock.web.dashboard.view import Card, View

Level = Literal["bad", "warn", "note"]
_ORDER: tuple[Level, ...] = ("bad", "warn", "note")

_DAY = 86_400_000
#: A ready job that waits longer than this (ms) is worth a look.
_LONG_WAIT = 60_000
#: A queue grows if its ready jobs are this many times the mean of the last ten minutes (ms), and more by this
#: number. A steady growth is twice as far from where it began as from its mean.
_GROWN, _GROWN_BY, _GROWTH = 1.25, 20, 600_000
_MOST = 20
#: What the doctor checks, too, and rules of this module say by queue.
_SAID = ("queues", "parked jobs")


@dataclass(frozen=True)
class Facts:
    """What the rules look at."""

    view: View
    queues: list[QueueView]
    workers: list[WorkerView]
    parked: list[ParkedView]
    last_day: list[TaskStatsView]
    depths: dict[str, QueueDepthView]
    findings: list[Finding]

    @cached_property
    def served(self) -> frozenset[str]:
        """The queues that a worker serves."""
        return frozenset(name for worker in self.workers for name in worker.queues)


@dataclass(frozen=True)
class AttentionItem:
    """Something that needs attention: its subject, what it is, and a page that shows more."""

    level: Level
    subject: str
    says: str
    link: str


Rule = Callable[[Facts], Iterator[AttentionItem]]


async def attention(view: View) -> list[AttentionItem]:
    """All findings, the most urgent first."""
    inspector = view.inspector
    last_day = await kept(
        view.read("last day", lambda: inspector.statistics.tasks(span=_DAY), fresh=FRESH_STATISTICS)
    )
    depths = await kept(
        view.read("recent depths", lambda: inspector.statistics.depths(span=_GROWTH), fresh=FRESH_STATISTICS)
    )
    facts = Facts(
        view,
        queues=await view.queues(),
        workers=await kept(view.read("fleet", lambda: inspector.workers(jobs=0), cost=2)),
        parked=[p for p in await kept(view.read("parked", inspector.parked, cost=2)) if view.sees(p.queue)],
        last_day=[task for task in last_day if view.sees(task.queue)],
        depths={one.queue: one for one in depths},
        findings=await doctor_findings(view),
    )
    found = [finding for rule in RULES for finding in rule(facts)]
    return sorted(found, key=lambda one: _ORDER.index(one.level))[:_MOST]


def _away(facts: Facts) -> Iterator[AttentionItem]:
    for queue in facts.queues:
        if queue.away:
            yield AttentionItem(
                "bad", queue.name, f"cannot be read: {queue.away}", facts.view.queue_link(queue.name)
            )


def _unserved(facts: Facts) -> Iterator[AttentionItem]:
    """Queues with ready jobs that no worker serves."""
    if not facts.view.offers("/workers"):
        return
    for queue in facts.queues:
        ready = queue.counts.get(State.AVAILABLE, 0)
        if ready and queue.name not in facts.served:
            says = f"{_jobs(ready)} ready and no worker"
            yield AttentionItem("bad", queue.name, says, facts.view.queue_link(queue.name))


def _dead(facts: Facts) -> Iterator[AttentionItem]:
    """Jobs that died in the last 24 hours."""
    died: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for task in facts.last_day:
        if task.dead:
            died[task.queue].append((task.dead, task.task))
    for queue, tasks in died.items():
        tasks.sort(reverse=True)
        several = len(tasks) > 1
        named = ", ".join(f"{name} ({n:,})" if several else name for n, name in tasks[:2])
        named += " …" if len(tasks) > 2 else ""
        says = f"{_jobs(sum(n for n, _ in tasks))} died in the last 24 hours: {named}"
        yield AttentionItem("bad", queue, says, facts.view.link("/jobs", queue=queue, state=State.DEAD.value))


def _parked(facts: Facts) -> Iterator[AttentionItem]:
    """Jobs of tasks that no worker knows, or that those who know it cannot run."""
    for one in facts.parked:
        if not one.known_to:
            link = facts.view.link("/jobs", queue=one.queue, state=State.PARKED.value, task=one.task)
            why = f"{one.task}: {one.reason or 'no worker takes them'}"
            if one.is_unknown:
                why = f"no worker knows the task {one.task}"
            says = f"{_jobs(one.jobs)} parked: {why}"
            yield AttentionItem("bad", one.queue, says, link)


def _stopped(facts: Facts) -> Iterator[AttentionItem]:
    """Queues that start nothing, or accept nothing, because somebody said so."""
    for queue in facts.queues:
        ready, link = queue.counts.get(State.AVAILABLE, 0), facts.view.queue_link(queue.name)
        if queue.paused:
            waits = f", {_jobs(ready)} ready" if ready else ""
            yield AttentionItem("warn" if ready else "note", queue.name, f"paused{waits}", link)
        if queue.closed:
            yield AttentionItem("note", queue.name, "closed: new jobs are refused", link)
        if queue.throttled_until is not None:
            until = ago(queue.throttled_until, facts.view.now)
            yield AttentionItem("warn", queue.name, f"throttled; continues {until}", link)


def _slow(facts: Facts) -> Iterator[AttentionItem]:
    """Queues whose oldest ready job waits long, and queues that grow."""
    for queue in facts.queues:
        if queue.paused or queue.throttled_until is not None:
            continue
        since = queue.oldest_available
        link = facts.view.queue_link(queue.name)
        # without a worker nothing starts, which another rule says
        waits = since is not None and queue.name in facts.served
        if since is not None and waits and facts.view.now - since > _LONG_WAIT:
            says = f"the oldest ready job waits for {span((facts.view.now - since) // 1000)}"
            yield AttentionItem("warn", queue.name, says, link)
        depth, now = facts.depths.get(queue.name), queue.counts.get(State.AVAILABLE, 0)
        if depth is not None and now > max(depth.available * _GROWN, depth.available + _GROWN_BY):
            says = f"grows: {_jobs(now)} ready, {depth.available:,.0f} on average in the last 10 minutes"
            yield AttentionItem("warn", queue.name, says, link)


def _late(facts: Facts) -> Iterator[AttentionItem]:
    """Workers that do not report themselves any more."""
    view = facts.view
    for worker in facts.workers:
        seen = view.sees_one_of(worker.queues)
        if seen and worker.silent > MAY_BE_GONE:
            says = f"worker on {worker.host} was last seen {ago(worker.seen_at, view.now)}"
            link = view.worker_link(worker.id)
            yield AttentionItem("bad", worker.id, says, link)


def _doctor(facts: Facts) -> Iterator[AttentionItem]:
    """Errors of the doctor, and its warnings in one line: most are about settings, and are known."""
    link, warnings = facts.view.link("/health"), []
    for one in facts.findings:
        if one.level is FindingLevel.ERROR:
            yield AttentionItem("bad", one.what, one.why, link)
        elif one.level is FindingLevel.WARNING and one.what not in _SAID:
            warnings.append(one.what)
    if warnings:
        what = ", ".join(dict.fromkeys(warnings))
        says = f"{counted(len(warnings), 'warning')} of the doctor: {what}"
        yield AttentionItem("warn", "health", says, link)


def _jobs(n: int) -> str:
    return "1 job" if n == 1 else f"{n:,} jobs"


RULES: tuple[Rule, ...] = (_away, _unserved, _late, _dead, _parked, _stopped, _slow, _doctor)


# ── the checks of the doctor ─────────────────────────────────────────────────────────────────────

#: Reads of the checks of the store and of the fleet, about.
_STORE_COST, _FLEET_COST = 4, 8


async def store_checks(view: View, fresh: float = FRESH) -> Card[list[Finding]]:
    """The checks of the settings and the health of the store."""
    return await view.card(
        ("store checkup", fresh), view.inspector.store_checkup, cost=_STORE_COST, fresh=fresh
    )


async def fleet_checks(view: View, fresh: float = FRESH) -> Card[list[Finding]]:
    """The checks of workers, queues, leases, batches and flows."""
    return await view.card(("checkup", fresh), view.inspector.checkup, cost=_FLEET_COST, fresh=fresh)


async def doctor_findings(view: View) -> list[Finding]:
    """All findings, up to a minute old, for a visitor who may read all queues. Checks that fail have none."""
    if not view.sees():
        return []
    found = [await store_checks(view, FRESH_CHECKS), await fleet_checks(view, FRESH_CHECKS)]
    return [finding for card in found for finding in card.value or []]
