"""The verbs of an encrypted store for statistics: messages of errors are encrypted, numbers are clear."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.stores.contract import ErrorGroup, StatsReport
from penstock.stores.encrypted.field_cipher import FieldCipher
from penstock.stores.facade import AsyncOperation

__all__ = ["AddStats", "ReadErrors"]


class AddStats:
    """Add statistics, with the messages of errors encrypted."""

    def __init__(
        self, inner: AsyncOperation[[Sequence[StatsReport]], list[bool]], cipher: FieldCipher
    ) -> None:
        self._inner = inner
        self._cipher = cipher

    async def run(self, reports: Sequence[StatsReport], /) -> list[bool]:
        return await self._inner.run([self._encrypted(report) for report in reports])

    def _encrypted(self, report: StatsReport) -> StatsReport:
        encrypt = self._cipher.encrypt_error_count
        return replace(report, errors=[encrypt(report.queue, one) for one in report.errors])


class ReadErrors:
    """List groups of errors, with their messages decrypted."""

    def __init__(
        self, inner: AsyncOperation[[str | None, str | None], list[ErrorGroup]], cipher: FieldCipher
    ) -> None:
        self._inner = inner
        self._cipher = cipher

    async def run(self, queue: str | None, task: str | None, /) -> list[ErrorGroup]:
        return [self._cipher.decrypt_error_group(one) for one in await self._inner.run(queue, task)]
