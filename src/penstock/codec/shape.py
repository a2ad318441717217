"""Shapes: which values fit an annotation, and how they are encoded as JSON and decoded.

A value fits if the worker's decoder makes an equal value from its bytes. This one rule refuses "5" for an
int, a str for a UUID, NaN, and every other value that JSON would change silently.
"""

from __future__ import annotations

import collections.abc
import reprlib
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cached_property
from inspect import formatannotation
from math import isfinite
from pathlib import PurePath
from types import UnionType
from typing import Annotated, Any, LiteralString, TypeVar, Union, get_args, get_origin
from uuid import UUID

import msgspec
from msgspec import UNSET

from penstock.codec.collisions import guarded, may_collide
from penstock.codec.tags import Misfit, may_hold_tags, pack, unpack

#: Default maximum size of arguments and of a result (bytes).
MAX_BYTES = 1_000_000


class Shape:
    """The values that one parameter, or a result, accepts."""

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self.plain = rewritten(annotation, Mode.PLAIN)
        tagged = rewritten(annotation, Mode.TAGGED)
        #: Whether a value may contain tags.
        self.open = tagged != self.plain
        decoder = msgspec.json.Decoder(self.plain, dec_hook=revive)
        #: Whether a value may be a dict or a set of numbers.
        self.collides = may_collide(self.plain)
        self._plain = guarded(decoder.decode, self.collides)
        self._tagged = self._plain
        if self.open:  # a tag may make a set of anything
            self._tagged = guarded(msgspec.json.Decoder(tagged, dec_hook=revive).decode, True)

    def __str__(self) -> str:
        return formatannotation(self.annotation)

    def write(self, value: Any) -> bytes:
        """Encode the value so that `read` makes an equal one. Raises Misfit."""
        why = ""
        for spelling in (_ENCODER.encode, self._with_tags) if self.open else (_ENCODER.encode,):
            try:
                payload = spelling(value)
                back = self.read(payload)
                if alike(back, value):
                    return payload
                why = f"it would come back as {back!r:.200}"
            except Exception as error:  # noqa: BLE001  # boundary: the value's own methods and hooks run in here
                why = _reason(error)
        raise Misfit(_nonfinite_reason(value) or why)

    def read(self, payload: bytes | msgspec.Raw) -> Any:
        """Decode the value. Raises the errors of msgspec and of the type's own validation."""
        if self.open and may_hold_tags(bytes(payload)):
            return self._tagged(payload)
        return self._plain(payload)

    def _with_tags(self, value: Any) -> bytes:
        # convert walks the value along the annotation and calls back at each Any
        packed = msgspec.convert(value, self._packed, dec_hook=_pack_at, builtin_types=_UNCHANGED_TYPES)
        return _ENCODER.encode(packed)

    @cached_property
    def _packed(self) -> Any:
        return rewritten(self.annotation, Mode.PACKED)


class Mode(Enum):
    """The use of a rewritten annotation."""

    PLAIN = 1  # decode a payload without tags
    TAGGED = 2  # decode a payload that may contain tags
    PACKED = 3  # walk a value to add tags
    BARE = 4  # decode a payload to encode it again: tags stay as they are


def rewritten(annotation: Any, mode: Mode) -> Any:
    """Rewrite an annotation so that msgspec treats it as intended."""
    if type(annotation).__name__ == "TypeAliasType":  # `type X = ...` of Python 3.12
        return rewritten(annotation.__value__, mode)
    if hasattr(annotation, "__supertype__"):  # NewType
        return rewritten(annotation.__supertype__, mode)
    if annotation is Any or annotation is object or isinstance(annotation, TypeVar):
        return Any if mode in (Mode.PLAIN, Mode.BARE) else Anything
    if annotation is LiteralString:
        return str
    origin: Any = get_origin(annotation) or annotation
    arguments = get_args(annotation)
    if origin is Annotated:
        return _annotated(rewritten(arguments[0], mode), annotation.__metadata__)
    if origin in (Union, UnionType):
        return _union(annotation, arguments, mode)
    if origin is tuple:
        bare = annotation is tuple or annotation is typing.Tuple  # noqa: UP006
        parts = (Any, ...) if bare else arguments
        several: Any = tuple
        return several[tuple(part if part is ... else rewritten(part, mode) for part in parts)]
    if origin in _COLLECTIONS:
        kind: Any = list if mode is Mode.PACKED else _COLLECTIONS[origin]
        return kind[rewritten(arguments[0] if arguments else Any, mode)]
    if origin in (dict, collections.abc.Mapping, collections.abc.MutableMapping):
        key, value = arguments or (Any, Any)
        key = rewritten(key, Mode.PLAIN)
        plain: Any = dict
        return plain[str if key is Any else key, rewritten(value, mode)]
    why_not = _why_not(annotation)
    return annotation if why_not is None else _mixed((), why_not, mode)


class _Everything(type):
    def __instancecheck__(cls, value: object) -> bool:
        return True  # msgspec checks the values that `revive` made


class Anything(metaclass=_Everything):
    """Stands for Any when tags are decoded."""

    @classmethod
    def read(cls, raw: Any) -> Any:
        return unpack(raw)


class Mixed(Anything):
    """Stands for a union that JSON alone cannot distinguish, such as `str | Path`, or for an unsupported
    type.

    A value is encoded without a tag, or with one if it would otherwise be decoded as another member.
    """

    shapes: tuple[Shape, ...] = ()
    why: str = ""

    @classmethod
    def read(cls, raw: Any) -> Any:
        if not cls.shapes:
            raise Misfit(cls.why)
        value = unpack(raw)
        if any(_fits(shape, value) for shape in cls.shapes):
            return value
        payload = _ENCODER.encode(raw)
        for shape in cls.shapes:
            value = _read_or_unset(shape, payload)
            if value is not UNSET:
                return value
        raise Misfit(f"expected one of {', '.join(map(str, cls.shapes))}")


