"""Encodes and decodes the arguments of a call: those of today, of an older release, and of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from inspect import BoundArguments, Parameter, Signature
from typing import Any, get_args, get_origin

import msgspec
from msgspec import UNSET, Raw

from penstock.codec.shape import MAX_BYTES, Shape, shown, spell
from penstock.codec.signature import CallSignature, resolved_signature, signature_of
from penstock.codec.tags import Misfit, may_hold_tags
from penstock.core.errors import ArgumentError, ConfigError, SignatureMismatch, Undecodable
from penstock.core.peer_words import peer_hint


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

    def prepare(self) -> None:
        """Resolve the annotations. Raises ConfigError if that is not possible."""
        if self._call is None:
            self._prepare()

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
        return self._bounded({name: self._write(call, name, value) for name, value in arguments.items()})

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

    def known(self, payload: bytes, names: Iterable[str]) -> dict[str, Any]:
        """These arguments of a call that may lack others, with defaults filled in."""
        call = self._call or self._prepare()
        raws = call.sorted_by_parameter(_DECODE_LOOSELY(payload))
        given = {name: self._read(call.shapes[name], name, raws[name]) for name in names if name in raws}
        bound = BoundArguments(call.signature, given)
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
        return self._bounded({name: self._write(call, name, value) for name, value in arguments.items()})

    def _bounded(self, written: Mapping[str, Raw]) -> bytes:
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


# ── arguments of an older release ────────────────────────────────────────────────────────────────


#: A function from the stored arguments by name, as plain JSON, to the current ones.
Upgrade = Callable[[dict[str, Any]], dict[str, Any]]


class UpgradingCodec(ArgsCodec):
    """An ArgsCodec that upgrades arguments which do not fit, and decodes them again.

    They are of jobs that were enqueued before the parameters of their task changed. Others cost nothing more.
    """

    def __init__(
        self, function: Callable[..., Any], upgrade: Upgrade, *, name: str, max_bytes: int = MAX_BYTES
    ) -> None:
        super().__init__(function, name=name, max_bytes=max_bytes)
        self._upgrade = upgrade

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Decode the arguments for a call of the function. Raises Undecodable, also if the upgrade fails.

        If names did not fit and the upgrade does not help, the error stays a SignatureMismatch: the arguments
        may be newer than this function and its upgrade.
        """
        try:
            return super().decode(payload)
        except Undecodable as misfit:
            upgraded = self._upgraded(payload, misfit)
            try:
                return super().decode(upgraded)
            except Undecodable as still:
                raise type(misfit)(
                    f"{misfit}; the arguments returned by upgrade= do not fit either: {still}"
                ) from None

    def _upgraded(self, payload: bytes, misfit: Undecodable) -> bytes:
        try:
            old = _DECODE_OBJECT(payload)
        except Exception:  # noqa: BLE001  # boundary: any error means that it is not a JSON object
            raise misfit from None
        try:
            new: Any = self._upgrade(old)
        except Exception as error:  # boundary: a user's function
            raise type(misfit)(
                f"{misfit}; upgrade= failed with {type(error).__qualname__}: {error}"
            ) from error
        if not isinstance(new, dict):
            raise type(misfit)(f"{misfit}; upgrade= returned {shown(new)}, not a dict of arguments")
        try:
            return _ENCODE_OBJECT(new)
        except Exception as error:  # boundary: values' own methods run in here
            raise type(misfit)(
                f"{misfit}; the arguments returned by upgrade= cannot be stored: {error}"
            ) from error


_DECODE_OBJECT = msgspec.json.Decoder(dict[str, Any]).decode
_ENCODE_OBJECT = msgspec.json.Encoder(enc_hook=spell).encode


# ── elements of a batch ──────────────────────────────────────────────────────────────────────────


#: The parameter name of the element in a call: `task.enqueue(item)`.
_ELEMENT_NAME = "item"
_BEFORE, _AFTER = b'{"item":', b"}"
_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class ElementCodec(ArgsCodec):
    """Encodes one job of a batch task: an element of the list that its function takes.

    Only the element's JSON is stored, so that a store makes the list by joining payloads with commas.
    """

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
        parameter = Parameter(_ELEMENT_NAME, Parameter.POSITIONAL_OR_KEYWORD, annotation=element)
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


# ── equal arguments in one spelling, from which unique keys are computed ─────────────────────────


#: Above this, not every whole number can be a float.
_EXACT = 2**53


def canonical_bytes(value: Any) -> bytes:
    """Encode equal values as equal bytes: 1 and 1.0, Decimals, instants in any zone, sets, dicts."""
    plain = msgspec.to_builtins(
        _in_order(value),
        enc_hook=spell,
        builtin_types=(Decimal, datetime),
        str_keys=True,
        order="deterministic",  # sets inside other objects
    )
    return _ENCODE_CANONICAL(_plain(plain))


def _in_order(value: Any) -> Any:
    """Sort sets into lists, also if their members have no order."""
    if isinstance(value, (set, frozenset)):
        return sorted(map(_in_order, value), key=canonical_bytes)
    if isinstance(value, dict):
        return {key: _in_order(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return [_in_order(each) for each in value]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= _EXACT else value
    if isinstance(value, Decimal):
        return str(value.normalize()) if value else "0"
    if isinstance(value, datetime):
        return value.isoformat() if value.tzinfo is None else value.astimezone(UTC).isoformat()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value


_ENCODE_CANONICAL = msgspec.json.Encoder(enc_hook=spell, order="deterministic").encode
