"""Encode and decode the limits of a queue (see `scripts/lib/limits.lua`)."""

from __future__ import annotations

import struct

from msgspec import UNSET, UnsetType

from penstock.core.limits import NO_LIMITS, LimitChange, OnFull, QueueLimits, Rate
from penstock.stores.redis.layout import NONE, UNDECODABLE

__all__ = ["limit_values", "limits_of", "readable_limits"]

_LIMITS = struct.Struct("<10d")


def limit_values(change: LimitChange) -> list[int | float | str]:
    """Return limits as arguments of settings.lua, in the order of limits.lua; "" keeps a limit."""

    def number(value: float | UnsetType | None) -> float | str:
        return "" if value is UNSET else NONE if value is None else value

    waits = "" if change.on_full is UNSET else int(change.on_full is OnFull.WAIT)
    rate = change.rate
    pace: list[float | str] = ["", "", ""] if rate is UNSET else [NONE] * 3
    if isinstance(rate, Rate):
        pace = [rate.count, rate.per_ms, "" if change.keep_burst else rate.burst]
    kept = (change.keep_finished, change.keep_dead, change.keep_finished_for, change.keep_dead_for)
    return [number(change.max_size), waits, number(change.max_running), *pace, *map(number, kept)]


def limits_of(text: bytes) -> QueueLimits:
    """Decode stored limits; no limits if the bytes cannot be read."""
    return (readable_limits(text) if text else None) or NO_LIMITS


def readable_limits(text: bytes) -> QueueLimits | None:
    """Decode stored limits; None if the bytes cannot be read."""
    try:
        return _limits(*_LIMITS.unpack(text))
    except UNDECODABLE:
        return None


def _limits(size: float, waits: float, running: float, count: float, per: float, *rest: float) -> QueueLimits:
    burst, *kept = rest
    numbers = [None if value == NONE else int(value) for value in (size, running, *kept)]
    rate = None if count == NONE else Rate(count, int(per), int(burst))
    return QueueLimits(
        numbers[0], OnFull.WAIT if waits == 1 else OnFull.REJECT, numbers[1], rate, *numbers[2:]
    )
