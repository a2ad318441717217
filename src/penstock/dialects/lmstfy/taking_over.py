"""Takes over the tokens and limits of a pool that is drained, so that its clients keep theirs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from urllib.parse import quote

from penstock.core.errors import StoreError
from penstock.dialects.lmstfy.limits import TokenLimits
from penstock.dialects.lmstfy.tokens import Tokens
from penstock.dialects.lmstfy.upstream import OldLmstfy
from penstock.maintenance.service import Service
from penstock.stores.contract import Document, DocumentChange, Store

__all__ = ["ACCESS_TOKENS", "LMSTFY_TOKENS", "TokenCopy", "take_over_tokens"]

_log = logging.getLogger("penstock.lmstfy")

#: The kinds of the documents that are copied.
ACCESS_TOKENS = ("tokens",)
LMSTFY_TOKENS = ("lmstfy.tokens", "lmstfy.limits")
#: Changes are copied after this time (s).
_EVERY = 1.0


async def take_over_tokens(old: OldLmstfy, pool: str, tokens: Tokens, limits: TokenLimits) -> None:
    """Copy the tokens and limits of the old server that the pool does not have yet; it may be away."""
    try:
        copied = await _copy(old, pool, tokens, limits)
    except StoreError as error:
        _log.warning("pool %s: the tokens of the old lmstfy were not copied: %s", pool, error)
        return
    if copied:
        _log.info("pool %s: copied %d tokens of the old lmstfy", pool, copied)


async def _copy(old: OldLmstfy, pool: str, tokens: Tokens, limits: TokenLimits) -> int:
    copied = 0
    for namespace in await old.namespaces():
        for token, description in (await old.tokens(quote(namespace))).items():
            if await tokens.create(pool, namespace, description, token) is not None:
                copied += 1
    for namespace, token, limiter in await old.limits():
        if await limits.get(pool, namespace, token) is None:
            await limits.put(pool, namespace, token, limiter, new=True)
    return copied


class TokenCopy(Service):
    """Copies the tokens and limits of an old store to the new one, also later changes and removals.

    A document of the new store that is none of these copies stays as it is. Which ones are copies is kept
    there, too, so that a token that is removed while no server runs is removed by the next one.
    """

    name = "token copy"

    def __init__(self, old: Store, new: Store, kinds: Sequence[str]) -> None:
        super().__init__()
        self._old, self._new, self._kinds = old, new, list(kinds)
        self._versions: list[int] = []

    async def tick(self) -> float:
        versions = await self._old.document_versions(self._kinds)
        if versions != self._versions:
            for kind in self._kinds:
                await self._copy(kind)
            self._versions = list(versions)
        return _EVERY

    async def _copy(self, kind: str) -> None:
        marks = f"copied.{kind}"
        copied, there = await _documents(self._new, marks), await _documents(self._new, kind)
        old = await _documents(self._old, kind)
        now = (await self._old.documents(kind, limit=1)).now
        changes = [
            DocumentChange(name, one.body, None, None if one.expires_at is None else one.expires_at - now)
            for name, one in old.items()
            if (name not in there or (name in copied and there[name].body != one.body))
            and (one.expires_at is None or one.expires_at > now)
        ]
        gone = [DocumentChange(name, None) for name in copied if name not in old]
        if changes:
            await self._new.change_documents(marks, [DocumentChange(one.name, b"{}") for one in changes])
        if changes or gone:
            await self._new.change_documents(kind, [*changes, *gone])
        if gone:
            await self._new.change_documents(marks, gone)


async def _documents(store: Store, kind: str) -> dict[str, Document]:
    found: dict[str, Document] = {}
    after: str | None = None
    while True:
        page = await store.documents(kind, after=after)
        found.update({one.name: one for one in page.documents})
        after = page.next
        if after is None:
            return found
