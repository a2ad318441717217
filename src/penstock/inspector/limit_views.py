"""The limits of a queue as operators see them, and who has set each of them."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.limit_layers import LimitLayers
from penstock.core.limits import QueueLimits

__all__ = ["LimitsView", "limits_by_code", "limits_view", "sources_of_limits"]


class LimitsView(msgspec.Struct, frozen=True):
    """The limits of a queue; None: no limit. `rate` is text that can be set again, ages are seconds."""

    max_size: int | None
    on_full: str
    max_running: int | None
    rate: str | None
    burst: int | None
    keep_finished: int | None
    keep_dead: int | None
    keep_finished_for: float | None
    keep_dead_for: float | None


def limits_view(limits: QueueLimits) -> LimitsView:
    """Limits, with durations in seconds."""
    rate = limits.rate
    return LimitsView(
        limits.max_size,
        limits.on_full.value,
        limits.max_running,
        None if rate is None else str(rate),
        None if rate is None else rate.burst,
        limits.keep_finished,
        limits.keep_dead,
        None if limits.keep_finished_for is None else limits.keep_finished_for / 1000,
        None if limits.keep_dead_for is None else limits.keep_dead_for / 1000,
    )


def sources_of_limits(layers: LimitLayers) -> dict[str, str]:
    """Who has set each limit, "operator" or "code", without those that have their default."""
    found = {name: layers.source(_limit_of(name)) for name in LimitsView.__struct_fields__}
    return {name: source for name, source in found.items() if source != "default"}


def limits_by_code(layers: LimitLayers) -> dict[str, Any]:
    """The limits that the app's code sets."""
    only = LimitLayers(code=layers.code)
    shown = msgspec.structs.asdict(limits_view(only.limits()))
    return {name: value for name, value in shown.items() if only.source(_limit_of(name)) == "code"}


def _limit_of(name: str) -> str:
    """The limit that a name of the view belongs to: a burst is part of its rate."""
    return "rate" if name == "burst" else name
