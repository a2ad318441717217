"""The encrypted store: a store around another one. What goes in is encrypted, what comes out is decrypted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import TypeVar

from penstock.core.job import Job, Ref
from penstock.encryption import Unreadable
from penstock.stores.around import StorePlan, carry_out, carry_out_sync
from penstock.stores.contract import Capability, Request, Store, StreamEnds, SyncRequest, SyncStore
from penstock.stores.encrypted.field_cipher import FieldCipher
from penstock.stores.encrypted.requests import PLANS
from penstock.stores.own_store import NamespaceViews, OwnStore, OwnSyncStore

A = TypeVar("A")


class EncryptedStore(NamespaceViews, OwnStore):
    """A request that is not of the contract is refused, so that none is passed on in clear."""

    def __init__(self, store: Store, cipher: FieldCipher) -> None:
        NamespaceViews.__init__(self, cipher.namespace)
        self._store = store
        self._cipher = cipher
        self._sync = _SyncEncryptedStore(store, cipher)

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def capabilities(self) -> frozenset[Capability]:  # type: ignore[override]
        return self._store.capabilities

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

    async def _answer(self, request: Request[A]) -> A:
        planned = PLANS[type(request)]
        if planned is None:
            return await self._store.ask(request)
        plan: StorePlan[A] = planned(self._cipher, request)
        return await carry_out(plan, self._store.ask)

    async def stream(self, request: StreamEnds) -> AsyncGenerator[dict[Ref, Job | None], None]:
        found = self._store.stream(request)
        try:
            async for some in found:
                yield dict(zip(some, self._cipher.decrypt_jobs(some.values()), strict=True))
        finally:
            await found.aclose()


class _SyncEncryptedStore(OwnSyncStore):
    """The same for callers without an event loop."""

    def __init__(self, store: Store, cipher: FieldCipher) -> None:
        self._store = store
        self._cipher = cipher

    def _answer(self, request: SyncRequest[A]) -> A:
        inner, planned = self._store.sync, PLANS[type(request)]
        if planned is None:
            return inner.ask(request)
        plan: StorePlan[A] = planned(self._cipher, request)
        return carry_out_sync(plan, inner.ask)

    def stream(self, request: StreamEnds) -> Generator[dict[Ref, Job | None], None, None]:
        found = self._store.sync.stream(request)
        try:
            for some in found:
                yield dict(zip(some, self._cipher.decrypt_jobs(some.values()), strict=True))
        finally:
            found.close()
