"""Documents of the store in memory, for what every request asks: tokens and their limits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import msgspec

from penstock.core.errors import StoreError
from penstock.stores.contract import DocumentChange, DocumentStatus, Store
from penstock.web.group_commit import GroupCommit

__all__ = ["DocumentCache"]

_log = logging.getLogger("penstock.web")

#: For this long (s) what was read is used without asking the store for changes, unless told otherwise.
_FRESH = 0.1

T = TypeVar("T")


class DocumentCache(Generic[T]):
    """The documents of one kind, by name. Changes of other servers are seen within `fresh` seconds.

    The store is asked for its version at most once in that time, and for the documents only after a change.
    `on_read` is called at each of these questions.
    """

    def __init__(
        self,
        store: Store,
        kind: str,
        type_: type[T],
        *,
        fresh: float = _FRESH,
        on_read: Callable[[], None] | None = None,
    ) -> None:
        self._store = store
        self._fresh = fresh
        self._on_read = on_read
        self._kind = kind
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(type_)
        self._known: dict[str, T] = {}
        self._version = -1
        self._fresh_until = 0.0
        self._asked_at = 0.0
        self._writes = 0
        self._reads: GroupCommit[None, Mapping[str, T]] = GroupCommit(self._read)

    def ask(self, then: Callable[[Mapping[str, T] | BaseException], None]) -> None:
        """Call `then` with the documents, at once if they were read a moment ago, or with an error."""
        if time.monotonic() < self._fresh_until:
            then(self._known)
        else:
            self._reads.put(None, then)

    async def all(self) -> Mapping[str, T]:
        """The documents, with all changes of this server."""
        return self._known if time.monotonic() < self._fresh_until else await self._reads.ask(None)

    async def again(self) -> Mapping[str, T]:
        """The documents, asked for anew, but not before 100 ms have passed since the last time."""
        await asyncio.sleep(max(0.0, self._asked_at + _FRESH - time.monotonic()))
        if time.monotonic() >= self._asked_at + _FRESH:  # else others have asked meanwhile
            self._fresh_until = 0.0
        return await self.all()

    async def put(self, name: str, value: T, *, new: bool = False, expires_in: int | None = None) -> bool:
        """Store a document, for `expires_in` ms or for ever. False if `new` and there is one of this name."""
        change = DocumentChange(name, msgspec.json.encode(value), 0 if new else None, expires_in)
        status = await self._change(change)
        if status is DocumentStatus.FULL:
            raise StoreError(f"there are too many documents of the kind {self._kind}")
        return status is DocumentStatus.APPLIED

    async def remove(self, name: str) -> None:
        """Remove a document, if it exists."""
        await self._change(DocumentChange(name, None))

    async def _change(self, change: DocumentChange) -> DocumentStatus:
        try:
            (written,) = await self._store.change_documents(self._kind, [change])
        finally:  # also after an error: the change may have been made
            self._writes += 1
            self._fresh_until = 0.0
        return written.status

    async def _read(self, asked: list[None]) -> list[Mapping[str, T] | BaseException]:
        began, writes = time.monotonic(), self._writes
        if began >= self._fresh_until:
            self._asked_at = began
            if self._on_read is not None:
                self._on_read()
            (version,) = await self._store.document_versions([self._kind])
            if version != self._version:
                await self._load()
            if writes == self._writes:  # else a change of this server may be missing
                self._fresh_until = began + self._fresh
        return [self._known] * len(asked)

    async def _load(self) -> None:
        """Read all documents. Changes made meanwhile raise the version, so the next look reads them again."""
        known: dict[str, T] = {}
        after: str | None = None
        version: int | None = None
        while True:
            if self._on_read is not None:
                self._on_read()
            page = await self._store.documents(self._kind, after=after)
            version = page.version if version is None else version
            for document in page.documents:
                try:
                    known[document.name] = self._decoder.decode(document.body)
                except msgspec.MsgspecError as error:
                    _log.warning("%s %s cannot be read: %s", self._kind, document.name, error)
            after = page.next
            if after is None:
                break
        self._known, self._version = known, version
