"""Documents of the store in memory, for what every request asks: tokens and their limits."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import msgspec

from penstock.core.errors import StoreError
from penstock.stores.contract import Capability, DocumentChange, DocumentStatus, Store
from penstock.web.group_commit import GroupCommit

_log = logging.getLogger("penstock.web")

#: For this long (s) what was read is used without asking the store for changes, unless told otherwise.
_FRESH = 0.1
#: The store is asked for documents that are missed at most once in this time (s).
_AGAIN = 0.05
#: For this long (s) what was read is used while the store is away.
_LASTS = 60.0
#: A store that takes longer (s) to answer is away.
_PATIENCE = 0.5

T = TypeVar("T")


class DocumentCache(Generic[T]):
    """The documents of one kind, by name. Changes of other servers are seen within `fresh` seconds.

    The store is asked for its version at most once in that time, and for the documents only after a change.
    Who misses a document waits for another look at the store, which all who miss one share. While the store
    is away, what was read in the last minute is used. `on_read` is called at each question to the store.
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
        #: The documents that were read last, of any age.
        self.known: Mapping[str, T] = {}
        self._version = -1
        # instants (monotonic): the begin of the last look, of the last one that succeeded, and the end of the
        # last change of this server
        self._asked_at, self._read_at, self._changed_at = -math.inf, -math.inf, -math.inf
        self._away = False
        self._look: asyncio.Task[Exception | None] | None = None
        self._reads: GroupCommit[None, Mapping[str, T]] = GroupCommit(self._read)
        self._misses: GroupCommit[None, Mapping[str, T]] = GroupCommit(self._read_again)

    def ask(self, then: Callable[[Mapping[str, T] | BaseException], None], *, missed: bool = False) -> None:
        """Call `then` with the documents, at once if they were read a moment ago, or with an error.

        `missed`: `known` has not what is looked for, so the store is asked once more.
        """
        if missed:
            self._misses.put(None, then)
        elif self._is_fresh() or self._lasts():
            then(self.known)
        else:
            self._reads.put(None, then)

    async def all(self) -> Mapping[str, T]:
        """The documents, with all changes of this server."""
        if not self._is_fresh():
            await self._read_since(time.monotonic() - self._fresh)
        return self.known

    async def again(self) -> Mapping[str, T]:
        """The documents, asked for anew."""
        return await self._misses.ask(None)

    async def put(self, name: str, value: T, *, new: bool = False, expires_in: int | None = None) -> bool:
        """Store a document, for `expires_in` ms or for ever. False if `new` and there is one of this name."""
        change = DocumentChange(name, msgspec.json.encode(value), 0 if new else None, expires_in)
        status = await self._change(change)
        if status is DocumentStatus.FULL:
            raise StoreError(f"there are too many documents of the kind {self._kind}")
        return status is DocumentStatus.APPLIED

    async def remove(self, name: str) -> None:
        """Remove a document, if it exists."""
        try:
            await self._change(DocumentChange(name, None))
        finally:  # also after an error: the change may have been made
            self.known = {one: value for one, value in self.known.items() if one != name}
            self._version = -1

    async def _change(self, change: DocumentChange) -> DocumentStatus:
        try:
            (written,) = await self._store.change_documents(self._kind, [change])
        finally:
            self._changed_at = time.monotonic()
        return written.status

    # ── looks at the store ───────────────────────────────────────────────────────────────────────

    def _is_fresh(self) -> bool:
        return self._read_at > self._changed_at and self._read_at > time.monotonic() - self._fresh

    def _lasts(self) -> bool:
        """Whether what was read is used because the store is away; from time to time it is asked again."""
        now = time.monotonic()
        if not self._away or now > self._read_at + _LASTS:
            return False
        if self._look is None and now > self._asked_at + self._fresh:
            self._start_look()
        return True

    async def _read(self, asked: list[None]) -> list[Mapping[str, T]]:
        """The documents, or those that were read in the last minute if the store does not answer soon."""
        now = time.monotonic()
        lasts = now < self._read_at + _LASTS
        try:
            async with asyncio.timeout(_PATIENCE if lasts else None):
                await self._read_since(now - self._fresh)
        except (StoreError, TimeoutError):
            if not lasts:
                raise
            self._away = True
        return [self.known] * len(asked)

    async def _read_again(self, asked: list[None]) -> list[Mapping[str, T]]:
        """The documents, of a look that begins now or soon."""
        now = time.monotonic()
        await asyncio.sleep(max(0.0, self._asked_at + _AGAIN - now))
        await self._read_since(now)
        return [self.known] * len(asked)

    async def _read_since(self, instant: float) -> None:
        """Wait until the documents were read that the store had then, and that this server has changed."""
        while self._read_at < max(instant, self._changed_at):
            failure = await asyncio.shield(self._look or self._start_look())
            if failure is not None:
                raise failure

    def _start_look(self) -> asyncio.Task[Exception | None]:
        self._look = asyncio.get_running_loop().create_task(self._look_now())
        return self._look

    async def _look_now(self) -> Exception | None:
        """Look for changes; returns the error, for all who wait."""
        began = self._asked_at = time.monotonic()
        try:
            if self._store.can(Capability.DOCUMENTS):  # else there are none
                self._note_read()
                (version,) = await self._store.document_versions([self._kind])
                if version != self._version:
                    await self._load()
        except Exception as error:  # noqa: BLE001  # boundary: an error of the store is the answer of all who wait
            self._away = isinstance(error, StoreError)
            return error
        finally:
            self._look = None
        self._read_at, self._away = began, False
        return None

    def _note_read(self) -> None:
        if self._on_read is not None:
            self._on_read()

    async def _load(self) -> None:
        """Read all documents. Changes made meanwhile raise the version, so the next look reads them again."""
        known: dict[str, T] = {}
        after: str | None = None
        version: int | None = None
        while True:
            self._note_read()
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
        self.known, self._version = known, version
