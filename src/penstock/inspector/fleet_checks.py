"""Checks of a fleet, by reading only: clocks, versions, queues that nobody serves, unknown tasks, orphans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from penstock.core.installation import __version__
from penstock.core.job import TERMINAL, Job, Ref, State
from penstock.core.schedule import Entry
from penstock.core.text import counted
from penstock.inspector.entries import NOT_IN_CODE, unserved
from penstock.inspector.queue_views import ParkedView, parked_views
from penstock.stores.contract import Capability, Finding, Level, QueueInfo, Store, WorkerInfo

#: What a store must be able to do, so that the fleet can be checked.
_NEEDS = (Capability.WORKERS, Capability.SEARCH, Capability.SCHEDULE)
#: Clocks that differ by more than this (ms) are reported.
_SKEW = 1_000
#: The most jobs of a state that are read.
_JOBS = 1_000
#: How many names a finding has.
_NAMED = 5


async def check_fleet(store: Store) -> list[Finding]:
    """All findings; without any, one that says so."""
    lacks = [one for one in _NEEDS if not store.can(one)]
    if lacks:
        cannot = ", or ".join(one.value for one in lacks)
        return [Finding(Level.FINE, "fleet", f"not checked: this store cannot {cannot}")]
    workers, queues, parked = await store.workers(), await store.queues(), await store.parked()
    entries = (await store.entries()).entries
    running = (await store.list_jobs(state=State.RUNNING, limit=_JOBS)).jobs
    # those who came or went between the two reads hold their jobs rightly
    known = {w.id for w in [*workers, *await store.workers()]}
    return [
        *_clocks(workers),
        *_versions(workers),
        *_unserved(queues, workers),
        *_parked(await parked_views(store, parked, workers)),
        *_entries(entries, workers),
        *_lost_leases(running, known),
        *await _orphans(store, running),
    ]


# ── private ──────────────────────────────────────────────────────────────────────────────────────


def _clocks(workers: Sequence[WorkerInfo]) -> Iterator[Finding]:
    """Compare the clocks of workers with the store's. The store's own checkup compares it with ours."""
    wrong = {w.host: w.clock - w.seen_at for w in workers if w.clock and abs(w.clock - w.seen_at) > _SKEW}
    if wrong:
        hosts = [f"{host}: {_apart(ms)} the store's" for host, ms in wrong.items()]
        yield Finding(
            Level.WARNING,
            "clocks of workers",
            f"{_names(hosts)}. Instants that their tasks give (run_at, expires) are wrong by that",
            "set the clocks of all machines by NTP",
        )
    elif any(w.clock for w in workers):
        yield Finding(Level.FINE, "clocks of workers", "they agree with the store's within a second")


def _versions(workers: Sequence[WorkerInfo]) -> Iterator[Finding]:
    found = Counter(w.version or "unknown" for w in workers if w.state != "unreadable")
    counts = ", ".join(f"{n} of {version}" for version, n in sorted(found.items()))
    if len(found) > 1:
        yield Finding(
            Level.WARNING,
            "versions",
            f"workers of several versions run: {counts}",
            "finish the deployment: replace the older workers",
        )
    elif found and __version__ not in found:
        yield Finding(
            Level.WARNING,
            "versions",
            f"all workers are of another version than this command, {__version__}: {counts}",
            "use the version of the workers",
        )
    elif found:
        yield Finding(Level.FINE, "versions", f"all workers are of this version: {counts}")
    strange = [w.id for w in workers if w.state == "unreadable"]
    if strange:
        yield Finding(
            Level.WARNING,
            "versions",
            f"the records of {counted(len(strange), 'worker')} cannot be read ({_names(strange)})",
            "they may be of a newer version: use that version here",
        )


def _unserved(queues: Sequence[QueueInfo], workers: Sequence[WorkerInfo]) -> Iterator[Finding]:
    served = {name for w in workers for name in w.queues}
    fetched = {name for w in workers if w.state == "running" for name in w.queues}
    left = {q.name: sum(n for state, n in q.counts.items() if state not in TERMINAL) for q in queues}
    for how, names in (
        ("no live worker serves", {name for name in left if left[name] and name not in served}),
        ("no worker fetches any more from", {n for n in left if left[n] and n in served - fetched}),
    ):
        if names:
            each = [
                f"{name} ({counted(left[name], 'job')})"
                for name in sorted(names, key=lambda name: -left[name])
            ]
            yield Finding(
                Level.WARNING,
                "queues",
                f"{how} {_names(each)}",
                "start a worker with --queues that names "
                + ("it, or purge it" if len(names) == 1 else "them, or purge them"),
            )
    if queues and not any(left[name] and name not in fetched for name in left):
        yield Finding(Level.FINE, "queues", "each queue with unfinished jobs has a worker")


def _parked(views: Sequence[ParkedView]) -> Iterator[Finding]:
    for one in views:
        what = f"{counted(one.jobs, 'job')} of {one.task!r} in {one.queue!r}"
        if one.known_to:
            known = ", ".join(one.known_to[:3])
            yield Finding(Level.FINE, "parked jobs", f"{what}; the task is known to {known}")
        elif one.is_unknown:
            yield Finding(
                Level.WARNING,
                "parked jobs",
                f"{what}: no live worker knows the task",
                "start a worker that knows the task, or cancel them",
            )
        else:
            yield Finding(
                Level.WARNING,
                "parked jobs",
                f"{what}: {one.reason or 'no live worker takes them'}",
                "start a worker that can run them, or cancel them",
            )


def _entries(entries: Sequence[Entry], workers: Sequence[WorkerInfo]) -> Iterator[Finding]:
    gone = [f"{one.ref.queue}/{one.spec.name}" for one in entries if unserved(one, workers) == NOT_IN_CODE]
    if gone:
        yield Finding(
            Level.WARNING,
            "periodic entries",
            f"no running worker has {_names(gone)} in its code: no jobs are enqueued for "
            + ("it" if len(gone) == 1 else "them"),
            f"start a worker of the release that has {'it' if len(gone) == 1 else 'them'} (a burst enqueues "
            "no periodic jobs); if the code is gone for good, penstock periodic remove NAME",
        )
    elif entries:
        yield Finding(Level.FINE, "periodic entries", "running workers have all of the code's entries")


def _lost_leases(running: Sequence[Job], known: set[str]) -> Iterator[Finding]:
    lost = [job for job in running if job.worker not in known]
    if lost:
        holders = sorted({job.worker or "nobody" for job in lost})
        yield Finding(
            Level.WARNING,
            "leases",
            f"{_running(lost, running)} held by workers that are gone ({_names(holders)}), "
            f"e.g. {_names(_at(lost))}",
            "workers of their queues take them when the leases have run out; if none runs, start one "
            "(consumers over HTTP and app.take() are no workers: their jobs are listed here, too)",
        )
    elif running:
        yield Finding(Level.FINE, "leases", f"{_running(running, running)} held by live workers")


async def _orphans(store: Store, running: Sequence[Job]) -> list[Finding]:
    """Members of batches and flows that do not exist."""
    collecting = (await store.list_jobs(state=State.COLLECTING, limit=_JOBS)).jobs
    in_batch = [job for job in collecting if job.batch is not None]
    in_flow = [job for job in (*running, *collecting) if job.spec.flow is not None]
    batches = list(dict.fromkeys(Ref(job.queue, job.batch) for job in in_batch if job.batch))
    flows = list(dict.fromkeys(_flow_of(job) for job in in_flow))
    found = await store.get(batches) if batches else []
    gone = {ref for ref, batch in zip(batches, found, strict=True) if batch is None}
    infos = await store.get_flows(flows) if flows else []
    without = {ref for ref, info in zip(flows, infos, strict=True) if info is None}
    orphans = [
        ("batches", "batch", [job for job in in_batch if Ref(job.queue, job.batch or "") in gone]),
        ("flows", "flow", [job for job in in_flow if _flow_of(job) in without]),
    ]
    return [
        Finding(
            Level.WARNING,
            what,
            f"{counted(len(jobs), 'job')} {'is a member' if len(jobs) == 1 else 'are members'} of a {one} "
            f"that does not exist, e.g. {_names(_at(jobs))}",
            "look at them with penstock jobs show; duplicate or delete them",
        )
        for what, one, jobs in orphans
        if jobs
    ]


def _flow_of(job: Job) -> Ref:
    flow = job.spec.flow
    return Ref("", "") if flow is None else Ref(flow.queue, flow.id)


def _running(jobs: Sequence[Job], read: Sequence[Job]) -> str:
    least = "at least " if len(read) == _JOBS else ""
    return f"{least}{counted(len(jobs), 'running job')} {'is' if len(jobs) == 1 else 'are'}"


def _at(jobs: Sequence[Job]) -> list[str]:
    return [f"{job.queue}/{job.id}" for job in jobs]


def _apart(ms: int) -> str:
    return f"{abs(ms) / 1000:,.1f} s {'ahead of' if ms > 0 else 'behind'}"


def _names(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
