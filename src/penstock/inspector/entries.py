"""Periodic entries: what keeps them from having jobs, their last and next runs, and jobs triggered now."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice

import msgspec
from msgspec.structs import asdict, replace

from penstock.core.errors import ConfigError
from penstock.core.formats import instant
from penstock.core.ids import mint
from penstock.core.job import TERMINAL, Job, NewJob, Ref
from penstock.core.lifecycle import UNREADABLE
from penstock.core.schedule import Entry, Overlap, Schedule, id_at
from penstock.encryption import why_not_here
from penstock.inspector.job_acts import Change
from penstock.inspector.job_views import row_of
from penstock.inspector.schedule_words import in_words
from penstock.stores.contract import DUE_LATER, EnqueueStatus, Store, Tick, TickStatus, WorkerInfo

# ── entries ──────────────────────────────────────────────────────────────────────────────────────

#: Why no job is enqueued for an entry although it is not paused.
NOT_IN_CODE = "no running worker has it in its code"
_NO_WORKER = "no running worker serves its queue"


class EntryView(Entry, frozen=True, kw_only=True):
    """A periodic entry at the store's time `now`, and what keeps it from having jobs.

    - `unserved`: why no worker enqueues its jobs; "" if one does or the entry is paused.
    - `skipping`: which unfinished job makes it skip its instants; "" if none does.
    - `words`: its schedule as people say it; "" if there is no such sentence.
    - `next_at`: its next instant without a job, without jitter; None if it is paused or its code is gone.
    """

    now: int
    unserved: str = ""
    skipping: str = ""
    words: str = ""
    next_at: int | None = None

    @property
    def queue(self) -> str:
        return self.ref.queue

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def task(self) -> str:
        return self.spec.job.task

    @property
    def by(self) -> str:
        """The maker of the entry: "code" or "operator"."""
        return "code" if self.spec.by_code else "operator"

    @property
    def schedule(self) -> str:
        """The text of its schedule; of an unreadable entry, why it is unreadable."""
        return self.spec.schedule.text if self.unreadable is None else UNREADABLE + self.unreadable

    @property
    def tz(self) -> str:
        return self.spec.schedule.tz


def unserved(entry: Entry, workers: Sequence[WorkerInfo]) -> str:
    """Why none of the live workers enqueues the entry's jobs; "" if one does, or may, or if it is paused."""
    serving = [worker for worker in workers if entry.ref.queue in worker.queues]
    if entry.paused or entry.unreadable is not None:
        return ""
    if not serving:
        return _NO_WORKER
    if not entry.spec.by_code:
        return ""
    address = f"{entry.ref.queue}/{entry.spec.name}"
    known = any(worker.entries is None or address in worker.entries for worker in serving)
    return "" if known else NOT_IN_CODE


async def entry_views(store: Store, entries: Sequence[Entry], now: int) -> list[EntryView]:
    """Periodic entries at the store's time `now`, with what keeps them from having jobs."""
    workers = await store.workers() if entries else []
    skip = [one for one in entries if one.spec.overlap is Overlap.SKIP and one.last is not None]
    refs = [Ref(one.ref.queue, one.last or "") for one in skip]
    last = {job.ref: job for job in (await store.get(refs) if refs else []) if job is not None}
    return [
        entry_view(one, now, workers, None if one.last is None else last.get(Ref(one.ref.queue, one.last)))
        for one in entries
    ]


def _skipping(entry: Entry, last: Job | None) -> str:
    if entry.spec.overlap is not Overlap.SKIP or entry.paused or last is None or last.state in TERMINAL:
        return ""
    due = f", due at {instant(last.run_at)}" if last.state in DUE_LATER else ""
    return f"its last job is {last.state.value}{due}: instants are skipped until it has ended"


def entry_view(
    entry: Entry, now: int, workers: Sequence[WorkerInfo] | None = None, last: Job | None = None
) -> EntryView:
    """A periodic entry at the store's time `now`.

    `workers`, `last`: the live workers and its newest job, for what keeps it from having jobs.
    """
    why = "" if workers is None else unserved(entry, workers)
    return EntryView(
        **asdict(entry),
        now=now,
        unserved=why,
        skipping=_skipping(entry, last),
        words=in_words(entry.spec.schedule) if entry.unreadable is None else "",
        next_at=None if entry.paused or why == NOT_IN_CODE else _next(entry, now),
    )


def _next(entry: Entry, now: int) -> int | None:
    try:
        return entry.spec.schedule.next(max(entry.watermark, now))
    except ConfigError:  # a time zone unknown on this machine
        return None


#: The most runs of one kind, and how far back (ms) they are looked for.
_MOST, _FURTHEST = 50, 400 * 86_400_000


# ── runs of an entry ─────────────────────────────────────────────────────────────────────────────

_LONGEST = 200


class RunView(msgspec.Struct, frozen=True):
    """An instant of a schedule. `job`: None if it does not exist yet, or is not kept any more.

    `passed`: the instant has passed.
    """

    at: int
    id: str
    passed: bool
    job: Job | None


class EntryRunsView(msgspec.Struct, frozen=True):
    """A periodic entry with its last and next runs, in the order of time. `last`: its newest job, if kept."""

    entry: EntryView
    runs: list[RunView]
    last: Job | None


