"""The limits of a queue by who has set them: an operator's value takes precedence over the code's.

The limits in effect are computed here and stored beside the layers, so that fetches read no layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from penstock.core.limits import NO_LIMITS, LimitChange, QueueLimits

__all__ = ["LIMIT_NAMES", "NO_LAYERS", "LimitLayers", "LimitSource", "limits_by_code", "limits_reset"]

LimitSource = Literal["operator", "code", "default"]
#: The limits that both can set. A throttle is no limit: it ends by itself.
LIMIT_NAMES = QueueLimits.__struct_fields__
_UNCHANGED = LimitChange()


class LimitLayers(msgspec.Struct, frozen=True):
    """What an operator and what the app's code have set; UNSET: nothing, None: no limit."""

    operator: LimitChange = _UNCHANGED
    code: LimitChange = _UNCHANGED

    @classmethod
    def by_operator(cls, limits: QueueLimits) -> LimitLayers:
        """The layers of limits that were stored without any: an operator has set what is not the default."""
        given = {name: value for name, value in _values(limits).items() if value != getattr(NO_LIMITS, name)}
        return cls(LimitChange(**given))

    def source(self, name: str) -> LimitSource:
        """Who has set the value of this limit that is in effect."""
        if getattr(self.operator, name) is not UNSET:
            return "operator"
        return "default" if getattr(self.code, name) is UNSET else "code"

    def limits(self) -> QueueLimits:
        """The limits in effect."""
        return QueueLimits(**{**_set_in(self.code), **_set_in(self.operator)})

    def changed(self, change: LimitChange, now: QueueLimits) -> LimitLayers:
        """Apply a change. `now`: the limits in effect, of which a new rate may keep the burst."""
        if change.by_code:
            return LimitLayers(self.operator, LimitChange(**_set_in(change)))
        operator = {**_set_in(self.operator), **_set_in(change)}
        rate = operator.get("rate")
        if change.keep_burst and change.rate and rate and now.rate is not None:
            operator["rate"] = msgspec.structs.replace(rate, burst=now.rate.burst)
        return LimitLayers(
            LimitChange(**{name: value for name, value in operator.items() if name not in change.reset}),
            self.code,
        )

    def to_dicts(self) -> list[dict[str, Any]]:
        """The layers for a store: the operator's values and the code's, by name."""
        return [_set_in(self.operator), _set_in(self.code)]


NO_LAYERS = LimitLayers()


def limits_by_code(**given: Any) -> LimitChange:
    """Read the limits in an app's code. The change replaces all that the code has set before."""
    change = LimitChange.of(**given)
    return msgspec.structs.replace(change, by_code=True, keep_burst=False)


def limits_reset(names: Iterable[str] = LIMIT_NAMES) -> LimitChange:
    """The change that forgets an operator's values, so that the code's are in effect again."""
    return LimitChange(reset=tuple(names))


def _values(limits: QueueLimits) -> dict[str, Any]:
    return {name: getattr(limits, name) for name in LIMIT_NAMES}


def _set_in(change: LimitChange) -> dict[str, Any]:
    found = {name: getattr(change, name) for name in LIMIT_NAMES}
    return {name: value for name, value in found.items() if value is not UNSET}
