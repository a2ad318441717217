"""Publish requests: from parameters, headers and body to jobs, and the answers."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from penstock.core.job import NewJob
from penstock.dialects.lmstfy.bodies import error, json_text, plain_reply
from penstock.dialects.lmstfy.defaults import Defaults
from penstock.dialects.lmstfy.job_ids import mint_job_id
from penstock.dialects.lmstfy.jobs import new_job, request_key
from penstock.dialects.lmstfy.names import store_queue
from penstock.dialects.lmstfy.parameters import RefusedError, number, read_query
from penstock.dialects.lmstfy.routes import Action, Route
from penstock.stores.contract import Enqueued, EnqueueStatus
from penstock.web.exchange import Exchange

__all__ = ["BODY_LIMITS", "MOST_BODY", "all_published", "published", "read_job", "read_jobs"]

#: Maximum size of a job's body, and number of jobs of a bulk request.
MOST_BODY = 1_048_576
_MOST_JOBS = 64
#: Maximum number of attributes of a job, and length of their keys and values.
_MOST_ATTRIBUTES, _MOST_KEY, _MOST_VALUE = 16, 32, 128
_ATTRIBUTE = b"job-attr-"
_IDEMPOTENCY_KEY = b"idempotency-key"
_LONGEST_IDEMPOTENCY_KEY = 255
#: Statuses of a job that is stored: by this request, or by an earlier one with its idempotency key.
_PUBLISHED = (EnqueueStatus.NEW, EnqueueStatus.DUPLICATE)
_BLANK = b" \t\r\n"
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_RAW_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])

#: The largest body of a request by its action. The bulk request may have 64 jobs of the maximum size.
BODY_LIMITS = {
    Action.PUBLISH: MOST_BODY,
    Action.REPUBLISH: MOST_BODY,
    Action.BULK: (_MOST_JOBS + 1) * MOST_BODY,
}


class PublishTerms(NamedTuple):
    """The parameters of a publish request; times in seconds."""

    delay: int
    ttl: int
    tries: int


@functools.lru_cache(maxsize=1_024)
def _read_terms(query: bytes, defaults: Defaults) -> PublishTerms:
    given = read_query(query)
    delay = number(given, "delay", defaults.delay)
    ttl = number(given, "ttl", defaults.ttl)
    if 0 < ttl < delay:
        raise RefusedError(400, "ttl is shorter than delay")
    tries = number(given, "tries", defaults.tries, bits=16)
    if tries == 0:
        raise RefusedError(400, "tries shouldn't be zero")
    return PublishTerms(delay, ttl, tries)


def read_job(exchange: Exchange, route: Route, defaults: Defaults) -> NewJob:
    """The job of a publish or republish request. Raises RefusedError."""
    terms = _read_terms(exchange.query, defaults)
    if exchange.too_large:
        raise RefusedError(413, "body too large")
    versioned = (exchange.header(b"enable-job-version") or "").upper() == "YES"
    attributes = _attributes(exchange) if versioned else None
    queue = store_queue(route.namespace, route.queue)
    key = _idempotency_key(exchange)
    return new_job(
        queue,
        mint_job_id(terms.delay, versioned=versioned),
        exchange.body,
        delay=terms.delay,
        ttl=terms.ttl,
        tries=terms.tries,
        attributes=attributes,
        unique=None if key is None else request_key(key),
    )


def read_jobs(exchange: Exchange, route: Route, defaults: Defaults) -> list[NewJob]:
    """The jobs of a bulk request, each with the bytes of its element as sent. Raises RefusedError."""
    terms = _read_terms(exchange.query, defaults)
    if exchange.too_large:
        raise RefusedError(413, "job too large")
    bodies = _elements(exchange.body)
    if not bodies:
        raise RefusedError(400, "no jobs")
    if len(bodies) > _MOST_JOBS:
        raise RefusedError(400, "too many jobs")
    if any(len(body) > MOST_BODY for body in bodies):
        raise RefusedError(413, "job too large")
    versioned = (exchange.header(b"enable-job-version") or "").upper() == "YES"
    attributes = _attributes(exchange) if versioned else None
    queue = store_queue(route.namespace, route.queue)
    key = _idempotency_key(exchange)
    return [
        new_job(
            queue,
            mint_job_id(terms.delay, versioned=versioned),
            body,
            delay=terms.delay,
            ttl=terms.ttl,
            tries=terms.tries,
            attributes=attributes,
            unique=None if key is None else request_key(f"{key}\0{n}"),
        )
        for n, body in enumerate(bodies)
    ]


def published(one: Enqueued) -> bytes:
    """The answer of a publish or republish request."""
    if one.status not in _PUBLISHED:
        return _not_stored([one])
    return _marked(plain_reply(201, b'{"job_id":"%b","msg":"published"}' % one.id.encode()), [one])


def all_published(answers: Sequence[Enqueued]) -> bytes:
    """The answer of a bulk request. If a job is not stored, the client may repeat the whole request."""
    if any(one.status not in _PUBLISHED for one in answers):
        return _not_stored(answers)
    body = json_text({"job_ids": [one.id for one in answers], "msg": "published"})
    return _marked(plain_reply(201, body), answers)


def _marked(answer: bytes, answers: Sequence[Enqueued]) -> bytes:
    """The answer, with a header if it is that of an earlier request with this key."""
    if answers[0].status is EnqueueStatus.NEW:
        return answer
    return answer.replace(b"\r\n\r\n", b"\r\nIdempotent-Replayed: true\r\n\r\n", 1)


def _not_stored(answers: Sequence[Enqueued]) -> bytes:
    """500, or 503 with `Retry-After` if all that is wrong is that the queue is full or closed."""
    refused = [one for one in answers if one.status not in _PUBLISHED]
    if any(one.status not in (EnqueueStatus.FULL, EnqueueStatus.CLOSED) for one in refused):
        return error(500, "internal error")
    seconds = max(1, math.ceil(max((one.retry_after or 0) for one in refused) / 1_000))
    full = any(one.status is EnqueueStatus.FULL for one in refused)
    return error(503, "queue is full" if full else "queue is closed", seconds)


def _elements(body: bytes) -> list[bytes]:
    """The elements of a JSON array, byte for byte.

    Go accepts escapes of single surrogates, which our decoder does not: it gets a copy without them, of the
    same length.
    """
    if body.strip(_BLANK) == b"null":
        return []
    readable = _SURROGATE.sub(b"\\\\u0020", body) if b"\\u" in body else body
    try:
        found = _RAW_ELEMENTS.decode(readable)
        if readable is body:
            return [bytes(raw) for raw in found]
        elements: list[bytes] = []
        end = readable.index(b"[") + 1
        for raw in found:
            start = readable.index(bytes(raw), end)
            end = start + len(bytes(raw))
            elements.append(body[start:end])
        return elements
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise RefusedError(400, "request body should be an array of objects") from None


def _idempotency_key(exchange: Exchange) -> str | None:
    """The key of a request that its client may repeat. Raises RefusedError."""
    for name, value in exchange.headers:
        if name.endswith(_IDEMPOTENCY_KEY) and name in (_IDEMPOTENCY_KEY, b"x-" + _IDEMPOTENCY_KEY):
            if not 1 <= len(value) <= _LONGEST_IDEMPOTENCY_KEY:
                raise RefusedError(400, "invalid idempotency key")
            return value.decode("latin-1")
    return None


def _attributes(exchange: Exchange) -> dict[str, str]:
    found: dict[str, str] = {}
    seen: set[bytes] = set()
    for name, value in exchange.headers:
        if not name.startswith(_ATTRIBUTE) or name in seen:
            continue
        seen.add(name)
        if value:
            key = name[len(_ATTRIBUTE) :].decode("latin-1")[:_MOST_KEY]
            found[key] = value.decode("utf-8", "replace")[:_MOST_VALUE]
    if len(found) > _MOST_ATTRIBUTES:
        raise RefusedError(400, "too many attributes, cannot exceed 16")
    return found
