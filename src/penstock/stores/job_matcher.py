"""Decide whether a job matches a filter: exactly, and for stored bytes quickly and roughly."""

from __future__ import annotations

import re

from penstock.core.job import Job
from penstock.core.security import Redaction
from penstock.stores.contract import JobFilter

#: Characters that no JSON encoder writes as an escape.
_UNESCAPED = re.compile(rb"[A-Za-z0-9 _.,:;!?()\[\]{}@#$%*|~^-]*")
_ESCAPES = re.compile(rb"(?:\\u[0-9a-fA-F]{4})+|\\.", re.DOTALL)
_SHORT_ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def text_bytes(text: str) -> bytes:
    """The bytes of a text as searches compare them: UTF-8 with ASCII letters in lower case."""
    return text.encode("utf-8", "backslashreplace").lower()


class JobMatcher:
    """A filter, prepared for many jobs.

    `needle`: bytes that the stored form of every job that matches contains, if ASCII letters are compared
    without case; b"" if nothing is known. An error is found as `Kind: message`, which are stored apart: the
    longest part between colons, without spaces at its ends, is in one of them.

    `escapes`: the stored form may contain a backslash instead, because a JSON encoder may have written a part
    of the text as an escape: `\\u00f6` for ö, as many do, or `\\/`.
    """

    def __init__(self, filter: JobFilter) -> None:
        self._filter = filter
        self._text = text_bytes(filter.text)
        self._redaction = Redaction(filter.hidden) if filter.hidden else None
        self._queues, self._states = frozenset(filter.queues), frozenset(filter.states)
        between = [part.strip(b" ") for part in self._text.split(b":")]
        parts = between if self._text else map(text_bytes, filter.headers.values())
        self.needle = max(parts, key=len, default=b"")
        self.escapes = not _UNESCAPED.fullmatch(self._text)

    def matches(self, job: Job) -> bool:
        """Whether the job matches the whole filter."""
        filter = self._filter
        return (
            (not self._queues or job.queue in self._queues)
            and (not self._states or job.state in self._states)
            and (filter.task is None or job.task == filter.task)
            and job.task not in filter.not_tasks
            and (filter.id is None or job.id == filter.id)
            and (filter.worker is None or job.worker == filter.worker)
            and filter.enqueued.has(job.enqueued_at)
            and filter.due.has(job.run_at)
            and filter.ended.has(job.ended_at)
            and (not filter.headers or self._has_headers(job))
            and (filter.flow is None or self._in_flow(job))
            and (not self._text or self._has_text(job))
        )

    def _has_headers(self, job: Job) -> bool:
        headers, hides = job.spec.headers or {}, self._redaction and self._redaction.hides
        wanted = self._filter.headers.items()
        return all(headers.get(name) == value and not (hides and hides(name)) for name, value in wanted)

    def _in_flow(self, job: Job) -> bool:
        flow, wanted = job.spec.flow, self._filter.flow
        return flow is not None and wanted is not None and (flow.queue, flow.id) == (wanted.queue, wanted.id)

    def _has_text(self, job: Job) -> bool:
        text = self._text
        return (
            self._in_payload(job.spec.payload)
            or text in text_bytes(job.id)
            or (job.reason is not None and text in text_bytes(job.reason))
            or any(text in text_bytes(f"{error.kind}: {error.message}") for error in job.errors)
        )

    def _in_payload(self, payload: bytes) -> bool:
        if not self._is_in(payload):
            return False
        if self._redaction is None:
            return True
        return any(map(self._is_in, self._redaction.visible_parts(payload)))

    def _is_in(self, json: bytes) -> bool:
        """Whether JSON contains the text, as it is written or without its escapes."""
        if self._text in json.lower():
            return True
        return self.escapes and b"\\" in json and self._text in _ESCAPES.sub(_unescaped, json).lower()


def _unescaped(found: re.Match[bytes]) -> bytes:
    escape = found[0]
    if len(escape) == 2:
        return _SHORT_ESCAPES.get(escape[1:], escape[1:])
    units = bytes.fromhex(escape.replace(b"\\u", b"").decode())
    return units.decode("utf-16-be", "replace").encode()
