"""Encodes one job of a batch task: an element of the list that its function takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any, get_args, get_origin

from msgspec import Raw

from penstock.codec.arguments import ArgsCodec
from penstock.codec.shape import MAX_BYTES
from penstock.codec.signature import CallSignature, resolved_signature, signature_of
from penstock.core.errors import ConfigError

__all__ = ["ElementCodec"]

#: The parameter name of the element in a call: `task.enqueue(item)`.
_NAME = "item"
_BEFORE, _AFTER = b'{"item":', b"}"
_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class ElementCodec(ArgsCodec):
    """Stores only the element's JSON, so that a store makes the list by joining payloads with commas."""

    def __init__(self, function: Callable[..., Any], *, name: str, max_bytes: int = MAX_BYTES) -> None:
        _the_parameter(signature_of(function, name), name)
        super().__init__(function, name=name, max_bytes=max_bytes)
        if self._call is not None or not _unresolved(function, name):
            self._prepare()

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        return super().encode(args, kwargs)[len(_BEFORE) : -len(_AFTER)]

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return super().decode(_BEFORE + payload + _AFTER)

    def decode_call(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return super().decode(payload)

    def canonical(self, payload: bytes, names: Sequence[str] | None = None) -> bytes:
        return super().canonical(_BEFORE + payload + _AFTER, names)

    def raw_by_name(self, payload: bytes) -> dict[str, Raw]:
        return super().raw_by_name(_BEFORE + payload + _AFTER)

    def _prepare(self) -> CallSignature:
        annotation = _the_parameter(resolved_signature(self._function, self._name), self._name).annotation
        if get_origin(annotation) is not list and annotation is not list:
            raise ConfigError(f"{self._name}: {_RULE}; its annotation is not a list")
        (element,) = get_args(annotation) or (Any,)
        parameter = Parameter(_NAME, Parameter.POSITIONAL_OR_KEYWORD, annotation=element)
        self._call = call = CallSignature(Signature([parameter]))
        return call


_RULE = (
    "the function of a batch task takes one argument, the list of its elements: def index(docs: list[Doc])"
)


def _the_parameter(signature: Signature, name: str) -> Parameter:
    parameters = list(signature.parameters.values())
    if len(parameters) != 1 or parameters[0].kind not in _BY_POSITION:
        raise ConfigError(f"{name}: {_RULE}; this one is called as {signature}")
    if parameters[0].annotation is Parameter.empty:
        raise ConfigError(f"{name}: {_RULE}; its argument has no annotation")
    return parameters[0]


def _unresolved(function: Callable[..., Any], name: str) -> bool:
    """Whether its annotation cannot be resolved yet; the first use tries again."""
    try:
        resolved_signature(function, name)
    except ConfigError:
        return True
    return False
