"""The last and the next runs of periodic entries: instants of their schedules, with the jobs that exist."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import msgspec

from penstock.core.errors import ConfigError
from penstock.core.formats import instant
from penstock.core.job import Job, Ref
from penstock.core.schedule import Entry, Schedule, id_at
from penstock.inspector.entry_views import EntryView, entry_view
from penstock.inspector.job_views import JobRow, job_row
from penstock.inspector.schedule_words import in_words
from penstock.stores.contract import Store

__all__ = ["EntryPageView", "EntryRunsView", "PreviewView", "RunView", "preview", "read_runs"]

#: The most runs of one kind, and how far back (ms) they are looked for.
_MOST, _FURTHEST = 50, 400 * 86_400_000
_LONGEST = 200


class RunView(msgspec.Struct, frozen=True):
    """An instant of a schedule. `job`: None if it does not exist yet, or is not kept any more.

    `passed`: the instant has passed.
    """

    at: str
    id: str
    passed: bool
    job: JobRow | None


class EntryRunsView(msgspec.Struct, frozen=True):
    """A periodic entry with its last and next runs, in the order of time. `last`: its newest job, if kept."""

    entry: EntryView
    runs: list[RunView]
    last: JobRow | None


class EntryPageView(msgspec.Struct, frozen=True):
    """A page of periodic entries, by queue and name. `next`: the `after` of the next page."""

    entries: list[EntryRunsView]
    next: str | None


class PreviewView(msgspec.Struct, frozen=True):
    """What a schedule means: in words, and its next instants."""

    words: str
    instants: list[str]


def preview(text: str, tz: str | None, after: int, count: int) -> PreviewView:
    """What a schedule means. Raises ConfigError for text that is none."""
    if len(text) > _LONGEST:
        raise ConfigError(f"a schedule has at most {_LONGEST} characters, not {len(text):,}")
    schedule = Schedule.of(text, tz=tz)
    return PreviewView(in_words(schedule), [instant(one) for one in islice(schedule.instants(after), count)])


async def read_runs(
    store: Store, entries: Sequence[Entry], now: int, last: int, next: int
) -> list[EntryRunsView]:
    """The last runs of each entry up to now, and the next ones; of an unreadable entry none."""
    runs = [_instants(entry, now, min(last, _MOST), min(next, _MOST)) for entry in entries]
    wanted = [
        Ref(entry.ref.queue, id_at(entry.spec.name, one))
        for entry, instants in zip(entries, runs, strict=True)
        for one in instants
    ]
    wanted += [Ref(entry.ref.queue, entry.last) for entry in entries if entry.last is not None]
    refs = list(dict.fromkeys(wanted))
    found = await store.get(refs) if refs else []
    jobs = {job.ref: job for job in found if job is not None}
    return [_view(entry, instants, jobs, now) for entry, instants in zip(entries, runs, strict=True)]


def _instants(entry: Entry, now: int, last: int, next: int) -> list[int]:
    if entry.unreadable is not None:
        return []
    schedule = entry.spec.schedule
    try:
        return [*schedule.latest(now - _FURTHEST, now, last), *islice(schedule.instants(now), next)]
    except ConfigError:  # a time zone unknown on this machine
        return []


def _view(entry: Entry, instants: Sequence[int], jobs: dict[Ref, Job], now: int) -> EntryRunsView:
    queue = entry.ref.queue

    def row(id: str) -> JobRow | None:
        job = jobs.get(Ref(queue, id))
        return None if job is None else job_row(job)

    ids = [id_at(entry.spec.name, one) for one in instants]
    runs = [RunView(instant(one), id, one <= now, row(id)) for one, id in zip(instants, ids, strict=True)]
    return EntryRunsView(entry_view(entry, now), runs, None if entry.last is None else row(entry.last))
