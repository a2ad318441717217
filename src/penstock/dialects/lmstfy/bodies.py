"""The answers of lmstfy, byte for byte: compact JSON in alphabetical order, escaped as Go escapes it."""

from __future__ import annotations

import json
from binascii import b2a_base64
from collections.abc import Mapping
from typing import Any

from penstock.dialects.lmstfy.job_ids import request_ids
from penstock.web.replies import JSON, reply

__all__ = ["answer", "error", "indented", "job_json", "json_text", "no_job", "plain_reply", "removed", "text"]

_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def json_text(value: Any, *, indent: int | None = None, sort: bool = True) -> bytes:
    """A value as Go's `encoding/json` writes it."""
    separators = (",", ": ") if indent else (",", ":")
    written = json.dumps(value, ensure_ascii=False, separators=separators, indent=indent, sort_keys=sort)
    return written.translate(_ESCAPES).encode("utf-8", "replace")


def text(value: str) -> bytes:
    """A string as Go writes it in JSON."""
    if value.isascii() and value.isalnum():
        return b'"%b"' % value.encode()
    return json_text(value)


def plain_reply(status: int, body: bytes, kind: bytes = JSON) -> bytes:
    """An answer with lmstfy's request id."""
    return reply(status, body, kind, b"X-Request-Id: %b\r\n" % request_ids.next().encode())


def answer(status: int, **fields: Any) -> bytes:
    """An answer with a JSON object."""
    return plain_reply(status, json_text(fields))


def indented(status: int, value: Any, kind: bytes = JSON, end: bytes = b"") -> bytes:
    """An answer with a JSON document over several lines."""
    return plain_reply(status, json_text(value, indent=4) + end, kind)


def error(status: int, why: str, retry_after: int | None = None) -> bytes:
    """An answer `{"error": …}`, with the header `Retry-After` (s) if it is given."""
    found = answer(status, error=why)
    if retry_after is None:
        return found
    return found.replace(b"\r\n\r\n", b"\r\nRetry-After: %d\r\n\r\n" % retry_after, 1)


def removed() -> bytes:
    """The answer 204, which has no body."""
    return plain_reply(204, b"")


def no_job() -> bytes:
    """The answer of a consume request that found no job."""
    return plain_reply(404, b'{"msg":"no job available"}')


def job_json(
    namespace: str,
    queue: str,
    id: str,
    data: bytes,
    *,
    ttl: int,
    elapsed: int,
    remain_tries: int,
    attributes: Mapping[str, str] | None,
    message: str = "",
    lease: str = "",
) -> bytes:
    """One job as consume (with a message) and peek (without) show it. Times: `ttl` in s, `elapsed` in ms."""
    shown = b"null" if not attributes else json_text(dict(attributes))
    said = b'"msg":"%b",' % message.encode() if message else b""
    if lease:
        said = b'"lease":"%b",%b' % (lease.encode(), said)
    return (
        b'{"attributes":%b,"data":"%b","elapsed_ms":%d,"job_id":%b,%b"namespace":"%b","queue":"%b",'
        b'"remain_tries":%d,"ttl":%d}'
    ) % (
        shown,
        b2a_base64(data, newline=False),
        elapsed,
        text(id),
        said,
        namespace.encode(),
        queue.encode(),
        remain_tries,
        ttl,
    )
