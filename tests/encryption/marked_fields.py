"""Reads the marks of fields, independently of the encrypted store, and makes values with a canary in each."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from penstock.core.security import Secret

#: A recognisable value, which stands in every marked field that a test makes.
CANARY = "canary7f3a"
_PLANTED = {str: CANARY, bytes: b'["%s"]' % CANARY.encode()}
_PLAIN = {str: "plain", bytes: b"plain", int: 1, float: 1.0, bool: False, type(None): None}


class Field(NamedTuple):
    """A field, or the answer of a request."""

    name: str
    kind: Any

    @property
    def marks(self) -> set[Secret]:
        return {part for part in _parts(self.kind) if isinstance(part, Secret)}

    @property
    def holds_text(self) -> bool:
        """Whether it may hold text or bytes, apart from those in a struct, which has fields of its own."""
        return any(part in (str, bytes, bytearray, memoryview, object, Any) for part in _parts(self.kind))


def fields_in(kind: Any, seen: set[Any] | None = None) -> Iterator[Field]:
    """Every field that a value of this type may reach, through structs and all other types."""
    seen = set() if seen is None else seen
    for part in _parts(kind):
        if _is_struct(part) and part not in seen:
            seen.add(part)
            for name, hint in _hints(part).items():
                yield Field(f"{part.__name__}.{name}", hint)
                yield from fields_in(hint, seen)


def marked_values(value: Any) -> Iterator[tuple[Field, str | bytes]]:
    """Each value of a marked field in this value that is not None or empty."""
    if isinstance(value, msgspec.Struct):
        for name, hint in _hints(type(value)).items():
            field, content = Field(f"{type(value).__name__}.{name}", hint), getattr(value, name)
            if field.marks:
                yield from ((field, leaf) for leaf in _leaves(content) if leaf)
            else:
                yield from marked_values(content)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from marked_values(one)
    elif isinstance(value, dict):
        yield from marked_values([*value, *value.values()])


def planted(kind: Any, given: Mapping[Any, Callable[[], Any]]) -> Any:
    """A value of this type with a canary in each marked field, and what is given for some types."""
    origin, inside = get_origin(kind), get_args(kind)
    if kind in given:
        return given[kind]()
    if origin is Annotated:
        texts = [part for part in _parts(inside[0]) if part in _PLANTED]
        return _PLANTED[texts[0]] if Field("", kind).marks else planted(inside[0], given)
    if origin in (Union, UnionType):
        return planted(next((one for one in inside if _has_marks(one)), inside[0]), given)
    if _is_struct(kind):
        required = {one.name for one in msgspec.structs.fields(kind) if one.required}
        made = {name: hint for name, hint in _hints(kind).items() if name in required or _has_marks(hint)}
        return kind(**{name: planted(hint, given) for name, hint in made.items()})
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return next(iter(kind))
    if origin is not None:
        items = [planted(inside[0], given)]
        return tuple(items) if origin is tuple else items
    return _PLAIN[kind]


def _has_marks(kind: Any) -> bool:
    return any(field.marks for field in (Field("", kind), *fields_in(kind)))


def _parts(kind: Any) -> Iterator[Any]:
    """The types, and the marks, that this type is made of."""
    yield kind
    inside = kind if isinstance(kind, list) else get_args(kind)  # a list: the parameters of a callable
    for one in inside:
        yield from _parts(one)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _leaves(one)
    else:
        yield value


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _hints(struct: type[msgspec.Struct]) -> dict[str, Any]:
    hints = get_type_hints(struct, include_extras=True)
    return {name: hints[name] for name in struct.__struct_fields__}
