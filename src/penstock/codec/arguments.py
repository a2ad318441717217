"""Encodes and decodes the arguments of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Signature
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from penstock.codec.sameness import canonical_bytes
from penstock.codec.shape import MAX_BYTES, Shape, shown, spell
from penstock.codec.signature import CallSignature, resolved_signature
from penstock.codec.tags import Misfit, may_hold_tags
from penstock.core.errors import ArgumentError, ConfigError, SignatureMismatch, Undecodable
from penstock.core.peer_words import peer_hint

__all__ = ["ArgsCodec"]


class ArgsCodec:
    """Encodes and decodes the arguments of one task.

    Annotations that cannot be resolved yet (a class further down in the module) are resolved at the first
    use, which raises ConfigError if that fails.
    """

    def __init__(self, function: Callable[..., Any], *, name: str, max_bytes: int = MAX_BYTES) -> None:
        self._function = function
        self._name = name
        self._max_bytes = max_bytes
        self._call: CallSignature | None = None
        try:
            self._prepare()
        except ConfigError:
            pass

    @property
    def signature(self) -> Signature:
        """The signature of the encoded call."""
        return (self._call or self._prepare()).signature

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Encode one call. Raises ArgumentError that names the parameter and the way out."""
        call = self._call or self._prepare()
        if call.may_be_empty and not args and not kwargs:
            return b"{}"
        # the fast path checks that the worker will decode the same values; all other cases take the slow
        # path, which also makes the error messages
        payload = b""
        try:
            passed = call.bind(*args, **kwargs)
            payload = _ENCODE(passed)
            proven = (
                len(payload) <= self._max_bytes
                and not (call.open and may_hold_tags(payload))
                and call.read(payload) == passed
            )
        except Exception:  # noqa: BLE001  # boundary: values' own methods and hooks run in here
            proven = False
        return payload if proven else self._encode_slowly(call, args, kwargs)

    def encode_partial(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Encode a call that may lack arguments. Raises ArgumentError for those that do not fit."""
        call = self._call or self._prepare()
        try:
            arguments = call.signature.bind_partial(*args, **kwargs).arguments
        except TypeError as error:
            raise ArgumentError(f"{self._name}{call.signature}: {error}") from None
        return _ENCODE({name: self._write(call, name, value) for name, value in arguments.items()})

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Decode the arguments for a call of the function. Raises Undecodable, or SignatureMismatch."""
        call = self._call or self._prepare()
        if call.may_be_empty and payload == b"{}":
            return (), {}
        if call.open and may_hold_tags(payload):
            return call.spread(self._decode_slowly(call, payload))
        try:
            values = _VALUES(call.read(payload))
        except Exception:  # noqa: BLE001  # boundary: types' own validation runs in here
            values = self._decode_slowly(call, payload)
        return call.spread(values)

    def decode_call(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Decode a call written by a user: a JSON object or array of arguments."""
        return self.decode(payload)

    def canonical(self, payload: bytes, names: Sequence[str] | None = None) -> bytes:
        """Equal bytes for equal arguments, for unique keys; with `names` only these arguments count.

        Equal means: regardless of how they were passed, left to their defaults, ordered in sets and dicts, or
        spelled. A payload that does not fit the task is returned unchanged.
        """
        call = self._call or self._prepare()
        try:
            raws = {**call.defaults, **call.by_parameter(_DECODE_LOOSELY(payload))}
        except Exception:  # noqa: BLE001  # boundary: any error means that it is not JSON
            return payload
        counted = call.shapes if names is None else sorted(names)
        try:
            read = dict(zip(call.shapes, _VALUES(call.read_bare(_ENCODE(raws))), strict=True))
            found = {name: read[name] for name in counted if read[name] is not UNSET}
        except Exception:  # noqa: BLE001  # boundary: types' own validation runs in here
            values = {name: raws[name] for name in counted if name in raws}
        else:
            return canonical_bytes(found)
        try:
            return canonical_bytes({name: _DECODE(raw) for name, raw in values.items()})
        except (msgspec.DecodeError, UnicodeDecodeError):
            return payload

    def by_name(self, payload: bytes) -> dict[str, Any]:
        """The arguments by parameter, with defaults filled in. Raises Undecodable."""
        args, kwargs = self.decode(payload)
        bound = (self._call or self._prepare()).signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def raw_by_name(self, payload: bytes) -> dict[str, Raw]:
        """The stored JSON of each argument that a payload has. Raises Undecodable."""
        call = self._call or self._prepare()
        try:
            return call.by_parameter(_DECODE_LOOSELY(payload if payload.strip() else b"{}"))
        except (Misfit, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Undecodable(f"{self._name}: {error}") from error

    def misfits(self, arguments: Mapping[str, bytes]) -> dict[str, str]:
        """The arguments whose JSON does not fit, and why; those that are missing are among them."""
        call = self._call or self._prepare()
        found = {name: f"{name} is missing" for name in call.required if name not in arguments}
        for name, payload in arguments.items():
            try:
                call.shapes[name].read(payload)
            except Exception as error:  # noqa: BLE001  # boundary: types' own validation runs in here
                found[name] = " ".join(str(error).split()) or type(error).__name__
        return found

    def _prepare(self) -> CallSignature:
        self._call = call = CallSignature(resolved_signature(self._function, self._name))
        return call

    def _encode_slowly(self, call: CallSignature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        try:
            arguments = call.bound(args, kwargs)
        except TypeError as error:
            raise ArgumentError(
                f"{self._name}{call.signature}: {error}{_option_hint(call, kwargs)}"
            ) from None
        written = {name: self._write(call, name, value) for name, value in arguments.items()}
        payload = _ENCODE(written)
        if len(payload) > self._max_bytes:
            name = max(written, key=lambda name: len(bytes(written[name])))
            raise ArgumentError(
                f"{self._name}: the arguments take {len(payload):,} bytes, most of them in "
                f"{name!r}; the limit is {self._max_bytes:,}. Store the data elsewhere and pass its"
                " path or key, or raise the limit with App(max_payload=...)"
            )
        return payload

    def _write(self, call: CallSignature, name: str, value: Any) -> Raw:
        shape = call.shapes[name]
        try:
            return Raw(shape.write(value))
        except Misfit as misfit:
            raise ArgumentError(
                f"{self._name}: the argument {name!r}, {shown(value)}, "
                f"does not fit {call.described(name)}: {misfit}"
            ) from None

    def _decode_slowly(self, call: CallSignature, payload: bytes) -> tuple[Any, ...]:
        """Decode payloads of other languages and payloads with tags. Raises an error with the reason."""
        try:
            raws = call.by_parameter(_DECODE_LOOSELY(payload if payload.strip() else b"{}"))
        except Misfit as misfit:
            raise SignatureMismatch(f"{self._name}{call.signature}: {misfit}") from None
        except Exception as error:  # boundary: any error means that it is not JSON
            raise Undecodable(
                f"{self._name}: the arguments are neither a JSON object nor an array: {error}"
            ) from error
        return tuple(
            self._read(shape, name, raws[name]) if name in raws else UNSET
            for name, shape in call.shapes.items()
        )

    def _read(self, shape: Shape, name: str, raw: Raw) -> Any:
        try:
            return shape.read(raw)
        except Exception as error:  # boundary: types' own validation runs in here
            raise Undecodable(
                f"{self._name}: the argument {name!r} is not a stored {shape}: {error}"
            ) from error


def _option_hint(call: CallSignature, kwargs: Mapping[str, Any]) -> str:
    """The way out for an option among the arguments, as in `send.enqueue(42, countdown=5)`."""
    hints = (peer_hint("argument", name) for name in kwargs if name not in call.shapes)
    return next(filter(None, hints), "")


_ENCODE = msgspec.json.Encoder(enc_hook=spell).encode
_DECODE = msgspec.json.Decoder().decode
_DECODE_LOOSELY = msgspec.json.Decoder(dict[str, Raw] | list[Raw]).decode
_VALUES = msgspec.structs.astuple
