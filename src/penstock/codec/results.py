"""Encodes and decodes the result of a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from inspect import Signature
from types import NoneType
from typing import Any, Never, NoReturn

from penstock.codec.shape import MAX_BYTES, Shape, shown
from penstock.codec.signature import resolved, scope_of, signature_of
from penstock.codec.tags import Misfit
from penstock.core.errors import ResultError, Undecodable
from penstock.encryption import why_not_here

__all__ = ["ANY_RESULT", "ResultCodec", "result_codec_of"]


class ResultCodec:
    """Encodes and decodes the results of one task. `scope` resolves names in an annotation given as text."""

    def __init__(
        self,
        annotation: Any,
        *,
        name: str,
        max_bytes: int = MAX_BYTES,
        scope: Mapping[str, Any] | None = None,
    ) -> None:
        self._annotation = annotation
        self._name = name
        self._max_bytes = max_bytes
        self._scope = scope or {}
        #: Whether there is a result to keep; False for a task annotated to return nothing.
        self.keeps = annotation not in (None, "None", NoneType, Never, NoReturn)

    def encode(self, value: Any) -> bytes:
        """Encode a result. Raises ResultError."""
        try:
            payload = self._shape.write(value)
        except Misfit as misfit:
            raise ResultError(
                f"{self._name}: the result, {shown(value)}, does not fit its annotation "
                f"{self._shape}: {misfit}"
            ) from None
        if len(payload) > self._max_bytes:
            raise ResultError(
                f"{self._name}: the result takes {len(payload):,} bytes; the limit is "
                f"{self._max_bytes:,}. Store it elsewhere and return its path or key, or raise the "
                "limit with App(max_result=...)"
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

    @property
    def annotation(self) -> Any:
        """The type of the result. Raises ConfigError."""
        return resolved(self._annotation, self._scope, f"{self._name}'s result")

    @cached_property
    def _shape(self) -> Shape:
        return Shape(resolved(self._annotation, self._scope, f"{self._name}'s result"))


def result_codec_of(function: Callable[..., Any], *, name: str, max_bytes: int = MAX_BYTES) -> ResultCodec:
    """The codec for a function's return annotation; without one, any value is allowed."""
    annotation = signature_of(function, name).return_annotation
    if annotation is Signature.empty:
        annotation = Any
    return ResultCodec(annotation, name=name, max_bytes=max_bytes, scope=scope_of(function))


#: For callers that do not know the task.
ANY_RESULT = ResultCodec(Any, name="a job")
