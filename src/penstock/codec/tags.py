"""Tags: JSON for types that JSON lacks, such as {"$datetime": "2024-05-01T12:00:00Z"}.

Tags are for values without an annotation; annotated parameters need none. The table is part of the public
format (docs/payloads.md): tags may be added, but their meaning never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from math import isfinite
from pathlib import Path, PurePath
from typing import Any
from uuid import UUID

import msgspec


class Misfit(ValueError):
    """A value cannot be encoded or decoded as required; the message says why."""


def pack(value: Any) -> Any:
    """Convert the value to JSON's types, with tags for other types. Raises Misfit."""
    for kind in type(value).__mro__:
        packer = _PACKERS.get(kind)
        if packer is not None:
            return packer(value)
    name = type(value).__name__
    if hasattr(type(value), "__dataclass_fields__") or hasattr(type(value), "__struct_fields__"):
        raise Misfit(f"a value of type {name} needs an annotation that names it")
    raise Misfit(f"a value of type {name} cannot be stored without an annotation that says what it is")


def unpack(value: Any) -> Any:
    """Convert back a value from `pack`. Raises Misfit for an unknown tag."""
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        [(key, inner)] = value.items()
        if key.startswith("$$"):
            return {key[1:]: unpack(inner)}
        if key.startswith("$"):
            return _untag(key, inner)
    return {key: unpack(inner) for key, inner in value.items()}


def may_hold_tags(payload: bytes) -> bool:
    """Whether the payload may contain a tag; a cheap test that saves walking most payloads in Python."""
    return b'"$' in payload or b"\\u0024" in payload


def _untag(tag: str, inner: Any) -> Any:
    reader = TAGS.get(tag)
    if reader is None:
        raise Misfit(f'unknown tag "{tag}"; a plain key that begins with "$" is written "${tag}"')
    return reader(inner)


def _collection(kind: Callable[[Iterable[Any]], Any], inner: Any) -> Any:
    return kind([unpack(item) for item in msgspec.convert(inner, list)])


#: The tags and the readers of their content. The texts are the same as for annotated parameters.
TAGS: dict[str, Callable[[Any], Any]] = {
    "$datetime": partial(msgspec.convert, type=datetime),
    "$date": partial(msgspec.convert, type=date),
    "$time": partial(msgspec.convert, type=time),
    "$timedelta": partial(msgspec.convert, type=timedelta),
    "$uuid": partial(msgspec.convert, type=UUID),
    "$decimal": partial(msgspec.convert, type=Decimal),
    "$bytes": partial(msgspec.convert, type=bytes),
    "$path": lambda inner: Path(msgspec.convert(inner, str)),
    "$tuple": partial(_collection, tuple),
    "$set": partial(_collection, set),
    "$frozenset": partial(_collection, frozenset),
}


def _pack_float(value: float) -> float:
    if not isfinite(value):
        raise Misfit("JSON has no NaN or infinity")
    return float(value)


def _pack_dict(value: dict[Any, Any]) -> dict[str, Any]:
    for key in value:
        if not isinstance(key, str):
            raise Misfit(
                f"the key {key!r} is of type {type(key).__name__}, which JSON would turn into a string; "
                f"annotate the parameter (dict[{type(key).__name__}, ...]) or use str keys"
            )
    packed = {str(key): pack(inner) for key, inner in value.items()}
    if len(packed) == 1:
        [(key, inner)] = packed.items()
        if key.startswith("$"):
            return {"$" + key: inner}
    return packed


def _pack_set(tag: str, value: Iterable[Any]) -> dict[str, Any]:
    # sorted, because the order of a set differs between processes, and equal arguments must be equal bytes
    return {tag: sorted((pack(item) for item in value), key=msgspec.json.encode)}


def _pack_text(tag: str, value: Any) -> dict[str, Any]:
    return {tag: msgspec.to_builtins(value)}


_PACKERS: dict[type, Callable[[Any], Any]] = {
    type(None): lambda value: value,
    bool: lambda value: value,
    int: int,
    float: _pack_float,
    str: str.__str__,
    list: lambda value: [pack(item) for item in value],
    dict: _pack_dict,
    datetime: lambda value: {"$datetime": value.isoformat()},
    date: lambda value: {"$date": value.isoformat()},
    time: lambda value: {"$time": value.isoformat()},
    timedelta: partial(_pack_text, "$timedelta"),
    UUID: lambda value: {"$uuid": str(value)},
    Decimal: lambda value: {"$decimal": str(value)},
    bytes: partial(_pack_text, "$bytes"),
    PurePath: lambda value: {"$path": str(value)},
    tuple: lambda value: {"$tuple": [pack(item) for item in value]},
    set: partial(_pack_set, "$set"),
    frozenset: partial(_pack_set, "$frozenset"),
}
