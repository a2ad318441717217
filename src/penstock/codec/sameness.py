"""Canonical encoding of equal arguments, from which unique keys are computed."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec

from penstock.codec.shape import spell

__all__ = ["canonical_bytes"]

#: Above this, not every whole number can be a float.
_EXACT = 2**53


def canonical_bytes(value: Any) -> bytes:
    """Encode equal values as equal bytes: 1 and 1.0, Decimals, instants in any zone, sets, dicts."""
    plain = msgspec.to_builtins(
        _in_order(value),
        enc_hook=spell,
        builtin_types=(Decimal, datetime),
        str_keys=True,
        order="deterministic",  # sets inside other objects
    )
    return _ENCODE(_plain(plain))


def _in_order(value: Any) -> Any:
    """Sort sets into lists, also if their members have no order."""
    if isinstance(value, (set, frozenset)):
        return sorted(map(_in_order, value), key=canonical_bytes)
    if isinstance(value, dict):
        return {key: _in_order(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return [_in_order(each) for each in value]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= _EXACT else value
    if isinstance(value, Decimal):
        return str(value.normalize()) if value else "0"
    if isinstance(value, datetime):
        return value.isoformat() if value.tzinfo is None else value.astimezone(UTC).isoformat()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value


_ENCODE = msgspec.json.Encoder(enc_hook=spell, order="deterministic").encode
