"""lmstfy's jobs: how a publish request becomes jobs of Penstock, and how these are shown and end."""

from __future__ import annotations

import math
import re
from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from penstock.core.formats import LONGEST
from penstock.core.job import AttemptError, Job, NewJob, State
from penstock.core.lifecycle import ASK_CANCELLED, Transition, decide
from penstock.core.outcomes import Cancelled, Expired, LeaseLost
from penstock.core.retry import Fixed
from penstock.core.unique import ALL_PHASES, UniqueKey, key_digest
from penstock.dialects.lmstfy.names import elapsed_ms, mint_job_id, store_queue
from penstock.dialects.lmstfy.requests import (
    Action,
    RefusedError,
    Route,
    error,
    json_text,
    number,
    plain_reply,
    read_query,
    text,
)
from penstock.dialects.lmstfy.settings import Defaults
from penstock.stores.contract import Enqueued, EnqueueStatus
from penstock.web.exchange import Exchange
from penstock.web.text_cache import TextCache

#: The task of every job that is published here.
TASK = "lmstfy"
#: A lost job is delivered again at once.
_AT_ONCE = Fixed(0)
#: For this long (ms) a repeated publish request gets the id of the first one.
_REMEMBERED = 86_400_000
_ACKNOWLEDGED = Transition(State.COMPLETED)


def new_job(
    queue: str,
    id: str,
    body: bytes,
    *,
    delay: int,
    ttl: int,
    tries: int,
    attributes: Mapping[str, str] | None,
    unique: UniqueKey | None = None,
) -> NewJob:
    """The job of a publish request; `queue` is the store's, `delay` and `ttl` are in seconds.

    Its dead letter is kept until it is respawned or deleted. `unique`: the key of the request.
    """
    return NewJob(
        id,
        TASK,
        body,
        queue,
        delay=delay * 1_000,
        expires_in=ttl * 1_000 if ttl else None,
        timeout=None,
        max_attempts=tries,
        retry=_AT_ONCE,
        headers=dict(attributes) if attributes else None,
        keep_dead=LONGEST,
        unique=unique,
        fetch_starts=True,
    )


def request_key(key: str) -> UniqueKey:
    """The unique key of a publish request that a client may repeat: held for 24 hours, even after the job."""
    return UniqueKey(key_digest(TASK, "idempotency", key.encode()), _REMEMBERED, ALL_PHASES)


def acknowledged() -> Transition:
    """The transition of a running job that was acknowledged: it is removed and counts as processed."""
    return _ACKNOWLEDGED


def after_ttr(job: Job, now: int, *, late: int = 0) -> Transition:
    """The transition of a job that was not acknowledged within its TTR, which ended `late` ms ago.

    - TTL over: cancelled as expired, as lmstfy neither delivers it again nor keeps it as a dead letter; but
      dead if no try is left and the TTL was not over when the TTR ended.
    - Else as `fetch_starts` says: to the tail of its queue at once, or dead if no try is left.
    """
    error = AttemptError.bounded(job.attempt, now, "LeaseLost", "not acknowledged within its TTR")
    if job.cancel_asked:
        return replace(decide(job, Cancelled(ASK_CANCELLED), now), lost=True, reason=None)
    to = decide(job, LeaseLost(error, started=True), now)
    in_time = now - late if to.state is State.DEAD else now
    if job.expires_at is not None and job.expires_at <= in_time:
        return replace(decide(job, Expired(), now), lost=True, charge=True)
    return to


def exists(job: Job | None, now: int) -> bool:
    """Whether lmstfy would still have this job: it has not ended, or it is dead, and its TTL is not over."""
    if job is None or job.state in (State.COMPLETED, State.CANCELLED):
        return False
    return job.state is State.DEAD or job.expires_at is None or job.expires_at > now


