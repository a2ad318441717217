"""Read jobs from the answers of scripts, row by row; a damaged row does not affect the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from penstock.core.job import Job, Ref, stand_in
from penstock.core.lifecycle import UNREADABLE
from penstock.stores.redis.context import CallPlan, Context, command, raise_errors
from penstock.stores.redis.layout import STATES, UNDECODABLE, id_of
from penstock.stores.redis.profiles import UnknownProfile
from penstock.stores.redis.records import job_of
from penstock.stores.redis.script_arguments import by_queue

T = TypeVar("T")

#: The queue of a job, its stored id and its record, then other values that are needed to read it.
Row = tuple[Any, ...]


def read_quickly(context: Context, read: Callable[[], T]) -> CallPlan[T | None]:
    """Run `read` after loading all profiles that it needs; None if something cannot be read."""
    while True:
        try:
            return read()
        except UnknownProfile as unknown:
            if (yield from _learned(context, unknown)) is not None:
                return None
        except UNDECODABLE:
            return None


def leased_jobs(context: Context, rows: Sequence[Row], read: Callable[[Row], Job]) -> CallPlan[list[Job]]:
    """Read rows of jobs that were just leased; those that cannot be read are set aside."""
    jobs, causes = yield from _read_each(context, rows, read)
    refs = [Ref(rows[n][0], "") for n in causes]
    broken = list(causes)
    for queue, places in by_queue(refs).items():
        args: list[bytes | str | int] = []
        for place in places:
            _, id, record, *_ = rows[broken[place]]
            args += (id, record, causes[broken[place]])
        (answered,) = raise_errors((yield [context.call("set_aside", [queue], args)]))
        context.note_set_aside(answered)
    return [job for job in jobs if job is not None]


def shown(
    context: Context, queue: str, rows: Iterable[tuple[bytes, bytes, bytes | None]]
) -> CallPlan[list[Job]]:
    """Read jobs from rows (stored id, record, lease), with a stand-in for each that cannot be read."""
    whole: list[Row] = [(queue, *row) for row in rows]
    jobs, causes = yield from _read_each(context, whole, lambda row: job_of(context.profiles, *row))
    if not causes:
        return [job for job in jobs if job is not None]
    ids = [whole[n][1] for n in causes]
    (stands,) = raise_errors((yield [context.call("where", [queue], ids)]))
    for (n, cause), state, generation in zip(causes.items(), stands[0::2], stands[1::2], strict=True):
        _, id, record, _ = whole[n]
        spec = stand_in(Ref(queue, id_of(id)), record)
        jobs[n] = Job(spec, STATES[state], int(generation), reason=UNREADABLE + cause)
    return [job for job in jobs if job is not None]


def _read_each(
    context: Context, rows: Sequence[Row], read: Callable[[Row], Job]
) -> CallPlan[tuple[list[Job | None], dict[int, str]]]:
    """Return the jobs, None for each row that cannot be read, and the causes by row number."""
    quickly = yield from read_quickly(context, lambda: [read(row) for row in rows])
    if quickly is not None:
        return list(quickly), {}
    jobs: list[Job | None] = []
    causes: dict[int, str] = {}
    lost: dict[tuple[str, bytes], str] = {}
    for n, row in enumerate(rows):
        job = None
        while job is None and n not in causes:
            try:
                job = read(row)
            except UnknownProfile as unknown:
                key = unknown.queue, unknown.digest
                why = lost.get(key) or (yield from _learned(context, unknown))
                if why is not None:
                    causes[n] = lost[key] = why
            except UNDECODABLE as error:
                causes[n] = f"the stored bytes are not the record of a job ({error})"
        jobs.append(job)
    return jobs, causes


def _learned(context: Context, unknown: UnknownProfile) -> CallPlan[str | None]:
    """Read a profile into the cache; returns the cause if it cannot be read."""
    key = context.redis_keys.queue(unknown.queue) + b":profiles"
    (text,) = raise_errors((yield [command(key, "HGET", key, unknown.digest)]))
    name = unknown.digest.hex()
    if text is None:
        return f"the profile {name} of its task is missing; was the key {key.decode()} deleted?"
    try:
        context.profiles.learn(unknown.queue, unknown.digest, text)
    except UNDECODABLE as error:
        return f"the profile {name} of its task cannot be read ({error})"
    return None
