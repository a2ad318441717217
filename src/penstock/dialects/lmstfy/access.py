"""Who may send a request: a token of lmstfy, or a native token with the right to do it.

lmstfy's tokens are kept in the store as documents, the same for all servers on it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from penstock.dialects.lmstfy.backend import Backend
from penstock.dialects.lmstfy.names import DEFAULT_POOL, mint_ulid, store_queue
from penstock.dialects.lmstfy.requests import Action, RefusedError, Route, read_query
from penstock.stores.contract import Store
from penstock.web.access import AccessRefusedError
from penstock.web.access_tokens import AccessToken, looks_native
from penstock.web.document_cache import DocumentCache
from penstock.web.exchange import Exchange
from penstock.web.text_cache import TextCache

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
        """Call `then` with whether the token is valid, at once if it was read a moment ago."""
        if pool == DEFAULT_POOL and self._is_fixed(namespace, token):
            then(True)
            return
        name = _names[pool, namespace, token]

        def decide(known: Mapping[str, KnownToken] | BaseException) -> None:
            then(known if isinstance(known, BaseException) else name in known)

        self._stored.ask(decide, missed=name not in self._stored.known)

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
        every = (await self._stored.again()).values()
        return [known for known in every if (known.pool, known.namespace) == (pool, namespace)]

    def _is_fixed(self, namespace: str, token: str) -> bool:
        given = token.encode("utf-8", "surrogateescape")
        matches = [hmac.compare_digest(one.encode(), given) for one in self._fixed.get(namespace, ())]
        return any(matches)


def token_name(pool: str, namespace: str, token: str) -> str:
    """The name of the documents about a token: a hash, which does not show the token.

    The time of a look-up by the hash shows nothing about the token either.
    """
    return _names[pool, namespace, token]


def _hashed(parts: tuple[str, str, str]) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


_names = TextCache(_hashed)


_BEARER = "bearer "


class Caller(NamedTuple):
    """Who sends a request. `token`: lmstfy's token, whose limits apply; "" for others."""

    name: str
    token: str = ""


#: Called with the caller, with the refusal, or with the error of a look-up.
OnCaller = Callable[[Caller | BaseException], None]


def given_token(exchange: Exchange) -> str:
    """The token of a request, with the prefix of its pool: of `X-Token`, of the query, or a bearer token."""
    given = exchange.header(b"x-token") or ""
    if not given.isascii():  # as a query has it
        given = given.encode("latin-1").decode("utf-8", "surrogateescape")
    given = given or read_query(exchange.query).get("token", "")
    return given or bearer_token(exchange)


def bearer_token(exchange: Exchange) -> str:
    """The token of the header `Authorization: Bearer TOKEN`; "" if there is none."""
    value = exchange.header(b"authorization") or ""
    return value[len(_BEARER) :].strip() if value[: len(_BEARER)].lower() == _BEARER else ""


def check_access(
    tokens: Tokens, route: Route, pool: str, backend: Backend, token: str, then: OnCaller
) -> None:
    """Call `then` with the caller who may send this request, at once if tokens were read a moment ago."""

    def known(valid: bool | BaseException) -> None:
        if valid is True:
            then(_callers[pool, route.namespace, token])
        else:
            then(RefusedError(401, "invalid token") if valid is False else valid)

    def decide(answer: AccessToken | BaseException | None) -> None:
        if isinstance(answer, AccessToken):
            then(Caller(f"token:{answer.name}"))
        elif isinstance(answer, AccessRefusedError):
            then(RefusedError(answer.status, answer.reason, answer.retry_after))
        elif answer is None:
            tokens.check(pool, route.namespace, token, known)
        else:
            then(answer)

    if looks_native(token):
        backend.access_tokens.decide(token, route.action.rights, _queues(route), backend.now, decide)
    else:
        tokens.check(pool, route.namespace, token, known)


def prove_token(
    tokens: Tokens, route: Route, pool: str, backend: Backend, token: str, then: Callable[[str | None], None]
) -> None:
    """Call `then` with the name of a valid token, whatever it allows; with None if it is not valid.

    An error of the look-up proves nothing either. A token with a rate is not charged.
    """
    if looks_native(token):
        backend.access_tokens.prove(token, backend.now, then)
        return

    def decide(valid: bool | BaseException) -> None:
        then(_callers[pool, route.namespace, token].name if valid is True else None)

    tokens.check(pool, route.namespace, token, decide)


def _caller_of(parts: tuple[str, str, str]) -> Caller:
    return Caller(f"lmstfy:{token_name(*parts)[:8]}", parts[2])


_callers = TextCache(_caller_of)


def _queues(route: Route) -> tuple[str, ...]:
    names = route.queue.split(",") if route.action is Action.CONSUME else [route.queue]
    return tuple(dict.fromkeys(store_queue(route.namespace, name) for name in names if name))
