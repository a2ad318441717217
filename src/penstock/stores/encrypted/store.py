"""The encrypted store: a store around another one. What goes in is encrypted, what comes out is decrypted.

The verbs stand in `verb_table.py`; here are waiting and the life of the store.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from pathlib import Path

from penstock.core.job import Job, Ref
from penstock.encryption import Unreadable
from penstock.stores.contract import Finding, OnDue, Store, SyncStore, Wake, WorkerOffer
from penstock.stores.encrypted.field_cipher import FieldCipher
from penstock.stores.encrypted.verb_table import verb_table
from penstock.stores.facade import StoreFacade, SyncFacade, VerbTable
from penstock.stores.namespace_views import NamespaceViews

__all__ = ["EncryptedStore"]


class EncryptedStore(NamespaceViews, StoreFacade):
    """Every verb of the contract by name: one that is added to it is not passed on in clear by oversight."""

    def __init__(self, store: Store, cipher: FieldCipher) -> None:
        NamespaceViews.__init__(self, cipher.namespace)
        StoreFacade.__init__(self, verb_table(store, cipher))
        self._store = store
        self._cipher = cipher
        self._sync = _SyncEncryptedStore(store, cipher, self._verbs)

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def spread(self) -> bool:
        """Whether queues lie on several servers, of which some may be away."""
        return bool(getattr(self._store, "spread", False))

    @property
    def path(self) -> Path | None:
        """Where the store lies, if it is a file."""
        found: Path | None = getattr(self._store, "path", None)
        return found

    @property
    def sync(self) -> SyncStore:
        return self._sync

    def _view(self, namespace: str) -> EncryptedStore:
        return EncryptedStore(self._store.in_namespace(namespace), self._cipher.in_namespace(namespace))

    def close(self) -> None:
        if self._origin is None:
            self._store.close()

    @staticmethod
    def why_unreadable(job: Job) -> str | None:
        """Why this job's payload could not be decrypted; None if it could.

        Decrypted bytes may themselves look encrypted, so only the type counts.
        """
        payload = job.spec.payload
        return payload.why if isinstance(payload, Unreadable) else None

    async def checkup(self) -> list[Finding]:
        return await self._store.checkup()

    async def wait_for_end(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]:
        return self._cipher.decrypt_jobs(await self._store.wait_for_end(refs, timeout=timeout))

    async def stream_ends(
        self, refs: Sequence[Ref], *, timeout: int
    ) -> AsyncGenerator[dict[Ref, Job | None], None]:
        found = self._store.stream_ends(refs, timeout=timeout)
        try:
            async for some in found:
                yield dict(zip(some, self._cipher.decrypt_jobs(some.values()), strict=True))
        finally:
            await found.aclose()

    async def wait(
        self,
        queues: Sequence[str],
        *,
        timeout: int,
        offer: WorkerOffer | None = None,
        parked: Sequence[str] = (),
        on_due: OnDue | None = None,
    ) -> Wake:
        offer = self._cipher.decrypting_offer(offer)
        return await self._store.wait(queues, timeout=timeout, offer=offer, parked=parked, on_due=on_due)


class _SyncEncryptedStore(SyncFacade):
    """The same for callers without an event loop."""

    def __init__(self, store: Store, cipher: FieldCipher, verbs: VerbTable) -> None:
        super().__init__(verbs)
        self._store = store
        self._cipher = cipher

    def wait_for_end(self, refs: Sequence[Ref], *, timeout: int) -> list[Job | None]:
        return self._cipher.decrypt_jobs(self._store.sync.wait_for_end(refs, timeout=timeout))

    def stream_ends(
        self, refs: Sequence[Ref], *, timeout: int
    ) -> Generator[dict[Ref, Job | None], None, None]:
        found = self._store.sync.stream_ends(refs, timeout=timeout)
        try:
            for some in found:
                yield dict(zip(some, self._cipher.decrypt_jobs(some.values()), strict=True))
        finally:
            found.close()
