"""Tokens: who may use a namespace. Kept in the store, the same for all servers on it."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from penstock.dialects.lmstfy.job_ids import mint_ulid
from penstock.dialects.lmstfy.store_gaps import Records
from penstock.web.group_commit import GroupCommit

__all__ = ["DEFAULT_POOL", "KnownToken", "Tokens", "read_token"]

DEFAULT_POOL = "default"
#: For this long (s) a token that was looked up is not looked up again.
_CACHED = 0.1
_MOST_CACHED = 10_000

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
    """The tokens of all namespaces, and which of them were valid a moment ago.

    `fixed`: tokens of the command line, by namespace; valid in the default pool, and not shown or stored.
    """

    def __init__(self, records: Records, fixed: Mapping[str, frozenset[str]] | None = None) -> None:
        self._records = records
        self._fixed = dict(fixed or {})
        self._cached: dict[tuple[str, str, str], tuple[float, bool]] = {}
        self._lookups = GroupCommit(self._look_up)

    def check(self, pool: str, namespace: str, token: str, then: OnChecked) -> None:
        """Call `then` with whether the token is valid, at once if it was looked up a moment ago."""
        asked = (pool, namespace, token)
        cached = self._cached.get(asked)
        if cached is not None and time.monotonic() < cached[0]:
            then(cached[1])
        elif pool == DEFAULT_POOL and self._is_fixed(namespace, token):
            then(True)
        else:
            self._lookups.put(asked, partial(self._found, asked, then))

    async def create(self, pool: str, namespace: str, description: str, token: str = "") -> str | None:
        """Store a token, a new one if none is given; None if it exists already."""
        known = KnownToken(pool, namespace, token or mint_ulid(), description)
        added = await self._records.add(_id(pool, namespace, known.token), msgspec.json.encode(known))
        self._cached.pop((pool, namespace, known.token), None)
        return known.token if added else None

    async def delete(self, pool: str, namespace: str, token: str) -> None:
        """Delete a token, if it exists. Other servers refuse it within 100 ms."""
        await self._records.remove(_id(pool, namespace, token))
        self._cached.pop((pool, namespace, token), None)

    async def all(self, pool: str, namespace: str) -> list[KnownToken]:
        """The tokens of a namespace, oldest first."""
        every = [msgspec.json.decode(content, type=KnownToken) for content in await self._records.all()]
        return [known for known in every if (known.pool, known.namespace) == (pool, namespace)]

    def _is_fixed(self, namespace: str, token: str) -> bool:
        given = token.encode("utf-8", "surrogateescape")
        matches = [hmac.compare_digest(one.encode(), given) for one in self._fixed.get(namespace, ())]
        return any(matches)

    def _found(self, asked: tuple[str, str, str], then: OnChecked, found: bool | BaseException) -> None:
        if not isinstance(found, BaseException):
            if len(self._cached) >= _MOST_CACHED:
                self._cached.clear()
            self._cached[asked] = (time.monotonic() + _CACHED, found)
        then(found)

    async def _look_up(self, asked: list[tuple[str, str, str]]) -> list[bool | BaseException]:
        different = list(dict.fromkeys(asked))
        contents = await self._records.get([_id(*one) for one in different])
        found = dict(zip(different, map(_matches, different, contents), strict=True))
        return [found[one] for one in asked]


def _matches(asked: tuple[str, str, str], content: bytes | None) -> bool:
    if content is None:
        return False
    known = msgspec.json.decode(content, type=KnownToken)
    given = asked[2].encode("utf-8", "surrogateescape")
    return (known.pool, known.namespace) == asked[:2] and hmac.compare_digest(known.token.encode(), given)


def _id(pool: str, namespace: str, token: str) -> str:
    """The id of a token's record, which does not show the token."""
    text = "\0".join((pool, namespace, token)).encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).hexdigest()
