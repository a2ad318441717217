"""Tokens: who may use a namespace. Kept in the store as documents, the same for all servers on it."""

from __future__ import annotations

import functools
import hashlib
import hmac
from collections.abc import Callable, Mapping

import msgspec

from penstock.dialects.lmstfy.job_ids import mint_ulid
from penstock.stores.contract import Store
from penstock.web.document_cache import DocumentCache

__all__ = ["DEFAULT_POOL", "KnownToken", "Tokens", "read_token", "token_name"]

DEFAULT_POOL = "default"
#: The kind of their documents.
_KIND = "lmstfy.tokens"

#: Called with whether the token is valid, or with the error of the look-up.
OnChecked = Callable[[bool | BaseException], None]


class KnownToken(msgspec.Struct, frozen=True):
    """A token of a namespace in a pool."""

    pool: str
    namespace: str
    token: str
    description: str


def read_token(text: str) -> tuple[str, str]:
    """The pool and the token in `[POOL:]TOKEN`."""
    pool, colon, token = text.partition(":")
    return (pool or DEFAULT_POOL, token) if colon else (DEFAULT_POOL, text)


class Tokens:
    """The tokens of all namespaces.

    `fixed`: tokens of the command line, by namespace; valid in the default pool, and not shown or stored.
    """

    def __init__(self, store: Store, fixed: Mapping[str, frozenset[str]] | None = None) -> None:
        self._stored = DocumentCache(store, _KIND, KnownToken)
        self._fixed = dict(fixed or {})

    def check(self, pool: str, namespace: str, token: str, then: OnChecked) -> None:
        """Call `then` with whether the token is valid, at once if tokens were read a moment ago."""
        if pool == DEFAULT_POOL and self._is_fixed(namespace, token):
            then(True)
            return
        name = token_name(pool, namespace, token)

        def decide(known: Mapping[str, KnownToken] | BaseException) -> None:
            then(known if isinstance(known, BaseException) else name in known)

        self._stored.ask(decide)

    async def create(self, pool: str, namespace: str, description: str, token: str = "") -> str | None:
        """Store a token, a new one if none is given; None if it exists already."""
        known = KnownToken(pool, namespace, token or mint_ulid(), description)
        added = await self._stored.put(token_name(pool, namespace, known.token), known, new=True)
        return known.token if added else None

    async def delete(self, pool: str, namespace: str, token: str) -> None:
        """Delete a token, if it exists. Other servers refuse it within 100 ms."""
        await self._stored.remove(token_name(pool, namespace, token))

    async def all(self, pool: str, namespace: str) -> list[KnownToken]:
        """The tokens of a namespace."""
        every = (await self._stored.all()).values()
        return [known for known in every if (known.pool, known.namespace) == (pool, namespace)]

    def _is_fixed(self, namespace: str, token: str) -> bool:
        given = token.encode("utf-8", "surrogateescape")
        matches = [hmac.compare_digest(one.encode(), given) for one in self._fixed.get(namespace, ())]
        return any(matches)


@functools.lru_cache(maxsize=4_096)
def token_name(pool: str, namespace: str, token: str) -> str:
    """The name of the documents about a token: a hash, which does not show the token.

    The time of a look-up by the hash shows nothing about the token either.
    """
    text = "\0".join((pool, namespace, token)).encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).hexdigest()