class EntryPageView(msgspec.Struct, frozen=True):
    """A page of periodic entries, by queue and name. `next`: the `after` of the next page."""

    entries: list[EntryRunsView]
    next: str | None


class PreviewView(msgspec.Struct, frozen=True):
    """What a schedule means: in words, and its next instants."""

    words: str
    instants: list[int]


def preview(text: str, tz: str | None, after: int, count: int) -> PreviewView:
    """What a schedule means. Raises ConfigError for text that is none."""
    if len(text) > _LONGEST:
        raise ConfigError(f"a schedule has at most {_LONGEST} characters, not {len(text):,}")
    schedule = Schedule.of(text, tz=tz)
    return PreviewView(in_words(schedule), [*islice(schedule.instants(after), count)])


async def read_runs(
    store: Store, entries: Sequence[Entry], now: int, last: int, next: int
) -> list[EntryRunsView]:
    """The last runs of each entry up to now, and the next ones; of an unreadable entry none."""
    workers = await store.workers() if entries else []
    runs = [_instants(entry, now, min(last, _MOST), min(next, _MOST)) for entry in entries]
    wanted = [
        Ref(entry.ref.queue, id_at(entry.spec.name, one))
        for entry, instants in zip(entries, runs, strict=True)
        for one in instants
    ]
    wanted += [Ref(entry.ref.queue, entry.last) for entry in entries if entry.last is not None]
    refs = list(dict.fromkeys(wanted))
    found = await store.get(refs) if refs else []
    jobs = {job.ref: row_of(job) for job in found if job is not None}
    return [_view(entry, instants, jobs, now, workers) for entry, instants in zip(entries, runs, strict=True)]


def _instants(entry: Entry, now: int, last: int, next: int) -> list[int]:
    if entry.unreadable is not None:
        return []
    schedule = entry.spec.schedule
    try:
        return [*schedule.latest(now - _FURTHEST, now, last), *islice(schedule.instants(now), next)]
    except ConfigError:  # a time zone unknown on this machine
        return []


def _view(
    entry: Entry, instants: Sequence[int], jobs: dict[Ref, Job], now: int, workers: Sequence[WorkerInfo]
) -> EntryRunsView:
    queue = entry.ref.queue
    ids = [id_at(entry.spec.name, one) for one in instants]
    runs = [
        RunView(one, id, one <= now, jobs.get(Ref(queue, id))) for one, id in zip(instants, ids, strict=True)
    ]
    newest = None if entry.last is None else jobs.get(Ref(queue, entry.last))
    view = entry_view(entry, now, workers, newest)
    if view.unserved == NOT_IN_CODE:  # its coming instants have no jobs
        runs = [run for run in runs if run.passed or run.job is not None]
    return EntryRunsView(view, runs, newest)


# ── run now ──────────────────────────────────────────────────────────────────────────────────────

#: How often an entry is tried that a worker ticks between the look and the trigger.
_TRIES = 3


async def trigger(store: Store, entry: Entry) -> Change:
    """Enqueue one job of the entry now; its watermark stays, so that its next jobs come at their instants.

    The overlap rule of the entry applies, except to a paused entry. Raises ConfigError if the entry, or the
    contents of its jobs, cannot be read here.
    """
    ref = entry.ref
    for _ in range(_TRIES):
        table = await store.entries([ref.queue])
        found = next((one for one in table.entries if one.ref == ref), None)
        if found is None:
            return Change(ref.queue, ref.id, "missing", "no such periodic entry")
        _check_readable(found)
        job = _job(found, table.now)
        if found.paused:
            (enqueued,) = await store.enqueue([job])
            return _change(ref, job, enqueued.status is EnqueueStatus.NEW)
        tick = _tick(found, job)
        (answer,) = await store.tick([tick])
        if answer.status is TickStatus.APPLIED:
            return _change(ref, job, job.id in answer.enqueued)
        if answer.status is TickStatus.UNKNOWN:
            return Change(ref.queue, ref.id, "refused", "not triggered: its queue is unreachable")
    return Change(ref.queue, ref.id, "refused", "not triggered: it keeps changing: try again")


def _tick(entry: Entry, job: NewJob) -> Tick:
    """A tick that enqueues the job and leaves the watermark where it is."""
    mark = entry.watermark
    overlap = entry.spec.overlap
    return Tick(entry.ref, entry.revision, mark, to=mark, not_before=0, overlap=overlap, jobs=(job,))


def _check_readable(entry: Entry) -> None:
    why = entry.unreadable or why_not_here(entry.spec.job.payload)
    if why is not None:
        raise ConfigError(f"the periodic entry {entry.spec.name!r} cannot be triggered here: {why}")


def _job(entry: Entry, now: int) -> NewJob:
    """A job of the entry that is due now. Its id tells that no instant of the schedule has made it."""
    at = datetime.fromtimestamp(now // 1_000, UTC)
    id = f"{entry.spec.name}@{at:%Y%m%dT%H%M%SZ}-{mint()[-8:]}"
    return replace(entry.spec.job, id=id, delay=0, run_at=None)


def _change(ref: Ref, job: NewJob, new: bool) -> Change:
    if new:
        return Change(ref.queue, ref.id, "done", f"triggered: job {job.id}")
    why = "its last job has not ended, another job holds its unique key, or its queue is closed or full"
    return Change(ref.queue, ref.id, "refused", f"not triggered: {why}")
