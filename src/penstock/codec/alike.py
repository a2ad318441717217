"""Compares a decoded value with the original."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any

import msgspec

__all__ = ["alike", "holds_nonfinite"]


def alike(one: Any, other: Any) -> bool:
    """Whether two values are equal, also for classes that define no equality."""
    if one == other:
        return True
    if isinstance(one, datetime) and isinstance(other, datetime):
        # Python treats instants in a repeated hour (fold) as unequal between zones
        aware = one.tzinfo is not None and other.tzinfo is not None
        return aware and one.astimezone(UTC) == other.astimezone(UTC)
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    fields = _fields(type(one))
    return bool(fields) and all(alike(getattr(one, f), getattr(other, f)) for f in fields)


def holds_nonfinite(value: Any) -> bool:
    """Whether the value contains NaN or an infinity."""
    if isinstance(value, float):
        return not isfinite(value)
    if isinstance(value, Mapping):
        return any(map(holds_nonfinite, value.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(map(holds_nonfinite, value))
    return any(holds_nonfinite(getattr(value, field)) for field in _fields(type(value)))


def _fields(kind: type) -> Sequence[str]:
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if is_dataclass(kind):
        return [field.name for field in fields(kind)]
    return [field.name for field in getattr(kind, "__attrs_attrs__", ())]
