"""The fields of a form for the arguments of a task: typed by its signature, checked by its codec.

What a field shows is what the job gets: a field that still shows its default leaves the argument out.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from inspect import Parameter, Signature, formatannotation
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, LiteralString, Union, get_args, get_origin
from uuid import UUID

import msgspec

from penstock.app.task import Task
from penstock.codec.shape import spell
from penstock.web.dashboard.forms import Form
from penstock.web.dashboard.json_tree import HIDDEN, Redaction, holds_hidden, json_text

Kind = Literal["text", "word", "number", "choice", "json"]

_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
#: Quoted text, which stays, or the modules of a name.
_MODULES = re.compile(r"""('[^']*'|"[^"]*")|\b(?:[a-zA-Z_]\w*\.)+(?=[a-zA-Z_])""")
_SPELL = msgspec.json.Encoder(enc_hook=spell).encode
#: Types that are written as a line of text, with an example.
_WORDS: dict[Any, str] = {
    datetime: "2026-11-20T08:30:00Z",
    date: "2026-11-20",
    time: "08:30:00",
    timedelta: "PT5M",
    UUID: "",
    Decimal: "12.50",
    bytes: "base64",
}


@dataclass
class ArgumentField:
    """One argument: how it is entered, what is entered, and what is wrong with it.

    - `text`: what the field shows. `default`: what it shows if the argument is left out.
    - `choices`: for a choice, the shown names and the JSON of each.
    - `nullable`: None is accepted and is not the default; `null`: it is chosen.
    - `kept`: the stored JSON of an argument that is hidden from the visitor, used if nothing is entered.
    """

    name: str
    kind: Kind
    type: str
    required: bool
    default: str = ""
    example: str = ""
    choices: Sequence[tuple[str, str]] = ()
    nullable: bool = False
    null: bool = False
    hidden: bool = False
    kept: bytes | None = None
    text: str = ""
    error: str = ""

    @property
    def json(self) -> bytes | None:
        """The argument as JSON; None to leave it out. Raises ValueError, or RecursionError."""
        if self.null:
            return b"null"
        if self.hidden and not self.text:
            return self.kept
        if not self.required and self.text == self.default:
            return None
        if self.kind != "text" and not self.text.strip():
            return None
        return self._entered()

    def _entered(self) -> bytes:
        text = self.text.strip()
        if self.kind == "json":
            msgspec.json.decode(text)
            return text.encode()
        if self.kind == "choice" or (self.kind == "number" and _NUMBER.fullmatch(text)):
            return text.encode()
        return msgspec.json.encode(self.text if self.kind == "text" else text)


def argument_fields(task: Task[..., Any], redaction: Redaction) -> list[ArgumentField]:
    """The fields of a task, with its defaults. Raises ConfigError if an annotation cannot be resolved."""
    return [_field(one) for one in shown_signature(task, redaction).parameters.values()]


def shown_signature(task: Task[..., Any], redaction: Redaction) -> Signature:
    """The signature of a task without the defaults that are hidden."""
    signature = task.carried.signature
    shown = [
        one.replace(default=_HIDDEN_DEFAULT) if _has_hidden_default(one, redaction) else one
        for one in signature.parameters.values()
    ]
    return signature.replace(parameters=shown)


def brief(annotation: str) -> str:
    """The text of annotations without the modules of their names."""
    return _MODULES.sub(lambda found: found[1] or "", annotation)


def fill_from_form(fields: Sequence[ArgumentField], form: Form, task: Task[..., Any]) -> dict[str, bytes]:
    """Enter what a form has sent, and return the arguments as JSON. Fields get the errors of the codec."""
    arguments: dict[str, bytes] = {}
    for field in fields:
        given = form.all(f"a.{field.name}")
        field.text = given[-1].replace("\r\n", "\n") if given else field.text
        field.null = field.nullable and f"null.{field.name}" in form
        try:
            if (found := field.json) is not None:
                arguments[field.name] = found
        except (ValueError, msgspec.MsgspecError) as error:
            field.error = f"This is not JSON: {error}"
        except RecursionError:
            field.error = "This JSON is nested too deeply."
    misfits = task.carried.misfits(arguments)
    for field in fields:
        field.error = field.error or misfits.get(field.name, "")
        if field.error and field.hidden and not field.text:  # the codec may say what it has read
            field.error = "The stored value, which is hidden, does not fit: enter another one."
    return arguments


def fill_from_job(
    fields: Sequence[ArgumentField], arguments: Mapping[str, msgspec.Raw], redaction: Redaction
) -> None:
    """Show the arguments of a stored job. Values that the visitor may not see are kept instead."""
    for field in fields:
        if field.name not in arguments:
            continue
        raw = bytes(arguments[field.name])
        if redaction.hides(field.name) or holds_hidden(raw, redaction):
            field.hidden, field.kept, field.text = True, raw, ""
        elif raw == b"null" and field.nullable:
            field.null = True
        elif raw != b"null" or field.default:
            field.text = shown_value(field.kind, raw)


