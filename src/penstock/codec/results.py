"""Encodes and decodes the result of a task, and finds the part because of which one cannot be stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from inspect import Signature
from types import NoneType
from typing import Any, Never, NoReturn

from penstock.codec.shape import MAX_BYTES, Shape, alike, encoded, fields_of, holds_nonfinite, shown
from penstock.codec.signature import resolved, scope_of, signature_of
from penstock.codec.tags import Misfit, pack
from penstock.core.errors import ResultError, Undecodable
from penstock.encryption import why_not_here


class ResultCodec:
    """Encodes and decodes the results of one task.

    `scope` resolves names in an annotation given as text. `setting`: the option of an app that raises the
    limit; "" if none does.
    """

    def __init__(
        self,
        annotation: Any,
        *,
        name: str,
        max_bytes: int = MAX_BYTES,
        scope: Mapping[str, Any] | None = None,
        setting: str = "max_result",
    ) -> None:
        self._annotation = annotation
        self._name = name
        self._max_bytes = max_bytes
        self._scope = scope or {}
        self._setting = setting
        #: Whether there is a result to keep; False for a task annotated to return nothing.
        self.keeps = annotation not in (None, "None", NoneType, Never, NoReturn)

    def encode(self, value: Any) -> bytes:
        """Encode a result. Raises ResultError."""
        try:
            payload = self._shape.write(value)
        except Misfit as misfit:
            path, part, why = place_of(value, self._shape, str(misfit))
            what = f"result{path[:200]}" if path else "the result"
            raise ResultError(
                f"{self._name}: {what}, {shown(part)}, does not fit its annotation {self._shape}: {why}"
            ) from None
        if len(payload) > self._max_bytes:
            more = f", or raise the limit with App({self._setting}=...)" if self._setting else ""
            raise ResultError(
                f"{self._name}: the result takes {len(payload):,} bytes; the limit is "
                f"{self._max_bytes:,}. Store it elsewhere and return its path or key{more}"
            )
        return payload

    def decode(self, payload: bytes) -> Any:
        """Decode a result. Raises Undecodable."""
        why = why_not_here(payload)
        if why is not None:
            raise Undecodable(f"{self._name}: the result cannot be read here: {why}")
        try:
            return self._shape.read(payload)
        except Exception as error:  # boundary: types' own validation runs in here
            raise Undecodable(
                f"{self._name}: the stored result is not a stored {self._shape}: {error}"
            ) from error

    def prepare(self) -> None:
        """Resolve the annotation. Raises ConfigError if that is not possible."""
        self._shape  # noqa: B018 (made here, and kept)

    @property
    def annotation(self) -> Any:
        """The type of the result. Raises ConfigError."""
        return resolved(self._annotation, self._scope, f"{self._name}'s result")

    @cached_property
    def schema(self) -> bytes | None:
        """The JSON schema of what is read; None if any value is, or it cannot be described."""
        from penstock.codec.schema import schema_of  # for waits of flows alone

        return schema_of(self.annotation)

    @cached_property
    def _shape(self) -> Shape:
        return Shape(resolved(self._annotation, self._scope, f"{self._name}'s result"))


def result_codec_of(
    function: Callable[..., Any], *, name: str, max_bytes: int = MAX_BYTES, setting: str = "max_result"
) -> ResultCodec:
    """The codec for a function's return annotation; without one, any value is allowed."""
    annotation = signature_of(function, name).return_annotation
    if annotation is Signature.empty:
        annotation = Any
    return ResultCodec(annotation, name=name, max_bytes=max_bytes, scope=scope_of(function), setting=setting)


#: For callers that do not know the task.
ANY_RESULT = ResultCodec(Any, name="a job")


# ── the part that does not fit: `[3].price` ──────────────────────────────────────────────────────


#: The end of a message of msgspec that says where it is.
_AT = re.compile(r" - at `\$(.*)`$")
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_DEEPEST = 40


def place_of(value: Any, shape: Shape, why: str) -> tuple[str, Any, str]:
    """The path of the part that does not fit, that part, and the reason without a path of its own.

    `why`: the reason why the whole value does not fit. The path is empty for the value itself, or if the part
    cannot be told.
    """
    try:
        told = _AT.search(why)
        if told is not None:
            return told[1], _at(value, told[1]), why[: told.start()]
        path, part = _failing_part(value, shape)
        return path, part, why
    except Exception:  # noqa: BLE001  # boundary: it walks foreign values, which may be cyclic
        return "", value, why


def _at(value: Any, path: str) -> Any:
    """The part at a path of msgspec; that of the last step that is named, `[...]` is not."""
    end = 0
    for step in _STEP.finditer(path):
        if step.start() != end:
            break
        value = getattr(value, step[1]) if step[1] else list(value)[int(step[2])]
        end = step.end()
    return value


def _failing_part(value: Any, shape: Shape) -> tuple[str, Any]:
    if holds_nonfinite(value):
        return _innermost(value, holds_nonfinite)
    for store in (encoded, pack) if shape.open else (encoded,):
        if _fails(store, value):
            return _innermost(value, partial(_fails, store))
    return _differing(shape.read(encoded(value)), value)


def _innermost(value: Any, is_wrong: Callable[[Any], bool]) -> tuple[str, Any]:
    path = ""
    for _ in range(_DEEPEST):
        found = next((one for one in _parts(value) if is_wrong(one[1])), None)
        if found is None:
            break
        path, value = path + found[0], found[1]
    return path, value


def _differing(back: Any, value: Any) -> tuple[str, Any]:
    """The innermost part that comes back as another one."""
    path = ""
    for _ in range(_DEEPEST):
        if type(back) is not type(value):
            break
        other = dict(_parts(back))
        found = next(
            (one for one in _parts(value) if one[0] in other and not alike(other[one[0]], one[1])), None
        )
        if found is None:
            break
        path, back, value = path + found[0], other[found[0]], found[1]
    return path, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a value, each with its step in the path."""
    if isinstance(value, dict):
        yield from ((f"[{key!r:.60}]", part) for key, part in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{place}]", part) for place, part in enumerate(value))
    else:
        yield from ((f".{name}", getattr(value, name)) for name in fields_of(type(value)))


def _fails(store: Callable[[Any], Any], value: Any) -> bool:
    try:
        store(value)
    except Exception:  # noqa: BLE001  # boundary: values' own methods and hooks run in here
        return True
    return False
