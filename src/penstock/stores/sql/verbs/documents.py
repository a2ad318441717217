"""Documents and logs in a SQLite file."""

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
from penstock.stores.sql.statements import SQL
from penstock.stores.sql.transaction_context import TransactionContext

_VERSION = SQL["documents.version"]
_SET_VERSION = SQL["documents.set_version"]
_PAGE = SQL["documents.page"]
_ONE = SQL["documents.one"]
_COUNT = SQL["documents.count"]
_PUT = SQL["documents.put"]
_REMOVE = SQL["documents.remove"]
_REMOVE_EXPIRED = SQL["documents.remove_expired"]
_QUOTA = SQL["documents.quota"]
_SET_QUOTA = SQL["documents.set_quota"]
_REMOVE_QUOTAS = SQL["documents.remove_quotas"]
_LAST = SQL["documents.last"]
_APPEND = SQL["documents.append"]
_TRIM = SQL["documents.trim"]
_LOG = SQL["documents.log"]

_END = 2**63 - 1
#: The most expired documents that a call removes: each may have 64 KB.
_SOME = 100


def documents(tx: TransactionContext, kind: str, after: str | None, limit: int) -> DocumentPage:
    first = b"" if after is None else _bytes_of(after)
    rows = tx.execute(_PAGE, (tx.namespace, kind, first, tx.now, limit + 1)).fetchall()
    found = [Document(name.decode("utf-8", "surrogatepass"), *rest) for name, *rest in rows[:limit]]
    last = found[-1].name if len(rows) > limit else None
    return DocumentPage(found, _version(tx, kind), last, tx.now)


def document_versions(tx: TransactionContext, kinds: Sequence[str]) -> list[int]:
    return [_version(tx, kind) for kind in kinds]


def _version(tx: TransactionContext, kind: str) -> int:
    row = tx.execute(_VERSION, (tx.namespace, kind)).fetchone()
    return 0 if row is None else int(row[0])


def change_documents(
    tx: TransactionContext, kind: str, changes: Sequence[DocumentChange], notify: bool
) -> list[WrittenDocument]:
    before = version = _version(tx, kind)
    answers, room = [], _FreePlaces(tx, kind)
    if any(change.expires_in is not None for change in changes):
        tx.execute(_REMOVE_EXPIRED, (tx.namespace, kind, tx.now, _SOME))
    for change in changes:
        answer, version = _change(tx, kind, change, version, room)
        answers.append(answer)
    if version != before:
        tx.execute(_SET_VERSION, (tx.namespace, kind, version))
        tx.changes += notify
    return answers


def _change(
    tx: TransactionContext, kind: str, change: DocumentChange, version: int, room: _FreePlaces
) -> tuple[WrittenDocument, int]:
    """Apply one change; return its answer, and the version of the kind after it."""
    key = (tx.namespace, kind, _bytes_of(change.name))
    row = tx.execute(_ONE, key).fetchone()
    revision = 0 if row is None or (row[1] is not None and row[1] <= tx.now) else row[0]
    if change.expected is not None and change.expected != revision:
        return WrittenDocument(DocumentStatus.CONFLICT, revision), version
    if change.body is None:
        removed = tx.execute(_REMOVE, key).rowcount
        room.left = None
        return WrittenDocument(DocumentStatus.APPLIED, 0), version + removed
    if row is None and not room.take():
        return WrittenDocument(DocumentStatus.FULL, 0), version
    expires_at = None if change.expires_in is None else tx.now + change.expires_in
    tx.execute(_PUT, (*key, version + 1, tx.now, expires_at, change.body))
    return WrittenDocument(DocumentStatus.APPLIED, version + 1), version + 1


class _FreePlaces:
    """The number of documents that a kind may still get. Counting takes a while: one call counts once."""

    def __init__(self, tx: TransactionContext, kind: str) -> None:
        self._tx = tx
        self._of = (tx.namespace, kind)
        #: None: to be counted.
        self.left: int | None = None

    def take(self) -> bool:
        """Take room for one document; False if there is none."""
        if not self.left:
            self.left = self._counted()
        if self.left <= 0:
            return False
        self.left -= 1
        return True

    def _counted(self) -> int:
        (count,) = self._tx.execute(_COUNT, self._of).fetchone()
        if count >= MOST_DOCUMENTS:
            count -= self._tx.execute(_REMOVE_EXPIRED, (*self._of, self._tx.now, MOST_DOCUMENTS)).rowcount
        return MOST_DOCUMENTS - int(count)


def _bytes_of(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def take_quota(tx: TransactionContext, requests: Sequence[QuotaRequest]) -> list[QuotaTaken]:
    answers = []
    for request in requests:
        of = (tx.namespace, _bytes_of(request.name))
        used, ends = tx.execute(_QUOTA, of).fetchone() or (0, 0)
        if not tx.now < ends <= tx.now + request.window:
            used, ends = 0, tx.now + request.window
            tx.execute(_REMOVE_QUOTAS, (tx.now,))
        taken = max(0, min(request.amount, request.limit - used))
        tx.execute(_SET_QUOTA, (*of, used + taken, ends))
        answers.append(QuotaTaken(taken, ends - tx.now))
    return answers


def append_log(tx: TransactionContext, log: str, entries: Sequence[bytes], keep: int) -> int:
    of = (tx.namespace, log)
    row = tx.execute(_LAST, of).fetchone()
    last = 0 if row is None else int(row[0])
    for body in entries:
        last += 1
        tx.execute(_APPEND, (*of, last, tx.now, body))
    tx.execute(_TRIM, (*of, last - keep))
    return last


def read_log(tx: TransactionContext, log: str, before: int | None, limit: int) -> LogPage:
    below = _END if before is None else min(before, _END)
    rows = tx.execute(_LOG, (tx.namespace, log, below, limit + 1)).fetchall()
    page = [LogEntry(*row) for row in rows[:limit]]
    return LogPage(page, page[-1].number if len(rows) > limit else None)
