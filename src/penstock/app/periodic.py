"""Periodic entries: a task with its schedule, and the jobs to enqueue for it by now.

Pure functions: from an entry and the store's time they make a `Tick` for the store to apply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal, TypedDict

from msgspec.structs import replace

from penstock.app.task import Task, Using
from penstock.client.job_checks import check_storable
from penstock.core.errors import ConfigError, did_you_mean
from penstock.core.formats import Duration, milliseconds
from penstock.core.ids import check_id
from penstock.core.job import NewJob
from penstock.core.schedule import Entry, Misfire, NewEntry, Overlap, Schedule, id_at
from penstock.stores.contract import Tick

#: A job is enqueued this long before its instant (ms), so that another worker can take over from one that
#: dies just then. With an `Overlap` rule it is enqueued at the instant, because the previous job must be
#: known.
AHEAD = 2_000
#: An instant that passed longer ago than this (ms) was missed: the misfire policy applies.
LATE = 5_000
#: Maximum number of jobs per tick; the others follow in the next tick.
_AT_ONCE = 200
_MOST_CAUGHT_UP = 10_000
#: Maximum length of a name: a job's id is the name, "@" and the instant.
_LONGEST_NAME = 100

MisfirePolicy = Literal["skip", "once", "all"]
OverlapPolicy = Literal["allow", "skip", "replace"]


class PeriodicOptions(TypedDict, total=False):
    """Options of `app.periodic(...)`."""

    every: Duration
    tz: str
    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    misfire: MisfirePolicy
    catch_up: int
    overlap: OverlapPolicy
    jitter: Duration


# ── writing an entry ─────────────────────────────────────────────────────────────────────────────


def of_task(
    task: Task[..., Any] | Using[..., Any],
    schedule: Schedule,
    *,
    name: str | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **policies: Any,
) -> NewEntry:
    """Make the entry of this call. Raises ArgumentError if the arguments do not fit the task."""
    if not isinstance(task, (Task, Using)):
        raise ConfigError(
            f"task={task!r} is not a task: pass what @app.task made, or task.using(...) for other options"
        )
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise ConfigError(f"args={args!r} is not a list of arguments: write args=[...]")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ConfigError(f"kwargs={kwargs!r} is not a mapping of names to arguments")
    call = task.job(*args, **(kwargs or {}))
    if call.given_id:
        raise ConfigError(
            f"id={call.given_id!r}: the ids of a periodic entry's jobs are its name and their instants: "
            "give it a name="
        )
    # all releases write the same entry, and any of them runs its jobs: they carry the oldest name
    job = replace(call.new(), task=call.template.identity)
    return new_entry(job.task if name is None else name, job, schedule, **policies)


def new_entry(
    name: str,
    job: NewJob,
    schedule: Schedule,
    *,
    misfire: MisfirePolicy = "once",
    catch_up: int = 100,
    overlap: OverlapPolicy = "allow",
    jitter: Duration = 0,
    by_code: bool = False,
) -> NewEntry:
    """Make an entry that enqueues jobs like `job`. Raises ConfigError for an invalid entry."""
    check_name(name)
    who = f"the periodic entry {name!r}"
    check_storable(job, who)
    if job.run_at is not None or job.delay:
        raise ConfigError(f"{who}: its schedule sets when its jobs are due: leave run_at= and delay= out")
    if job.expires_at is not None or job.deadline is not None:
        raise ConfigError(
            f"{who}: an instant would be the same for all its jobs: give expires= a duration, no deadline="
        )
    if not isinstance(catch_up, int) or isinstance(catch_up, bool) or not 1 <= catch_up <= _MOST_CAUGHT_UP:
        raise ConfigError(f"{who}: catch_up={catch_up!r} is not a whole number from 1 to {_MOST_CAUGHT_UP}")
    return NewEntry(
        name,
        replace(job, id=""),
        schedule,
        _one_of(Misfire, misfire, "misfire", who),
        catch_up,
        _one_of(Overlap, overlap, "overlap", who),
        milliseconds(jitter, what="jitter"),
        by_code,
    )


def check_name(name: str) -> str:
    """Return the name if an entry may have it. Raises ConfigError otherwise."""
    try:
        if len(plain := check_id(name)) <= _LONGEST_NAME:
            return plain
    except ConfigError:
        pass
    raise ConfigError(
        f"name={name!r} cannot be the name of a periodic entry: use 1 to {_LONGEST_NAME} of the characters "
        "A-Z a-z 0-9 . _ : @ + = ~ -"
    )


def _one_of(kind: Any, value: Any, what: str, who: str) -> Any:
    known = [str(one) for one in kind]
    if value not in known:
        near = did_you_mean(value, known) if isinstance(value, str) else ""
        raise ConfigError(f"{who}: {what}={value!r} is not one of {', '.join(known)}{near}")
    return kind(value)


# ── what is due ──────────────────────────────────────────────────────────────────────────────────


def next_tick(entry: Entry, now: int) -> Tick | None:
    """The tick that the entry needs at the store's time `now`; None: none."""
    if entry.paused:
        return None
    spec, ahead, edge = entry.spec, _ahead(entry), now - LATE
    missed = spec.schedule.latest(entry.watermark, edge, _made_up_for(spec))
    coming = spec.schedule.between(max(entry.watermark, edge), now + ahead, _AT_ONCE)
    instants = (missed + coming)[:_AT_ONCE]
    if not instants:
        return None
    return Tick(
        entry.ref,
        entry.revision,
        entry.watermark,
        to=instants[-1],
        not_before=instants[-1] - ahead,
        overlap=spec.overlap,
        jobs=tuple(job_at(spec, instant) for instant in instants),
    )


def wait_ms(entry: Entry, now: int) -> int | None:
    """Milliseconds until the entry needs a tick; None: not until it is changed."""
    if entry.paused:
        return None
    # instants missed before that are never caught up with
    coming = entry.spec.schedule.next(max(entry.watermark, now - LATE))
    return None if coming is None else max(0, coming - _ahead(entry) - now)


def job_at(spec: NewEntry, instant: int) -> NewJob:
    """The entry's job of this instant; every worker makes the same."""
    due = instant + _jitter(spec, instant)
    expires_in = spec.job.expires_in
    return replace(
        spec.job,
        id=id_at(spec.name, instant),
        run_at=due,
        expires_in=None,  # it would count from the enqueue
        expires_at=None if expires_in is None else due + expires_in,
    )


def _ahead(entry: Entry) -> int:
    return AHEAD if entry.spec.overlap is Overlap.ALLOW else 0


def _made_up_for(spec: NewEntry) -> int:
    match spec.misfire:
        case Misfire.SKIP:
            return 0
        case Misfire.ONCE:
            return 1
        case Misfire.ALL:
            return spec.catch_up


def _jitter(spec: NewEntry, instant: int) -> int:
    """Jitter in ms, derived from the instant, so that all workers compute the same."""
    if spec.jitter == 0:
        return 0
    digest = blake2b(f"{spec.job.queue}/{spec.name}@{instant}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % (spec.jitter + 1)