def ttl_left(job: Job, now: int) -> int:
    """Seconds until the job's TTL is over, rounded half up; 0: never. A dead letter has no TTL."""
    if job.expires_at is None or job.state is State.DEAD:
        return 0
    return max(0, (job.expires_at - now + 500) // 1_000)


def lease_text(job: Job) -> str:
    """The lease of a job as a consume request shows it."""
    return f"{job.generation}-{job.token}"


def shown(
    job: Job,
    namespace: str,
    queue: str,
    now: int,
    *,
    remain_tries: int | None = None,
    message: str = "",
    lease: str = "",
) -> bytes:
    """A job as lmstfy shows it. `remain_tries` None: the tries that it has left."""
    spec = job.spec
    left = max(0, spec.max_attempts - job.attempt) if remain_tries is None else remain_tries
    said = b'"msg":"%b",' % message.encode() if message else b""
    if lease:
        said = b'"lease":"%b",%b' % (lease.encode(), said)
    return (
        b'{"attributes":%b,"data":"%b","elapsed_ms":%d,"job_id":%b,%b"namespace":"%b","queue":"%b",'
        b'"remain_tries":%d,"ttl":%d}'
    ) % (
        json_text(dict(spec.headers)) if spec.headers else b"null",
        b2a_base64(spec.payload, newline=False),
        elapsed_ms(job.id, now),
        text(job.id),
        said,
        namespace.encode(),
        queue.encode(),
        left,
        ttl_left(job, now),
    )


# ── publish requests ───────────────────────────────────────────────────────────────────────────────

#: Maximum size of a job's body, and number of jobs of a bulk request.
MOST_BODY = 1_048_576
_MOST_JOBS = 64
#: Maximum number of attributes of a job, and length of their keys and values, in bytes.
_MOST_ATTRIBUTES, _MOST_KEY, _MOST_VALUE = 16, 32, 128
_ATTRIBUTE = b"job-attr-"
_IDEMPOTENCY_KEY = b"idempotency-key"
_LONGEST_IDEMPOTENCY_KEY = 255
#: Statuses of a job that is stored: by this request, or by an earlier one with its idempotency key.
_PUBLISHED = (EnqueueStatus.NEW, EnqueueStatus.DUPLICATE)
_BLANK = b" \t\r\n"
_NO_TEXT = re.compile("[\ud800-\udfff]")
_BETWEEN = re.compile(rb"[ \t\r\n,]*")
_NO_RAW = msgspec.Raw(b"")
#: Reads one element more than are allowed: a list of all of them could be much larger than the body.
_FIRST_ELEMENTS = msgspec.json.Decoder(
    msgspec.defstruct(
        "_Elements",
        [(f"element_{n}", msgspec.Raw, _NO_RAW) for n in range(_MOST_JOBS + 1)],
        array_like=True,
    )
)

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


def _read_terms(asked: tuple[bytes, Defaults]) -> PublishTerms:
    query, defaults = asked
    given = read_query(query)
    delay = number(given, "delay", defaults.delay)
    ttl = number(given, "ttl", defaults.ttl)
    if 0 < ttl < delay:
        raise RefusedError(400, "ttl is shorter than delay")
    tries = number(given, "tries", defaults.tries, bits=16)
    if tries == 0:
        raise RefusedError(400, "tries shouldn't be zero")
    return PublishTerms(delay, ttl, tries)


_terms = TextCache(_read_terms, entries=1_024)


def read_job(exchange: Exchange, route: Route, defaults: Defaults) -> NewJob:
    """The job of a publish or republish request. Raises RefusedError."""
    terms = _terms[exchange.query, defaults]
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
    terms = _terms[exchange.query, defaults]
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
    """The first elements of a JSON array, byte for byte: one more than are allowed.

    Go accepts escapes of single surrogates, which our decoder does not: it gets a copy with other escapes, of
    the same length.
    """
    if body.strip(_BLANK) == b"null":
        return []
    readable = body.replace(b"\\ud", b"\\u0").replace(b"\\uD", b"\\u0") if b"\\u" in body else body
    try:
        found = _FIRST_ELEMENTS.decode(readable)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise RefusedError(400, "request body should be an array of objects") from None
    elements: list[bytes] = []
    end = body.index(b"[") + 1 if body else 0
    for raw in msgspec.structs.astuple(found):
        if raw is _NO_RAW:
            break
        start = _BETWEEN.match(body, end).end()  # type: ignore[union-attr]  # it matches nothing, too
        end = start + memoryview(raw).nbytes
        elements.append(body[start:end])
    return elements


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
            found[key] = _text(value[:_MOST_VALUE])
    if len(found) > _MOST_ATTRIBUTES:
        raise RefusedError(400, "too many attributes, cannot exceed 16")
    return found


def _text(value: bytes) -> str:
    """A text as Go reads it: each byte that is no part of UTF-8 becomes a replacement character."""
    return _NO_TEXT.sub("\ufffd", value.decode("utf-8", "surrogateescape"))
