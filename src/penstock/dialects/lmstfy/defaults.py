"""The settings that a running server can change, among them the values that a request leaves out."""

from __future__ import annotations

import msgspec

__all__ = ["Defaults", "LmstfySettings"]


class Defaults(msgspec.Struct, frozen=True):
    """lmstfy's defaults; times in seconds. A `ttl` of 0 means forever."""

    delay: int = 0
    ttl: int = 86_400
    tries: int = 1
    ttr: int = 120
    timeout: int = 0


class LmstfySettings(msgspec.Struct, frozen=True):
    """What a reload changes. `accounts`: passwords by name, for the routes that manage tokens."""

    defaults: Defaults = Defaults()
    accounts: dict[str, str] = {}
    access_log: bool = False
