"""The verbs for what faces keep in the store: small documents by kind and name, and bounded logs.

Tokens, limits and saved views are documents; an audit trail is a log. Both belong to the namespace.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from typing import Annotated, Self

import msgspec
from msgspec.structs import replace

from penstock.core.errors import ConfigError
from penstock.core.security import Secret
from penstock.stores.contract.request import Request

#: The most bytes of one document or log entry, the most documents of a kind, the most entries of a log.
LARGEST_DOCUMENT, MOST_DOCUMENTS, LONGEST_LOG = 65_536, 10_000, 100_000

_KIND = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
_LONGEST_NAME = 512


class Document(msgspec.Struct, frozen=True):
    """A stored document. `revision` is higher after each change, and never repeats for a name."""

    name: str
    body: Annotated[bytes, Secret.DOCUMENT]
    revision: int
    updated_at: int
    expires_at: int | None = None


class DocumentChange(msgspec.Struct, frozen=True):
    """A change of one document.

    - `body`: the new contents; None removes the document.
    - `expected`: apply the change only if the document has this revision; 0: only if it does not exist;
      None: in any case.
    - `expires_in`: ms from now, after which the document no longer exists; None: never.
    """

    name: str
    body: Annotated[bytes | None, Secret.DOCUMENT]
    expected: int | None = None
    expires_in: int | None = None


class DocumentStatus(enum.StrEnum):
    """The result of one change. Only APPLIED changes anything."""

    APPLIED = "applied"
    CONFLICT = "conflict"  # the document has another revision, or exists or not against expectation
    FULL = "full"  # the kind has MOST_DOCUMENTS documents

    __hash__ = str.__hash__


class WrittenDocument(msgspec.Struct, frozen=True):
    """The answer for one change: its status, and the revision of the document now; 0: it does not exist."""

    status: DocumentStatus
    revision: int


class DocumentPage(msgspec.Struct, frozen=True):
    """Documents of a kind in the order of their names' bytes.

    - `version`: the version of the kind before the page was read. The page may have later changes, which have
      raised the version. If pages have different versions, documents were changed meanwhile.
    - `next`: the `after` of the next page; None on the last page.
    - `now`: the store's clock.
    """

    documents: list[Document]
    version: int
    next: str | None
    now: int


class LogEntry(msgspec.Struct, frozen=True):
    """An entry of a log: its number, which rises by 1, and the instant at which it was appended."""

    number: int
    at: int
    body: Annotated[bytes, Secret.LOG]


class LogPage(msgspec.Struct, frozen=True):
    """Entries of a log, newest first. `next` is the `before` of the next page; None on the last page."""

    entries: list[LogEntry]
    next: int | None


class QuotaRequest(msgspec.Struct, frozen=True):
    """A request for up to `amount` of a quota that gives at most `limit` in each window of `window` ms."""

    name: str
    amount: int
    limit: int
    window: int


class QuotaTaken(msgspec.Struct, frozen=True):
    """The answer for one request: how much was taken, and in how many ms the window ends."""

    taken: int
    resets_in: int


class Documents(Request[DocumentPage], frozen=True):
    """List the documents of a kind that have not expired, from the one after the name `after` on.

    `limit`: the largest number of documents in the page, from 1 to 1000. A page may have fewer; only
    `next` is None tells the end.
    """

    kind: str
    after: str | None = None
    limit: int = 1_000

    def checked(self) -> Self:
        return replace(self, kind=check_kind(self.kind), limit=min(max(1, self.limit), 1_000))


class DocumentVersions(Request[list[int]], frozen=True):
    """Read the version of each kind: 0 at first, and higher after each change of a document.

    One cheap read, for nodes that poll for changes. The expiry of a document does not change it.
    """

    kinds: Sequence[str]

    def checked(self) -> Self:
        for kind in self.kinds:
            check_kind(kind)
        return self


class ChangeDocuments(Request[list[WrittenDocument]], frozen=True):
    """Change documents of one kind in one step, each by itself and in order.

    - `notify`: if anything was changed, wake waiting workers with SETTINGS, as a change of settings does.

    - Removing a missing document is APPLIED, unless `expected` says otherwise.
    - Expired documents count as missing; a full kind removes them.

    Answer: one `WrittenDocument` per change, in order.
    Errors: ConfigError for a kind, name or body that is too long; then the call changes nothing.
    """

    kind: str
    changes: Sequence[DocumentChange]
    notify: bool = False

    def checked(self) -> Self:
        check_kind(self.kind)
        for change in self.changes:
            check_change(change.name, change.body)
        return self


class TakeQuota(Request[list[QuotaTaken]], frozen=True):
    """Take from quotas that all nodes share, in order.

    A window begins with the first request after the previous window. A request takes what the window has
    left, at most its `amount`. A power cut may lose the latest requests.

    Answer: one `QuotaTaken` per request, in order.
    Errors: ConfigError for a name that is too long; then the call changes nothing.
    """

    requests: Sequence[QuotaRequest]

    def checked(self) -> Self:
        for request in self.requests:
            check_change(request.name, None)
        return self


class AppendLog(Request[int], frozen=True):
    """Append entries, and remove all but the newest `keep` (at most `LONGEST_LOG`).

    Answer: the number of the last entry of the log; 0 if it has none.
    Errors: ConfigError for a name or entry that is too long; then the call changes nothing.
    """

    log: str
    entries: Sequence[Annotated[bytes, Secret.LOG]]
    keep: int = 10_000

    def checked(self) -> Self:
        check_kind(self.log)
        for entry in self.entries:
            check_change(self.log, entry)
        return replace(self, keep=min(max(1, self.keep), LONGEST_LOG))


class ReadLog(Request[LogPage], frozen=True):
    """List the entries of a log, newest first; with `before`, those with lower numbers.

    `limit`: the largest number of entries in the page, from 1 to 1000.
    """

    log: str
    before: int | None = None
    limit: int = 100

    def checked(self) -> Self:
        return replace(self, log=check_kind(self.log), limit=min(max(1, self.limit), 1_000))


def check_kind(kind: str) -> str:
    """Return the name of a kind or a log if it is valid. Raises ConfigError."""
    if _KIND.fullmatch(kind) is None:
        raise ConfigError(f"kind={kind[:100]!r}: use 1 to 64 of the characters a-z 0-9 . _ -")
    return kind


def check_change(name: str, body: bytes | None) -> None:
    """Raise ConfigError if a document cannot have this name or body."""
    if not 1 <= len(name.encode("utf-8", "surrogatepass")) <= _LONGEST_NAME:
        raise ConfigError(f"a document's name has 1 to {_LONGEST_NAME} bytes: {name[:100]!r}")
    if body is not None and len(body) > LARGEST_DOCUMENT:
        raise ConfigError(f"{name[:100]!r} has {len(body):,} bytes; the limit is {LARGEST_DOCUMENT:,}")
