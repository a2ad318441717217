"""The verbs of an encrypted store that compare a queued job with what an operator has seen of it.

The store inside compares what it stores, so the encrypted job is read first, and compared with what was seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from msgspec.structs import replace

from penstock.core.job import Job, Ref
from penstock.core.job_changes import is_as_seen
from penstock.encryption import why_not_here
from penstock.stores.contract import Enqueued, JobEdit, JobMove
from penstock.stores.encrypted.field_cipher import FieldCipher
from penstock.stores.facade import AsyncOperation

__all__ = ["EditJobs", "MoveJobs"]

R = TypeVar("R")
_Get = AsyncOperation[[Sequence[Ref]], list[Job | None]]


class _Comparing:
    """Reads jobs as the store inside has them."""

    def __init__(self, get: _Get, cipher: FieldCipher) -> None:
        self._get = get
        self._cipher = cipher

    async def stored(self, seen: Sequence[Job]) -> list[Job | None]:
        """The encrypted jobs, None for each that is not as it was seen, or cannot be decrypted here."""
        found = await self._get.run([job.ref for job in seen])
        clear = self._cipher.decrypt_jobs(found)
        return [
            raw if job is not None and is_as_seen(job, one) and _is_clear(job) else None
            for raw, job, one in zip(found, clear, seen, strict=True)
        ]


def _is_clear(job: Job) -> bool:
    return why_not_here(job.spec.payload) is None and why_not_here(job.checkpoint or b"") is None


class EditJobs:
    """edit_jobs with the new arguments encrypted."""

    def __init__(
        self, inner: AsyncOperation[[Sequence[JobEdit]], list[bool]], get: _Get, cipher: FieldCipher
    ) -> None:
        self._inner = inner
        self._cipher = cipher
        self._comparing = _Comparing(get, cipher)

    async def run(self, edits: Sequence[JobEdit], /) -> list[bool]:
        stored = await self._comparing.stored([one.seen for one in edits])
        sent = [
            JobEdit(raw, self._cipher.encrypt_edited(one.new, raw))
            for raw, one in zip(stored, edits, strict=True)
            if raw is not None
        ]
        answers = iter(await self._inner.run(sent))
        return [raw is not None and next(answers) for raw in stored]


class MoveJobs:
    """move_jobs with everything that is bound to the job's queue encrypted again."""

    def __init__(
        self,
        inner: AsyncOperation[[Sequence[JobMove]], list[Enqueued | None]],
        get: _Get,
        cipher: FieldCipher,
    ) -> None:
        self._inner = inner
        self._cipher = cipher
        self._comparing = _Comparing(get, cipher)

    async def run(self, moves: Sequence[JobMove], /) -> list[Enqueued | None]:
        stored = await self._comparing.stored([one.seen for one in moves])
        sent = [
            replace(self._cipher.encrypt_move(one), seen=raw)
            for raw, one in zip(stored, moves, strict=True)
            if raw is not None
        ]
        answers = iter(await self._inner.run(sent))
        return [None if raw is None else next(answers) for raw in stored]
