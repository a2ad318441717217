"""JSON schemas of annotations, and a check of JSON data against them that needs no Python type.

The check is for those who send data to code that they do not have. Whatever the codec of the annotation
reads, the check accepts; it ignores every keyword that it does not know. `Meta(extra_json_schema=...)` and
pydantic's `json_schema_extra` are the author's word, and checked.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from penstock.codec.shape import Mode, rewritten

#: The largest schema that is kept (bytes).
LARGEST_SCHEMA = 64 * 1024
#: The mark of the schema of a pydantic model: pydantic converts numbers, texts and booleans, so that only
#: objects, arrays, null and other values are told apart below it.
_LAX = "x-converts"
_REF = "#/$defs/"
#: Their functions may read any data, which the schema of a model does not tell.
_OWN_CODE = {"function-before", "function-wrap", "function-plain", "call", "custom-error"}
_FORMATS: dict[str, Any] = {
    "date-time": datetime,
    "date": date,
    "time": time,
    "duration": timedelta,
    "uuid": UUID,
}
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_CONTAINERS = ("object", "array", "null")


class SchemaMisfit(NamedTuple):
    """Why data does not fit, and where: the path has names of properties and numbers of items."""

    path: tuple[str | int, ...]
    reason: str

    def __str__(self) -> str:
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return f"{self.reason} - at `${''.join(steps)}`" if self.path else self.reason


def schema_of(annotation: Any) -> bytes | None:
    """The JSON schema of what a codec of this annotation reads; None for Any, or if none can be made."""
    try:
        plain = rewritten(annotation, Mode.BARE)
        found = _Schemas()
        schema = msgspec.json.schema(plain, schema_hook=found.hook)
        definitions = {**schema.get("$defs", {}), **found.definitions}
        for name in _open_enums(msgspec.inspect.type_info(plain), set()):
            definitions[name] = {}
        if definitions:
            schema["$defs"] = definitions
        encoded = msgspec.json.encode(schema)
    except Exception:  # noqa: BLE001  # boundary: it evaluates the annotations of foreign classes
        return None
    return encoded if schema.keys() - {"title"} and len(encoded) <= LARGEST_SCHEMA else None


def misfit(schema: bytes, payload: bytes) -> str | None:
    """Why JSON data does not fit a schema, with the path of the part; None if it fits."""
    found = misfit_of(schema, payload)
    return None if found is None else str(found)


def misfit_of(schema: bytes, payload: bytes) -> SchemaMisfit | None:
    """As `misfit`, in parts."""
    try:
        value = msgspec.json.decode(payload or b"null")
    except (ValueError, RecursionError) as error:  # of msgspec, or of text that is not UTF-8
        return SchemaMisfit((), str(error))
    try:
        root = msgspec.json.decode(schema)
        return next(_Check(root).misfits(root, value, ()), None)
    except (ValueError, RecursionError):
        return None  # a schema of a foreign program, or one that names itself


def resolved_schema(root: Any, schema: Any) -> dict[str, Any]:
    """The schema that a part of a schema refers to, with its own keywords before those of the other."""
    found = dict(schema) if isinstance(schema, dict) else {}
    for _ in range(10):
        ref = found.pop("$ref", None)
        definitions = root.get("$defs") if isinstance(root, dict) else None
        if not isinstance(ref, str) or not ref.startswith(_REF) or not isinstance(definitions, dict):
            break
        there = definitions.get(ref.removeprefix(_REF))
        found = {**there, **found} if isinstance(there, dict) else found
    return found


# ── making schemas ────────────────────────────────────────────────────────────────────────────────────────


class _Schemas:
    """The schemas of types that msgspec does not know, and the definitions that they refer to."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}

    def hook(self, kind: Any) -> dict[str, Any]:
        """The schema of a type that msgspec does not know."""
        if isinstance(kind, type):
            if issubclass(kind, PurePath):
                return {"type": "string"}
            if hasattr(kind, "model_json_schema") and hasattr(kind, "model_validate_json"):
                return self._model(kind)
        return _open(kind)

    def _model(self, kind: Any) -> dict[str, Any]:
        if _has_own_code(kind.__pydantic_core_schema__):
            return _open(kind)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name not in self.definitions:
            template = f"{_REF}{name}:{{model}}"
            schema = kind.model_json_schema(ref_template=template)
            for own, definition in schema.pop("$defs", {}).items():
                self.definitions[f"{name}:{own}"] = definition
            self.definitions[name] = {**schema, _LAX: True}
        return {"$ref": _REF + name}


