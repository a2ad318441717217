"""Documents and logs on Redis: a hash per kind and a list per log, in the slot of the namespace."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from penstock.stores.contract import (
    MOST_DOCUMENTS,
    Document,
    DocumentChange,
    DocumentPage,
    DocumentStatus,
    LogEntry,
    LogPage,
    QuotaRequest,
    QuotaTaken,
    WrittenDocument,
)
from penstock.stores.redis.context import CallPlan, Context, command, int_or_zero, raise_errors
from penstock.stores.redis.layout import NONE
from penstock.stores.redis.verbs.known_queues import now_of
from penstock.stores.redis.verbs.waiting import notify_all_waiters

_HEAD = struct.Struct("<ddd")
_LOG_HEAD = struct.Struct("<dd")
_STATUSES = (DocumentStatus.APPLIED, DocumentStatus.CONFLICT, DocumentStatus.FULL)
#: Most documents read by one command, and the bytes after which a page ends.
_STEP, _PAGE_BYTES = 64, 1 << 20


def documents(context: Context, kind: str, after: str | None, limit: int) -> CallPlan[DocumentPage]:
    """List the documents of a kind: the names first, and then those of the page."""
    key = context.redis_keys.documents(kind)
    now = int((yield from now_of(context)))
    (version,) = yield from document_versions(context, [kind])  # first: changes from here on raise it
    (stored,) = raise_errors((yield [command(key, "HKEYS", key)]))
    first = b"=" if after is None else b"=" + _bytes_of(after)
    names = sorted(name for name in stored if name > first)
    found: list[Document] = []
    seen = size = 0
    while seen < len(names) and len(found) < limit and size < _PAGE_BYTES:
        some = names[seen : seen + min(_STEP, limit - len(found))]
        seen += len(some)
        (bodies,) = raise_errors((yield [command(key, "HMGET", key, *some)]))
        size += sum(len(text) for text in bodies if text is not None)
        read = [_document(name, text) for name, text in zip(some, bodies, strict=True) if text is not None]
        found += [one for one in read if one and (one.expires_at is None or one.expires_at > now)]
    last = names[seen - 1][1:].decode("utf-8", "surrogatepass") if seen < len(names) else None
    return DocumentPage(found, version, last, now)


def _document(name: bytes, text: bytes) -> Document | None:
    """Read a document; None if it was not written by Penstock."""
    if len(text) < _HEAD.size:
        return None
    revision, updated, expires = _HEAD.unpack_from(text)
    return Document(
        name[1:].decode("utf-8", "surrogatepass"),
        text[_HEAD.size :],
        int(revision),
        int(updated),
        None if expires == NONE else int(expires),
    )


def _bytes_of(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def document_versions(context: Context, kinds: Sequence[str]) -> CallPlan[list[int]]:
    """Read the versions of kinds, in one round trip."""
    keys = [context.redis_keys.documents(kind) for kind in kinds]
    answers = raise_errors((yield [command(key, "HGET", key, b"") for key in keys])) if keys else []
    return [int_or_zero(version) for version in answers]


def change_documents(
    context: Context, kind: str, changes: Sequence[DocumentChange], notify: bool
) -> CallPlan[list[WrittenDocument]]:
    """Change documents of one kind in one script; then notify the waiters, if asked to."""
    args: list[bytes | str | int] = [MOST_DOCUMENTS]
    for change in changes:
        args.append(_bytes_of(change.name))
        args.append("" if change.expected is None else change.expected)
        args.append(b"" if change.body is None else b"=" + change.body)
        args.append("" if change.expires_in is None else change.expires_in)
    call = context.shared_call("change_documents", context.redis_keys.documents(kind), args)
    (answer,) = raise_errors((yield [call._replace(repeatable=False)]))
    written = [
        WrittenDocument(_STATUSES[status], int(revision))
        for status, revision in zip(answer[0::2], answer[1::2], strict=True)
    ]
    if notify and any(one.status is DocumentStatus.APPLIED for one in written):
        yield from notify_all_waiters(context, "changes")
    return written


def take_quota(context: Context, requests: Sequence[QuotaRequest]) -> CallPlan[list[QuotaTaken]]:
    """Take from quotas, each in a script of its own, in one round trip."""
    calls = [
        context.shared_call(
            "take_quota", context.redis_keys.quota(one.name), [one.amount, one.limit, one.window]
        )._replace(repeatable=False)
        for one in requests
    ]
    answers = raise_errors((yield calls)) if calls else []
    return [QuotaTaken(taken, int(resets)) for taken, resets in answers]


def append_log(context: Context, log: str, entries: Sequence[bytes], keep: int) -> CallPlan[int]:
    """Append entries to a log in one script."""
    call = context.shared_call("append_log", context.redis_keys.log(log), [keep, *entries])
    (last,) = raise_errors((yield [call._replace(repeatable=False)]))
    return int(last)


def read_log(context: Context, log: str, before: int | None, limit: int) -> CallPlan[LogPage]:
    """Read a page of a log."""
    args: list[bytes | str | int] = ["" if before is None else before, limit]
    (texts,) = raise_errors((yield [context.shared_call("read_log", context.redis_keys.log(log), args)]))
    entries = [_log_entry(text) for text in texts[:limit] if len(text) >= _LOG_HEAD.size]
    return LogPage(entries, entries[-1].number if entries and len(texts) > limit else None)


def _log_entry(text: bytes) -> LogEntry:
    number, at = _LOG_HEAD.unpack_from(text)
    return LogEntry(int(number), int(at), text[_LOG_HEAD.size :])
