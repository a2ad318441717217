"""Checks jobs made by middleware or other code: every store can keep and every worker can run them.

The options of a call are checked one by one before; these checks are for complete jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.core.errors import ConfigError
from penstock.core.formats import INSTANTS, LONGEST
from penstock.core.ids import check_task_name
from penstock.core.job import MOST_ATTEMPTS, PRIORITIES, NewJob
from penstock.core.limits import Rate
from penstock.core.relations import (
    MAX_BATCH,
    MOST_AT_ONCE,
    MOST_PARTITION_KEY,
    MOST_WEIGHT,
    BatchTerms,
    Partition,
    Tenant,
)
from penstock.core.retry import checked
from penstock.core.running import running_attempt
from penstock.core.text import plain
from penstock.core.unique import ALL_PHASES, UniqueKey

_write_job = msgspec.msgpack.Encoder().encode
_read_job = msgspec.msgpack.Decoder(NewJob).decode

#: Minimum and maximum of each number. None, where allowed, means no limit.
_BOUNDS: dict[str, tuple[int, int]] = {
    "priority": (PRIORITIES[0], PRIORITIES[-1]),
    "delay": (0, LONGEST),
    "run_at": INSTANTS,
    "expires_in": (1, LONGEST),
    "expires_at": INSTANTS,
    "timeout": (1, LONGEST),
    "deadline": INSTANTS,
    "max_attempts": (1, MOST_ATTEMPTS),
    "retention": (0, LONGEST),
    "keep_dead": (0, LONGEST),
}

#: Maximum size of a job's headers (characters). Each fetch of the job transfers them.
_HEADERS_KEPT = 16_000

#: The number's name, its value, its minimum and its maximum.
_Number = tuple[str, int | None, int, int]


def check_storable(job: NewJob, who: str) -> None:
    """Raise ConfigError for a job that a store could not keep or a worker could not read or run.

    `who` names the code that made the job.
    """
    try:
        _read_job(_write_job(job))
    except (msgspec.ValidationError, UnicodeEncodeError, OverflowError, TypeError) as error:
        raise ConfigError(f"{who} made a job that cannot be stored: {error}") from None
    for what, number, least, most in _numbers(job):
        if number is not None and not least <= number <= most:
            raise ConfigError(f"{who} gave a job {what}={number}: use {least} to {most}")
    try:
        _check_words(job)
    except ConfigError as error:
        raise ConfigError(f"{who} made an invalid job: {error}") from None


def check_headers(value: Any) -> dict[str, str]:
    """Check headers and return them as they are stored: a mapping of names to texts, of limited size."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"headers={value!r} is not a mapping of names to texts")
    headers: dict[str, str] = {}
    for name, text in value.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise ConfigError(f"headers: {name!r}={text!r} is not a text under a name that is a text")
        name, text = plain(name), plain(text)
        headers[name] = text
        try:
            (name + text).encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"headers: {name!r}={text!r} holds half of a character (\\ud800 to \\udfff), which cannot be "
                "stored: encode it some other way, as base64 does"
            ) from None
    size = sum(len(name) + len(text) for name, text in headers.items())
    if size > _HEADERS_KEPT:
        raise ConfigError(
            f"headers take {size} characters, the limit is {_HEADERS_KEPT}; pass large data as arguments"
        )
    return headers


def _numbers(job: NewJob) -> Iterator[_Number]:
    for name, (least, most) in _BOUNDS.items():
        yield name, getattr(job, name), least, most
    if job.unique is not None:
        yield from _of_unique(job.unique)
    if job.partition is not None:
        yield from _of_partition(job.partition)
    if job.tenant is not None:
        yield from _of_tenant(job.tenant)
    if job.batch_terms is not None:
        yield from _of_batch(job.batch_terms)


def _of_unique(unique_key: UniqueKey) -> Iterator[_Number]:
    yield "len(unique.key)", len(unique_key.key.encode()), 1, MOST_PARTITION_KEY
    yield "unique.period", unique_key.period, 1, LONGEST
    yield "unique.phases", unique_key.phases, 1, ALL_PHASES


def _of_partition(partition: Partition) -> Iterator[_Number]:
    yield "len(partition.key)", len(partition.key.encode()), 1, MOST_PARTITION_KEY
    yield "partition.most", partition.most, 1, MOST_AT_ONCE


def _of_tenant(tenant: Tenant) -> Iterator[_Number]:
    yield "len(tenant.key)", len(tenant.key.encode()), 1, MOST_PARTITION_KEY
    yield "tenant.weight", tenant.weight, 1, MOST_WEIGHT


def _of_batch(terms: BatchTerms) -> Iterator[_Number]:
    yield "batch_terms.size", terms.size, 1, MAX_BATCH
    yield "batch_terms.wait", terms.wait, 1, LONGEST
    yield "batch_terms.grace", terms.grace, 1, LONGEST


def _check_words(job: NewJob) -> None:
    if job.task:  # a raw job need not have one
        check_task_name(job.task)
    if job.headers:
        check_headers(job.headers)
    if job.retry is not None:
        checked(job.retry)
    if job.partition is not None and job.partition.rate is not None:
        Rate.of(job.partition.rate, what="partition.rate")
    if job.batch_terms is not None and job.batch_terms.wait is job.batch_terms.grace is None:
        raise ConfigError(
            "batch_terms has neither wait nor grace: a batch that is never full would wait for ever"
        )


# ── inherited headers ────────────────────────────────────────────────────────────────────────────

# Headers that jobs inherit from the job that enqueues them, such as a tenant or a trace context.


def with_inherited_headers(new: NewJob) -> NewJob:
    """The job with the headers of the running job added to its own, which win.

    Raises ConfigError if they are too large together.
    """
    attempt = running_attempt.get(None)
    inherited = None if attempt is None else attempt.inherited_headers
    if not inherited or inherited == new.headers:
        return new
    if not new.headers:
        return replace(new, headers=inherited)
    return replace(new, headers=check_headers({**inherited, **new.headers}))
