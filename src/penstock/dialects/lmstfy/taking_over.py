"""Takes over the tokens and limits of a running lmstfy, so that its clients keep theirs."""

from __future__ import annotations

import logging
from urllib.parse import quote

from penstock.core.errors import StoreError
from penstock.dialects.lmstfy.limits import TokenLimits
from penstock.dialects.lmstfy.tokens import Tokens
from penstock.dialects.lmstfy.upstream import OldLmstfy

__all__ = ["take_over_tokens"]

_log = logging.getLogger("penstock.lmstfy")


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