def _open(kind: Any) -> dict[str, Any]:
    """The schema of a type whose data is not checked; msgspec takes no empty one."""
    return {"title": getattr(kind, "__name__", "any value")}


def _has_own_code(core: Any) -> bool:
    """Whether a pydantic model reads more than its JSON schema says."""
    if isinstance(core, (list, tuple)):
        return any(map(_has_own_code, core))
    if not isinstance(core, Mapping):
        return False
    if core.get("type") in _OWN_CODE or core.get("custom_init") or core.get("validate_by_name"):
        return True
    if core.get("populate_by_name") or isinstance(core.get("validation_alias"), list):
        return True
    return any(_has_own_code(inner) for key, inner in core.items() if key not in ("metadata", "default"))


def _open_enums(info: Any, seen: set[int]) -> Iterator[str]:
    """The names of enums that make members of other values."""
    if isinstance(info, (list, tuple)):
        for inner in info:
            yield from _open_enums(inner, seen)
    if not isinstance(info, (msgspec.inspect.Type, msgspec.inspect.Field)) or id(info) in seen:
        return
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.EnumType):
        if info.cls._missing_.__func__ is not enum.Enum._missing_.__func__:  # type: ignore[attr-defined]
            yield info.cls.__name__
        return
    for name in info.__struct_fields__:
        yield from _open_enums(getattr(info, name), seen)


# ── the check ─────────────────────────────────────────────────────────────────────────────────────────────


class _Check:
    """The check of data against the parts of one schema."""

    def __init__(self, root: Any) -> None:
        self._root = root

    def misfits(
        self, part: Any, value: Any, path: tuple[str | int, ...], lax: bool = False
    ) -> Iterator[SchemaMisfit]:
        """Each reason why a value does not fit a part of the schema."""
        if part is False:
            yield SchemaMisfit(path, "nothing may stand here")
        if not isinstance(part, dict):
            return
        schema = resolved_schema(self._root, part)
        lax = lax or bool(schema.get(_LAX))
        for choice in ("anyOf", "oneOf"):
            if isinstance(schema.get(choice), list):
                yield from self._any_of(schema[choice], value, path, lax)
        for one in _list(schema.get("allOf")):
            yield from self.misfits(one, value, path, lax)
        why = _type_misfit(schema, value, lax) or (None if lax else _value_misfit(schema, value))
        if why is not None:
            yield SchemaMisfit(path, why)
        elif isinstance(value, dict):
            yield from self._object(schema, value, path, lax)
        elif isinstance(value, list):
            yield from self._array(schema, value, path, lax)

    def _any_of(
        self, choices: list[Any], value: Any, path: tuple[str | int, ...], lax: bool
    ) -> Iterator[SchemaMisfit]:
        found = [next(self.misfits(choice, value, path, lax), None) for choice in choices]
        whys = [why for why in found if why is not None]
        if len(whys) < len(choices) or not whys:
            return
        deepest = max(whys, key=lambda why: len(why.path))
        if deepest.path == path:
            names = [_spoken(resolved_schema(self._root, choice)) for choice in choices]
            deepest = SchemaMisfit(path, f"expected {' or '.join(dict.fromkeys(names))}, got {_kind(value)}")
        yield deepest

    def _object(
        self, schema: dict[str, Any], value: dict[str, Any], path: tuple[str | int, ...], lax: bool
    ) -> Iterator[SchemaMisfit]:
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        for name in _list(schema.get("required")):
            if name not in value and not _is_tag(properties.get(name)):
                yield SchemaMisfit(path, f"{name!r} is missing")
        more = schema.get("additionalProperties", True)
        for name, inner in value.items():
            if name in properties:
                yield from self.misfits(properties[name], inner, (*path, name), lax)
            elif more is False:
                yield SchemaMisfit(path, f"{name!r} is unknown")
            else:
                yield from self.misfits(more, inner, (*path, name), lax)

    def _array(
        self, schema: dict[str, Any], value: list[Any], path: tuple[str | int, ...], lax: bool
    ) -> Iterator[SchemaMisfit]:
        least, most = schema.get("minItems"), schema.get("maxItems")
        if isinstance(least, int) and len(value) < least:
            yield SchemaMisfit(path, f"expected at least {least:,} items, got {len(value):,}")
        if isinstance(most, int) and len(value) > most and not schema.get("uniqueItems"):
            yield SchemaMisfit(path, f"expected at most {most:,} items, got {len(value):,}")
        first = _list(schema.get("prefixItems"))
        for n, inner in enumerate(value):
            part = first[n] if n < len(first) else schema.get("items", True)
            yield from self.misfits(part, inner, (*path, n), lax)


