"""Limits of tokens: how many publish and consume requests of a token succeed in a time, at all servers.

The last part has the requests of the admin API about them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from penstock.core.formats import LONGEST
from penstock.dialects.lmstfy.access import read_token, token_name
from penstock.dialects.lmstfy.names import DEFAULT_POOL
from penstock.dialects.lmstfy.requests import (
    RefusedError,
    answer,
    checked_text,
    error,
    json_text,
    plain_reply,
)
from penstock.stores.contract import QuotaRequest, QuotaTaken, Store
from penstock.web.document_cache import DocumentCache
from penstock.web.exchange import Exchange
from penstock.web.group_commit import GroupCommit
from penstock.web.replies import TEXT

CONSUME, PRODUCE = "consume", "produce"
#: The kind of their documents.
_KIND = "lmstfy.limits"
#: The largest limit that every store counts exactly.
_MOST = 2**53 - 1
#: When this many quotas have returned permits, those whose window is over are forgotten.
_MANY = 10_000


class Limiter(msgspec.Struct, frozen=True):
    """The limits of a token: consume (`read`) and publish (`write`) requests per `interval` seconds.

    A side of 0 or less has no limit.
    """

    read: int = 0
    write: int = 0
    interval: int = 0


class KnownLimiter(msgspec.Struct, frozen=True):
    """The limiter of a token of a namespace in a pool. The token need not exist."""

    pool: str
    namespace: str
    token: str
    limiter: Limiter


class Permit:
    """Lets one request pass. One that is returned lets another request of the same window pass."""

    __slots__ = ("_limits", "_quota", "_until")

    def __init__(self, limits: TokenLimits, quota: str, until: float) -> None:
        self._limits = limits
        self._quota = quota
        self._until = until

    def give_back(self) -> None:
        """Return the permit: the request has done nothing."""
        self._limits.give_back(self._quota, self._until)


#: Called with a permit; None: the token has no such limit; False: its limit is reached; or an error.
OnPermit = Callable[[Permit | bool | BaseException | None], None]


class TokenLimits:
    """The limiters of all tokens, kept as documents, and what is left of them, kept as quotas of the store.

    Permits of requests that did nothing (an empty queue, a refused publish request) stay with this server
    until the end of their window, for the next requests with this token.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stored = DocumentCache(store, _KIND, KnownLimiter)
        self._quotas: GroupCommit[QuotaRequest, QuotaTaken] = GroupCommit(self._take_all)
        self._returned: dict[str, tuple[int, float]] = {}  # by quota: permits, the end of their window

    # ── limiters ─────────────────────────────────────────────────────────────────────────────────

    async def put(
        self, pool: str, namespace: str, token: str, limiter: Limiter, *, new: bool = False
    ) -> bool:
        """Store a limiter. False if `new`, and the token has one."""
        known = KnownLimiter(pool, namespace, token, limiter)
        return await self._stored.put(token_name(pool, namespace, token), known, new=new)

    async def get(self, pool: str, namespace: str, token: str) -> Limiter | None:
        """The limiter of a token."""
        known = (await self._stored.again()).get(token_name(pool, namespace, token))
        return None if known is None else known.limiter

    async def remove(self, pool: str, namespace: str, token: str) -> None:
        """Remove a limiter, if it exists."""
        await self._stored.remove(token_name(pool, namespace, token))

    async def all(self) -> list[KnownLimiter]:
        """All limiters, by pool, namespace and token."""
        every = (await self._stored.again()).values()
        return sorted(every, key=lambda one: (one.pool, one.namespace, one.token))

    # ── requests ─────────────────────────────────────────────────────────────────────────────────

    def ask(self, pool: str, namespace: str, token: str, action: str, then: OnPermit) -> None:
        """Call `then` with a permit for a request; at once if the token has no limit, as far as is known."""
        name = token_name(pool, namespace, token)

        def decide(known: Mapping[str, KnownLimiter] | BaseException) -> None:
            if isinstance(known, BaseException):
                then(known)
            elif name not in known:
                then(None)
            else:
                self._take(f"{name}:{action}", known[name].limiter, action, then)

        self._stored.ask(decide)

    def give_back(self, quota: str, until: float) -> None:
        """Keep a permit of a window for the next request."""
        now = time.monotonic()
        if until <= now:
            return
        if len(self._returned) >= _MANY:
            self._returned = {name: one for name, one in self._returned.items() if one[1] > now}
        n, known = self._returned.get(quota, (0, 0.0))
        if known <= now:
            n, known = 0, until
        self._returned[quota] = n + 1, min(until, known)

    def _take(self, quota: str, limiter: Limiter, action: str, then: OnPermit) -> None:
        limit = limiter.read if action == CONSUME else limiter.write
        if limit <= 0:
            then(None)
            return
        n, until = self._returned.get(quota, (0, 0.0))
        if n and time.monotonic() < until:
            self._returned[quota] = n - 1, until
            then(Permit(self, quota, until))
            return
        window = min(limiter.interval * 1_000, LONGEST)
        request = QuotaRequest(f"lmstfy:{quota}", 1, min(limit, _MOST), window)
        self._quotas.put(request, partial(self._taken, quota, then))

    async def _take_all(self, requests: list[QuotaRequest]) -> list[QuotaTaken]:
        return await self._store.take_quota(requests)

    def _taken(self, quota: str, then: OnPermit, answer: QuotaTaken | BaseException) -> None:
        if isinstance(answer, BaseException):
            then(answer)
        elif answer.taken:
            then(Permit(self, quota, time.monotonic() + answer.resets_in / 1_000))
        else:
            then(False)


