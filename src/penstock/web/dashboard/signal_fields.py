"""The fields of a form for the data of a signal: typed by the JSON schema of what the wait takes.

The class itself may be unknown to the dashboard, so the schema is all there is. What it does not describe is
entered as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.codec.schema import misfit_of, resolved_schema
from penstock.web.dashboard.forms import Form
from penstock.web.dashboard.json_tree import Redaction, holds_hidden
from penstock.web.dashboard.task_form import ArgumentField, Kind, shown_value

#: The name of the one field of data that is not an object.
WHOLE = ""
_MOST_FIELDS, _MOST_CHOICES = 40, 200
_EXAMPLES = {
    "date-time": "2026-11-20T08:30:00Z",
    "date": "2026-11-20",
    "time": "08:30:00",
    "duration": "PT5M",
    "uuid": "6f7d1f6c-6a0e-4e9f-8d2a-6a2a6b2b1d11",
    "decimal": "12.50",
}


def signal_fields(schema: bytes, redaction: Redaction) -> list[ArgumentField]:
    """A field for each property of an object, else one field, `WHOLE`. Hidden defaults are not shown."""
    try:
        root = msgspec.json.decode(schema)
    except (ValueError, RecursionError):
        root = {}
    whole = resolved_schema(root, root)
    properties = whole.get("properties")
    if whole.get("type") == "object" and isinstance(properties, dict) and 0 < len(properties) <= _MOST_FIELDS:
        required = whole.get("required")
        needed = required if isinstance(required, list) else []
        return [_field(root, name, part, name in needed, redaction) for name, part in properties.items()]
    return [_field(root, WHOLE, root, True, redaction)]


def entered_signal(fields: Sequence[ArgumentField], form: Form, schema: bytes) -> bytes | None:
    """The data that a form has sent, as JSON; None if it does not fit: the fields then have the errors."""
    found: dict[str, msgspec.Raw] = {}
    for field in fields:
        given = form.all(f"s.{field.name}")
        field.text = given[-1].replace("\r\n", "\n") if given else field.text
        field.null = field.nullable and f"null.{field.name}" in form
        try:
            raw = field.json
            if raw is not None:
                found[field.name] = msgspec.Raw(raw)
            elif field.required:
                field.error = "This is required."
        except ValueError as error:
            field.error = f"This is not JSON: {error}"
        except RecursionError:
            field.error = "This JSON is nested too deeply."
    if any(field.error for field in fields):
        return None
    data = bytes(found[WHOLE]) if WHOLE in found else msgspec.json.encode(found)
    wrong = misfit_of(schema, data)
    if wrong is None:
        return data
    by_name = {field.name: field for field in fields}
    inner = bool(wrong.path) and wrong.path[0] in by_name
    field = by_name[str(wrong.path[0])] if inner else fields[0]
    rest = wrong._replace(path=wrong.path[1:]) if inner else wrong
    field.error = f"Nothing was sent: {rest}"
    return None


# ── from a schema ────────────────────────────────────────────────────────────────────────────────


def _field(root: Any, name: str, part: Any, required: bool, redaction: Redaction) -> ArgumentField:
    schema, nullable = _without_null(root, resolved_schema(root, part))
    kind, choices = _entry(schema)
    shown = "" if kind == "choice" else _type_of(schema)
    example = "" if kind == "choice" else _example(schema)
    field = ArgumentField(name, kind, shown, required, example=example, choices=choices)
    has_default = isinstance(part, dict) and part.get("default") is not None
    raw = msgspec.json.encode(part["default"]) if has_default and not required else b""
    if raw and not redaction.hides(name) and not holds_hidden(raw, redaction):
        field.default = field.text = shown_value(kind, raw)
    field.nullable = nullable and (required or has_default)
    if required and kind == "choice" and len(choices) == 1:
        field.text = choices[0][1]
    return field


def _without_null(root: Any, schema: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The schema of the values that are not null, and whether null is one."""
    members = schema.get("anyOf")
    if not isinstance(members, list):
        return schema, schema.get("type") == "null"
    resolved = [resolved_schema(root, one) for one in members]
    others = [one for one in resolved if one.get("type") != "null"]
    nullable = len(others) < len(resolved)
    return (others[0] if len(others) == 1 else {**schema, "anyOf": others}), nullable


def _entry(schema: Mapping[str, Any]) -> tuple[Kind, Sequence[tuple[str, str]]]:
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(choices, list) and 0 < len(choices) <= _MOST_CHOICES:
        pairs = [(one, msgspec.json.encode(one).decode()) for one in choices]
        return "choice", [(one if isinstance(one, str) else raw, raw) for one, raw in pairs]
    match schema.get("type"):
        case "boolean":
            return "choice", [("true", "true"), ("false", "false")]
        case "integer" | "number":
            return "number", ()
        case "string":
            return ("word" if {"format", "contentEncoding"} & schema.keys() else "text"), ()
    return "json", ()


def _type_of(schema: Mapping[str, Any]) -> str:
    """The name of a type for people."""
    for name in ("format", "title", "contentEncoding", "type"):
        if isinstance(schema.get(name), str):
            return str(schema[name])
    return "JSON"


def _example(schema: Mapping[str, Any]) -> str:
    """What a value looks like, in a line."""
    properties = schema.get("properties")
    if isinstance(properties, dict) and properties:
        return "{" + ", ".join(f'"{name}": …' for name in list(properties)[:10]) + "}"
    if schema.get("type") == "array":
        return "[…]"
    return _EXAMPLES.get(str(schema.get("format")), "")
