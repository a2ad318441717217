"""The verbs of an encrypted store for documents and logs: bodies are encrypted, names are clear."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.stores.contract import DocumentChange, DocumentPage, LogPage, WrittenDocument
from penstock.stores.encrypted.field_cipher import FieldCipher
from penstock.stores.facade import AsyncOperation

__all__ = ["AppendLog", "ChangeDocuments", "ListDocuments", "ReadLog"]


class ListDocuments:
    """List documents, with bodies decrypted."""

    def __init__(
        self, inner: AsyncOperation[[str, str | None, int], DocumentPage], cipher: FieldCipher
    ) -> None:
        self._inner = inner
        self._cipher = cipher

    async def run(self, kind: str, after: str | None, limit: int, /) -> DocumentPage:
        page = await self._inner.run(kind, after, limit)
        decrypt = self._cipher.decrypt_body
        clear = [replace(one, body=decrypt(one.body, "document", kind, one.name)) for one in page.documents]
        return replace(page, documents=clear)


class ChangeDocuments:
    """Change documents, with bodies encrypted."""

    def __init__(
        self,
        inner: AsyncOperation[[str, Sequence[DocumentChange], bool], list[WrittenDocument]],
        cipher: FieldCipher,
    ) -> None:
        self._inner = inner
        self._cipher = cipher

    async def run(
        self, kind: str, changes: Sequence[DocumentChange], notify: bool, /
    ) -> list[WrittenDocument]:
        encrypted = [self._encrypted(kind, change) for change in changes]
        return await self._inner.run(kind, encrypted, notify)

    def _encrypted(self, kind: str, change: DocumentChange) -> DocumentChange:
        if change.body is None:
            return change
        return replace(change, body=self._cipher.encrypt_body(change.body, "document", kind, change.name))


class AppendLog:
    """Append entries to a log, encrypted."""

    def __init__(self, inner: AsyncOperation[[str, Sequence[bytes], int], int], cipher: FieldCipher) -> None:
        self._inner = inner
        self._cipher = cipher

    async def run(self, log: str, entries: Sequence[bytes], keep: int, /) -> int:
        encrypted = [self._cipher.encrypt_body(entry, "log", log) for entry in entries]
        return await self._inner.run(log, encrypted, keep)


class ReadLog:
    """Read the entries of a log, decrypted."""

    def __init__(self, inner: AsyncOperation[[str, int | None, int], LogPage], cipher: FieldCipher) -> None:
        self._inner = inner
        self._cipher = cipher

    async def run(self, log: str, before: int | None, limit: int, /) -> LogPage:
        page = await self._inner.run(log, before, limit)
        decrypt = self._cipher.decrypt_body
        return replace(
            page, entries=[replace(one, body=decrypt(one.body, "log", log)) for one in page.entries]
        )
