"""Periodic entries as operators see them. Instants are ISO 8601 in UTC, durations are seconds."""

from __future__ import annotations

import msgspec

from penstock.core.errors import ConfigError
from penstock.core.formats import iso, json_or_base64
from penstock.core.lifecycle import UNREADABLE
from penstock.core.schedule import Entry

__all__ = ["EntryView", "entry_view"]


class EntryView(msgspec.Struct, frozen=True, kw_only=True):
    """A periodic entry. `next_at` is its next instant without a job, without jitter; `by` is "code" or
    "operator"; `jitter` is in seconds; `last` is the id of its newest job."""

    queue: str
    name: str
    task: str
    schedule: str
    tz: str
    paused: bool
    by: str
    next_at: str | None
    misfire: str
    catch_up: int
    overlap: str
    jitter: float
    last: str | None
    enqueued: int
    skipped: int
    payload: msgspec.Raw | None
    payload_base64: str | None


def entry_view(entry: Entry, now: int) -> EntryView:
    """A periodic entry at the store's time `now`."""
    spec = entry.spec
    payload, base64 = json_or_base64(spec.job.payload)
    try:
        coming = None if entry.paused else spec.schedule.next(max(entry.watermark, now))
    except ConfigError:  # a time zone unknown on this machine
        coming = None
    return EntryView(
        queue=spec.job.queue,
        name=spec.name,
        task=spec.job.task,
        schedule=spec.schedule.text if entry.unreadable is None else UNREADABLE + entry.unreadable,
        tz=spec.schedule.tz,
        paused=entry.paused,
        by="code" if spec.by_code else "operator",
        next_at=iso(coming),
        misfire=spec.misfire,
        catch_up=spec.catch_up,
        overlap=spec.overlap,
        jitter=spec.jitter / 1000,
        last=entry.last,
        enqueued=entry.enqueued,
        skipped=entry.skipped,
        payload=payload,
        payload_base64=base64,
    )
