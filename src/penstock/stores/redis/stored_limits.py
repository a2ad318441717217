"""Encode and decode the limits of a queue (see `scripts/lib/limits.lua`)."""

from __future__ import annotations

import struct
from typing import Any

from msgspec import UNSET

from penstock.core.limits import NO_LIMITS, LimitChange, LimitLayers, OnFull, QueueLimits, Rate
from penstock.stores.redis.layout import NONE, UNDECODABLE

_LIMITS = struct.Struct("<10d")
#: A value that a layer does not set; INHERIT in settings.lua.
_INHERIT = NONE + 1


def limit_values(change: LimitChange) -> list[int | float | str]:
    """Return limits as arguments of settings.lua, in the order of limits.lua; "" keeps a limit."""

    def unset(name: str) -> float | str:
        return _INHERIT if change.by_code or name in change.reset else ""

    def number(name: str) -> float | str:
        value = getattr(change, name)
        return unset(name) if value is UNSET or name in change.reset else NONE if value is None else value

    keeps_waiting = change.on_full is UNSET or "on_full" in change.reset
    waits = unset("on_full") if keeps_waiting else int(change.on_full is OnFull.WAIT)
    rate = UNSET if "rate" in change.reset else change.rate
    pace: list[float | str] = [unset("rate") if rate is UNSET else NONE] * 3
    if isinstance(rate, Rate):
        pace = [rate.count, rate.per_ms, "" if change.keep_burst else rate.burst]
    kept = ("keep_finished", "keep_dead", "keep_finished_for", "keep_dead_for")
    return [number("max_size"), waits, number("max_running"), *pace, *map(number, kept)]


def limits_of(text: bytes) -> QueueLimits:
    """Decode stored limits; no limits if the bytes cannot be read."""
    return (readable_limits(text) if text else None) or NO_LIMITS


def readable_limits(text: bytes) -> QueueLimits | None:
    """Decode stored limits; None if the bytes cannot be read."""
    try:
        return _limits(*_LIMITS.unpack(text))
    except UNDECODABLE:
        return None


def layers_of(operator: bytes, code: bytes, limits: QueueLimits) -> LimitLayers:
    """Decode who has set these limits; an operator, if nothing readable was stored of that."""
    if not operator and not code:
        return LimitLayers.by_operator(limits)
    try:
        return LimitLayers(_layer(operator), _layer(code))
    except UNDECODABLE:
        return LimitLayers.by_operator(limits)


def _layer(text: bytes) -> LimitChange:
    if not text:
        return LimitChange()
    size, waits, running, count, per, burst, *kept = _LIMITS.unpack(text)
    numbers = {"max_size": size, "max_running": running}
    numbers |= zip(("keep_finished", "keep_dead", "keep_finished_for", "keep_dead_for"), kept, strict=True)
    given: dict[str, Any] = {
        name: None if value == NONE else int(value) for name, value in numbers.items() if value != _INHERIT
    }
    if waits != _INHERIT:
        given["on_full"] = OnFull.WAIT if waits == 1 else OnFull.REJECT
    if count != _INHERIT:
        given["rate"] = None if count == NONE else Rate(count, int(per), int(burst))
    return LimitChange(**given)


def _limits(size: float, waits: float, running: float, count: float, per: float, *rest: float) -> QueueLimits:
    burst, *kept = rest
    numbers = [None if value == NONE else int(value) for value in (size, running, *kept)]
    rate = None if count == NONE else Rate(count, int(per), int(burst))
    return QueueLimits(
        numbers[0], OnFull.WAIT if waits == 1 else OnFull.REJECT, numbers[1], rate, *numbers[2:]
    )
