"""Documents and logs of the oracle."""

from __future__ import annotations

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
from tests.oracle.documents import MemoryDocuments, expired
from tests.oracle.state import MemoryState

__all__ = ["append_log", "change_documents", "document_versions", "documents", "read_log", "take_quota"]


def documents(memory: MemoryState, kind: str, after: str | None, limit: int) -> DocumentPage:
    now, stored = memory.clock.now(), memory.documents.get(kind, MemoryDocuments())
    first = b"" if after is None else _bytes_of(after)
    names = sorted(_bytes_of(name) for name in stored.by_name)
    found = [stored.by_name[name.decode("utf-8", "surrogatepass")] for name in names if name > first]
    found = [one for one in found if not expired(one, now)]
    page = found[:limit]
    return DocumentPage(page, stored.version, page[-1].name if len(found) > limit else None, now)


def _bytes_of(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def document_versions(memory: MemoryState, kinds: Sequence[str]) -> list[int]:
    return [memory.documents[kind].version if kind in memory.documents else 0 for kind in kinds]


def change_documents(
    memory: MemoryState, kind: str, changes: Sequence[DocumentChange], notify: bool
) -> list[WrittenDocument]:
    stored, now = memory.documents.setdefault(kind, MemoryDocuments()), memory.clock.now()
    before = stored.version
    written = [_change(stored, change, now) for change in changes]
    if notify and stored.version != before:
        memory.waiters.notify_settings()
    return written


def _change(stored: MemoryDocuments, change: DocumentChange, now: int) -> WrittenDocument:
    found = stored.by_name.get(change.name)
    revision = 0 if found is None or expired(found, now) else found.revision
    if change.expected is not None and change.expected != revision:
        return WrittenDocument(DocumentStatus.CONFLICT, revision)
    if change.body is None:
        if stored.by_name.pop(change.name, None) is not None:
            stored.version += 1
        return WrittenDocument(DocumentStatus.APPLIED, 0)
    if found is None:
        stored.sweep(now, MOST_DOCUMENTS)
        if len(stored.by_name) >= MOST_DOCUMENTS:
            return WrittenDocument(DocumentStatus.FULL, 0)
    stored.version += 1
    expires_at = None if change.expires_in is None else now + change.expires_in
    stored.by_name[change.name] = Document(change.name, change.body, stored.version, now, expires_at)
    return WrittenDocument(DocumentStatus.APPLIED, stored.version)


def take_quota(memory: MemoryState, requests: Sequence[QuotaRequest]) -> list[QuotaTaken]:
    now, quotas = memory.clock.now(), memory.quotas
    if len(quotas) > memory.most_quotas:
        memory.quotas = quotas = {name: one for name, one in quotas.items() if one[1] > now}
        memory.most_quotas = max(MOST_DOCUMENTS, 2 * len(quotas))  # or each call would copy those that stay
    answers = []
    for request in requests:
        used, ends = quotas.get(request.name, (0, 0))
        if not now < ends <= now + request.window:
            used, ends = 0, now + request.window
        taken = max(0, min(request.amount, request.limit - used))
        quotas[request.name] = used + taken, ends
        answers.append(QuotaTaken(taken, ends - now))
    return answers


def append_log(memory: MemoryState, log: str, entries: Sequence[bytes], keep: int) -> int:
    stored, now = memory.logs.setdefault(log, []), memory.clock.now()
    last = stored[-1].number if stored else 0
    stored += [LogEntry(last + n, now, body) for n, body in enumerate(entries, 1)]
    del stored[: max(0, len(stored) - keep)]
    return last + len(entries)


def read_log(memory: MemoryState, log: str, before: int | None, limit: int) -> LogPage:
    stored = memory.logs.get(log, [])
    older = stored if before is None else [entry for entry in stored if entry.number < before]
    page = older[-limit:][::-1]
    return LogPage(page, page[-1].number if len(older) > limit else None)