# ── requests of the admin API ──────────────────────────────────────────────────────────────────────

_FIELDS = ("read", "write", "interval")


async def limiters_listed(limits: TokenLimits) -> bytes:
    """All limiters."""
    every = [
        {
            "namespace": one.namespace,
            "token": one.token if one.pool == DEFAULT_POOL else f"{one.pool}:{one.token}",
            "limiter": _fields(one.limiter),
        }
        for one in await limits.all()
    ]
    return plain_reply(200, json_text(every, sort=False))


async def limiter_shown(limits: TokenLimits, namespace: str, text: str) -> bytes:
    """The limiter of a token."""
    pool, token = read_token(text)
    limiter = await limits.get(pool, namespace, token)
    if limiter is None:
        return plain_reply(404, b"null")
    return plain_reply(200, json_text(_fields(limiter), sort=False))


async def limiter_put(
    limits: TokenLimits, namespace: str, text: str, exchange: Exchange, *, new: bool
) -> bytes:
    """Store the limiter of a token; with `new`, only if it has none."""
    if exchange.too_large:
        raise RefusedError(413, "body too large")
    limiter = _read(exchange.body)
    if limiter is None:
        return plain_reply(400, b'{"error":{}}', TEXT)
    shown = json_text({"limiter": _fields(limiter)}, sort=False)
    if limiter.read == 0 and limiter.write == 0:
        return plain_reply(400, shown)
    if limiter.interval == 0:
        raise RefusedError(400, "interval should be > 0")
    if limiter.interval < 0:
        raise RefusedError(500, "limiter interval should be > 0")
    if limiter.read <= 0 and limiter.write <= 0:
        raise RefusedError(500, "the read and write of limiter can't be <= 0 at the same time")
    checked_text(namespace, "namespace")
    pool, token = read_token(checked_text(text, "token"))
    if not await limits.put(pool, namespace, token, limiter, new=new):
        return error(500, f"throttler token({token}) has already exists")
    return plain_reply(201 if new else 200, shown)


async def limiter_removed(limits: TokenLimits, namespace: str, text: str) -> bytes:
    """Remove the limiter of a token, if it has one."""
    pool, token = read_token(text)
    await limits.remove(pool, namespace, token)
    return answer(200, msg="success")


def _fields(limiter: Limiter) -> dict[str, int]:
    return {name: getattr(limiter, name) for name in _FIELDS}


def _read(body: bytes) -> Limiter | None:
    """The limiter of a body, read as Go reads it: names in any case, the rest of the body is ignored."""
    try:
        value: Any = json.JSONDecoder().raw_decode(body.decode("utf-8", "replace").lstrip(" \t\r\n"))[0]
    except (ValueError, RecursionError):
        return None
    if value is None:
        return Limiter()
    if not isinstance(value, dict):
        return None
    found: dict[str, int] = {}
    for name, number in value.items():
        if name.lower() not in _FIELDS or number is None:
            continue
        if not isinstance(number, int) or isinstance(number, bool) or not -(1 << 63) <= number < 1 << 63:
            return None
        found[name.lower()] = number
    return Limiter(**found)