def shown_value(kind: Kind, raw: bytes) -> str:
    """A JSON value as a field of this kind shows it."""
    if kind == "json":
        return json_text(raw, Redaction(()))
    value = json.loads(raw) if raw[:1] == b'"' and kind in ("text", "word", "number") else None
    return value if isinstance(value, str) else raw.decode()


# ── from a signature ─────────────────────────────────────────────────────────────────────────────


class _HiddenDefault:
    """Stands for a default that is not shown."""

    def __repr__(self) -> str:
        return HIDDEN


_HIDDEN_DEFAULT = _HiddenDefault()


def _has_hidden_default(parameter: Parameter, redaction: Redaction) -> bool:
    default = parameter.default
    if default is None or default is Parameter.empty or (isinstance(default, str) and not default):
        return False
    if redaction.hides(parameter.name):
        return True
    try:
        return holds_hidden(_SPELL(default), redaction)
    except (TypeError, ValueError, msgspec.MsgspecError):
        return False


def _field(parameter: Parameter) -> ArgumentField:
    annotation = Any if parameter.annotation is Parameter.empty else parameter.annotation
    if parameter.kind is Parameter.VAR_POSITIONAL:
        shown = f"more arguments: {brief(formatannotation(annotation))}"
        return ArgumentField(parameter.name, "json", shown, False, example="[…]")
    if parameter.kind is Parameter.VAR_KEYWORD:
        return ArgumentField(parameter.name, "json", "more arguments by name", False, example='{"…": …}')
    kind, example, choices, nullable = _entry(annotation)
    required = parameter.default is Parameter.empty
    shown = "any" if annotation is Any else brief(formatannotation(annotation))
    field = ArgumentField(parameter.name, kind, shown, required, example=example, choices=choices)
    if parameter.default is _HIDDEN_DEFAULT:
        field.example = f"{HIDDEN}: leave empty for the default"
    elif not required:
        field.default = field.text = _default(kind, parameter.default)
        if not field.default:
            field.example = example or f"{parameter.default!r:.60}"
    field.nullable = nullable and (required or parameter.default is not None)
    return field


def _default(kind: Kind, value: Any) -> str:
    """A default as its field shows it; "" for None and for what JSON cannot hold."""
    try:
        raw = b"" if value is None else _SPELL(value)
    except (TypeError, ValueError, msgspec.MsgspecError):
        return ""
    return shown_value(kind, raw) if raw else ""


def _entry(annotation: Any) -> tuple[Kind, str, Sequence[tuple[str, str]], bool]:
    """How a value of this type is entered: the kind, an example, the choices, whether None is one."""
    inner, nullable = _plain(annotation)
    if inner is bool:
        return "choice", "", [("true", "true"), ("false", "false")], nullable
    if get_origin(inner) is Literal:
        return "choice", "", [(str(one), _SPELL(one).decode()) for one in get_args(inner)], nullable
    if isinstance(inner, type) and issubclass(inner, Enum) and _is_plain(inner):
        return "choice", "", [(one.name, _SPELL(one.value).decode()) for one in inner], nullable
    if inner is int or inner is float:
        return "number", "", (), nullable
    if inner is str or inner is LiteralString:
        return "text", "", (), nullable
    if inner in _WORDS or (isinstance(inner, type) and issubclass(inner, PurePath)):
        return "word", _WORDS.get(inner, ""), (), nullable
    return "json", _example(inner), (), nullable


def _is_plain(kind: type[Enum]) -> bool:
    return all(isinstance(one.value, (str, int)) for one in kind)


def _plain(annotation: Any) -> tuple[Any, bool]:
    """The type without Annotated, aliases and None, and whether None is accepted."""
    nullable = False
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        elif get_origin(annotation) in (Union, UnionType):
            members = [one for one in get_args(annotation) if one is not NoneType]
            nullable = nullable or len(members) < len(get_args(annotation))
            if len(members) != 1:
                return annotation, nullable
            annotation = members[0]
        else:
            return annotation, nullable or annotation in (Any, None, NoneType)


def _example(annotation: Any) -> str:
    """What a value of this type looks like in JSON, in a line."""
    origin = get_origin(annotation) or annotation
    if origin in (list, tuple, set, frozenset):
        return "[…]"
    names: Sequence[str] = ()
    if dataclasses.is_dataclass(origin):
        names = [one.name for one in dataclasses.fields(origin)]
    elif isinstance(origin, type):
        names = tuple(getattr(origin, "__struct_fields__", getattr(origin, "model_fields", ())))
    if names:
        return "{" + ", ".join(f'"{name}": …' for name in names) + "}"
    return '{"…": …}' if origin is dict else "JSON"
