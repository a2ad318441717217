"""The values of parameters that a request leaves out."""

from __future__ import annotations

import msgspec

__all__ = ["Defaults"]


class Defaults(msgspec.Struct, frozen=True):
    """lmstfy's defaults; times in seconds. A `ttl` of 0 means forever."""

    delay: int = 0
    ttl: int = 86_400
    tries: int = 1
    ttr: int = 120
    timeout: int = 0