def spell(value: Any) -> Any:
    """msgspec's hook for types that it does not encode itself."""
    kind = type(value)
    if hasattr(kind, "model_dump_json"):
        # round_trip and by_alias: the form that pydantic itself decodes
        return msgspec.Raw(value.model_dump_json(by_alias=True, round_trip=True).encode())
    for base, plain in _PLAIN_FORMS:
        if isinstance(value, base):
            return plain(value)
    raise Misfit(f"a value of type {kind.__name__} cannot be stored; {_WAY_OUT}")


def revive(kind: Any, raw: Any) -> Any:
    """msgspec's hook for types that it does not decode itself."""
    if isinstance(kind, type):
        if issubclass(kind, Anything):
            return kind.read(raw)
        if issubclass(kind, PurePath):
            return kind(raw)
        if hasattr(kind, "model_validate_json"):
            # in JSON mode, because only there a strict model accepts a datetime as text
            return kind.model_validate_json(msgspec.json.encode(raw))
    raise Misfit(f"a value of type {formatannotation(kind)} cannot be stored; {_WAY_OUT}")


def shown(value: Any) -> str:
    """A value as shown in an error message."""
    try:
        return f"{reprlib.repr(value)} ({type(value).__name__})"
    except Exception:  # noqa: BLE001  # boundary: a value's own repr, or an int of too many digits
        return f"of type {type(value).__name__}"


_WAY_OUT = "make it a dataclass, a msgspec.Struct or a pydantic model, or pass an id or a path instead"
_ENCODER = msgspec.json.Encoder(enc_hook=spell)
encoded = _ENCODER.encode
_UNCHANGED_TYPES = (bytes, bytearray, datetime, date, time, timedelta, UUID, Decimal)

# subclasses of types that msgspec encodes only in their exact type
_PLAIN_FORMS: tuple[tuple[type, Any], ...] = (
    (PurePath, str),
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    (datetime, datetime.isoformat),
    (date, date.isoformat),
    (time, time.isoformat),
    (timedelta, lambda value: timedelta(value.days, value.seconds, value.microseconds)),
    (bytes, lambda value: b"".join((value,))),
    (UUID, str),
    (Decimal, Decimal),
)

# abstract collections are decoded as lists and sets: a tuple for a Sequence is refused at the call, because
# the worker would get a list
_COLLECTIONS: dict[Any, Any] = {
    list: list,
    set: set,
    frozenset: frozenset,
    collections.abc.Iterable: list,
    collections.abc.Collection: list,
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Set: set,
    collections.abc.MutableSet: set,
}


def _annotated(kind: Any, metadata: Iterable[Any]) -> Any:
    for note in metadata:
        if isinstance(note, msgspec.Meta):
            kind = Annotated[kind, note]
    return kind


def _union(annotation: Any, members: Sequence[Any], mode: Mode) -> Any:
    parts = [rewritten(member, mode) for member in members]
    for anything in (Any, Anything):
        if anything in parts:
            return anything
    one_of: Any = Union
    union = one_of[tuple(parts)]
    why_not = _why_not(union)
    return union if why_not is None else _mixed(members, why_not, mode)


def _mixed(members: Sequence[Any], why: str, mode: Mode) -> Any:
    if mode is Mode.BARE:
        return Any
    return type("Mixed", (Mixed,), {"shapes": tuple(map(Shape, members)), "why": why})


def _why_not(annotation: Any) -> str | None:
    """The reason why msgspec does not support this annotation; None if it does."""
    try:
        msgspec.json.Decoder(annotation)
    except Exception as error:  # noqa: BLE001  # boundary: it evaluates the annotations of foreign classes
        return _reason(error)
    return None


def _pack_at(kind: Any, value: Any) -> Any:
    if kind is Anything:
        return pack(value)
    if isinstance(kind, type) and issubclass(kind, Mixed):
        try:
            return pack(value)
        except Misfit:
            return value  # its plain form may be enough to distinguish it
    return value


def _fits(shape: Shape, value: Any) -> bool:
    try:
        shape.write(value)
    except Misfit:
        return False
    return True


def _read_or_unset(shape: Shape, payload: bytes) -> Any:
    try:
        return shape.read(payload)
    except Exception:  # noqa: BLE001  # boundary: not this member; its validation may raise anything
        return UNSET


def _nonfinite_reason(value: Any) -> str:
    """The reason for NaN and infinity, which msgspec encodes as null without an error."""
    try:
        return "JSON has no NaN or infinity" if holds_nonfinite(value) else ""
    except Exception:  # noqa: BLE001  # boundary: it walks foreign values, which may be cyclic
        return ""


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it contains itself, or is nested too deeply"
    return " ".join(str(error).split()) or type(error).__name__


# ── comparison after a round trip ───────────────────────────────────────────────────────────────────


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
    fields = fields_of(type(one))
    return bool(fields) and all(alike(getattr(one, f), getattr(other, f)) for f in fields)


def holds_nonfinite(value: Any) -> bool:
    """Whether the value contains NaN or an infinity."""
    if isinstance(value, float):
        return not isfinite(value)
    if isinstance(value, Mapping):
        return any(map(holds_nonfinite, value.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(map(holds_nonfinite, value))
    return any(holds_nonfinite(getattr(value, field)) for field in fields_of(type(value)))


def fields_of(kind: type) -> Sequence[str]:
    """The fields of a struct, dataclass or attrs class; none of any other."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if is_dataclass(kind):
        return [field.name for field in fields(kind)]
    return [field.name for field in getattr(kind, "__attrs_attrs__", ())]
