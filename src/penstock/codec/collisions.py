"""Refuses payloads whose numbers were chosen so that a dict or a set of them takes minutes.

Python's hash of a number is its remainder, which everybody can compute: 20 000 different numbers, or UUIDs,
with one remainder are few bytes, and each insertion compares with all before. The hash of a tuple of numbers
can be chosen, too. Hashes of texts are secret.
"""

from __future__ import annotations

import re
import struct
import sys
from collections import Counter
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
from msgspec import inspect

from penstock.codec.tags import Misfit

#: Fewer bytes hold too few numbers to matter.
_SMALL = 16 * 1024
#: The most different numbers with one hash. By chance there are two of them once in a billion payloads.
_MOST = 100
#: Numbers with enough digits for more than `_MOST` of them to have one hash; those of 64 bits have too few.
_NUMBER = re.compile(
    rb"""(?<=[-+",:\[\s]) [0-9.]++ (?: (?<=[0-9.]{21}) | [eE][+-]?[0-9]++ ) (?=["\],:}\s])""", re.VERBOSE
)
_TUPLE = re.compile(rb"\[[-+0-9.eE,a-z \t\r\n]++\]")
_ESCAPED = re.compile(rb"\\u00([0-9a-fA-F]{2})")
_UUID = re.compile(rb"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")
_HALVES = struct.Struct(">QQ")
_MODULUS = sys.hash_info.modulus
_SAFE_KEYS = (
    *(inspect.StrType, inspect.BytesType, inspect.BoolType, inspect.NoneType, inspect.FloatType),
    *(inspect.EnumType, inspect.LiteralType, inspect.DateTimeType, inspect.DateType, inspect.TimeType),
)

Decode = Callable[[Any], Any]


def guarded(decode: Decode, collides: bool) -> Decode:
    """The decoder, which refuses with Misfit what a dict or set of numbers cannot take in."""
    if not collides:
        return decode

    def checked(payload: bytes | msgspec.Raw) -> Any:
        if len(memoryview(payload)) > _SMALL:
            _check(bytes(payload))
        return decode(payload)

    return checked


def may_collide(annotation: Any) -> bool:
    """Whether a value of this type has a dict or a set of numbers in it, as far as the type says."""
    return _has_numbers(inspect.type_info(annotation), set())


def _has_numbers(info: Any, seen: set[int]) -> bool:
    if info is ... or id(info) in seen:  # the end of a tuple, or a type that contains itself
        return False
    seen.add(id(info))
    if isinstance(info, inspect.CustomType):
        return True
    if isinstance(info, inspect.SetType | inspect.FrozenSetType):
        return not isinstance(info.item_type, _SAFE_KEYS)
    if isinstance(info, inspect.DictType) and not isinstance(info.key_type, (*_SAFE_KEYS, inspect.AnyType)):
        return True
    return any(_has_numbers(part, seen) for part in _parts(info))


def _parts(info: Any) -> list[Any]:
    """The types of which a type is made."""
    several = [*getattr(info, "types", ()), *getattr(info, "item_types", ())]
    several += [field.type for field in getattr(info, "fields", ())]
    return several + [
        getattr(info, name) for name in ("item_type", "key_type", "value_type", "type") if hasattr(info, name)
    ]


def _check(payload: bytes) -> None:
    """Raise Misfit if many numbers, or tuples of them, have the same hash."""
    if b"\\u00" in payload:
        payload = _ESCAPED.sub(lambda one: bytes([int(one[1], 16)]), payload)
    hashes = Counter(map(_hash_of_number, set(_NUMBER.findall(payload))))
    hashes.update(map(_hash_of_tuple, set(_TUPLE.findall(payload))))
    del hashes[None]
    digits = b"".join(set(_UUID.findall(payload))).replace(b"-", b"")
    high = (1 << 64) % _MODULUS
    hashes.update(
        (one * high + other) % _MODULUS for one, other in _HALVES.iter_unpack(bytes.fromhex(digits.decode()))
    )
    if hashes and hashes.most_common(1)[0][1] > _MOST:
        raise Misfit(
            f"more than {_MOST} of its numbers have the same hash: a dict or set of them would take too long;"
            " pass them as texts"
        )


def _hash_of_number(text: bytes) -> int | None:
    try:
        return hash(number) if (number := Decimal(text.decode())) else None
    except InvalidOperation:  # no number for the decoder either
        return None


def _hash_of_tuple(text: bytes) -> int | None:
    try:
        return hash(tuple(msgspec.json.decode(text)))
    except msgspec.MsgspecError:
        return None