def _type_misfit(schema: dict[str, Any], value: Any, lax: bool) -> str | None:
    named = schema.get("type")
    names = [name for name in (named if isinstance(named, list) else [named]) if isinstance(name, str)]
    if not names or any(name not in _TYPES for name in names) or any(_is(name, value) for name in names):
        return None
    if schema.get("format") == "decimal" and _is("number", value):
        return None
    if lax and _kind(value) not in _CONTAINERS and any(name not in _CONTAINERS for name in names):
        return None
    return f"expected {' or '.join(names)}, got {_kind(value)}"


def _value_misfit(schema: dict[str, Any], value: Any) -> str | None:
    """Why a value of the right type does not fit."""
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(choices, list) and not any(_same(value, choice) for choice in choices):
        shown = ", ".join(msgspec.json.encode(choice).decode() for choice in choices[:20])
        return f"expected {'one of ' if len(choices) > 1 else ''}{shown}{', …' if len(choices) > 20 else ''}"
    if isinstance(value, str):
        return _text_misfit(schema, value)
    if _is("number", value):
        return _number_misfit(schema, value)
    return None


def _text_misfit(schema: dict[str, Any], value: str) -> str | None:
    kind = Decimal if schema.get("format") == "decimal" else _FORMATS.get(schema.get("format", ""))
    if kind is not None:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            return str(error)
    if "contentEncoding" in schema:
        return None  # its limits are those of the bytes
    least, most, pattern = (schema.get(name) for name in ("minLength", "maxLength", "pattern"))
    if isinstance(least, int) and len(value) < least:
        return f"expected at least {least:,} characters, got {len(value):,}"
    if isinstance(most, int) and len(value) > most:
        return f"expected at most {most:,} characters, got {len(value):,}"
    try:
        fits = not isinstance(pattern, str) or re.search(pattern, value) is not None
    except re.error:
        return None
    return None if fits else f"expected a text like {pattern!r:.100}"


def _number_misfit(schema: dict[str, Any], value: float) -> str | None:
    limits = [(name, schema[name]) for name in _LIMITS if _is("number", schema.get(name))]
    for name, limit in limits:
        word, is_within = _LIMITS[name]
        if not is_within(value, limit):
            return f"expected {word} {limit}"
    factor = schema.get("multipleOf")
    if isinstance(factor, int) and factor and isinstance(value, int) and value % factor:
        return f"expected a multiple of {factor}"
    return None


_LIMITS: dict[str, tuple[str, Any]] = {
    "minimum": ("at least", lambda value, limit: value >= limit),
    "maximum": ("at most", lambda value, limit: value <= limit),
    "exclusiveMinimum": ("more than", lambda value, limit: value > limit),
    "exclusiveMaximum": ("less than", lambda value, limit: value < limit),
}


def _is(name: str, value: Any) -> bool:
    return isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def _kind(value: Any) -> str:
    kinds = ("null", "boolean", "integer", "number", "string", "array", "object")
    return next(name for name in kinds if _is(name, value))


def _same(value: Any, choice: Any) -> bool:
    return isinstance(value, bool) == isinstance(choice, bool) and bool(value == choice)


def _is_tag(schema: Any) -> bool:
    """Whether a property has but one value: the tag of a class may be left out."""
    return isinstance(schema, dict) and len(_list(schema.get("enum"))) == 1


def _spoken(schema: dict[str, Any]) -> str:
    named = schema.get("type")
    return named if isinstance(named, str) else str(schema.get("title") or "another value")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
