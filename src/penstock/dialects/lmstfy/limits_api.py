"""Requests of the admin API about limits of tokens."""

from __future__ import annotations

import json
from typing import Any

from penstock.dialects.lmstfy.bodies import answer, error, json_text, plain_reply
from penstock.dialects.lmstfy.limits import Limiter, TokenLimits
from penstock.dialects.lmstfy.parameters import RefusedError, checked_text
from penstock.dialects.lmstfy.tokens import DEFAULT_POOL, read_token
from penstock.web.exchange import Exchange
from penstock.web.replies import TEXT

__all__ = ["limiter_put", "limiter_removed", "limiter_shown", "limiters_listed"]

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
