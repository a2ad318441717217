"""Prepared signatures: bind a call's arguments, store them by name, and make the call again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from inspect import Parameter, Signature
from types import SimpleNamespace
from typing import Any, Union, Unpack, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Raw, UnsetType

from penstock.codec.collisions import guarded
from penstock.codec.shape import Mode, Shape, revive, rewritten, spell
from penstock.codec.tags import Misfit
from penstock.core.errors import ConfigError


class CallSignature:
    """A prepared signature: binds, decodes and spreads the arguments of a call."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.parameters = list(signature.parameters.values())
        self.shapes = {p.name: Shape(_annotation_of(p)) for p in self.parameters}
        self.open = any(shape.open for shape in self.shapes.values())
        self.required = [p.name for p in self.parameters if _is_required(p)]
        self.may_be_empty = not self.required
        self._names = tuple(self.shapes)
        self._positional = sum(p.kind in _BY_POSITION for p in self.parameters)
        # a struct binds arguments like Python, and in C, but it has neither positional-only nor variable
        # parameters, and names with two underscores are mangled in a class
        self._plain = not any(p.kind in _BEYOND_A_STRUCT or p.name.startswith("__") for p in self.parameters)
        struct = self._struct({name: shape.plain for name, shape in self.shapes.items()})
        self.collides = any(shape.collides for shape in self.shapes.values())
        self.read = guarded(msgspec.json.Decoder(struct, dec_hook=revive).decode, self.collides)
        self.bind = struct if self._plain else self._bound_to(struct)

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The passed arguments by name. Raises TypeError with Python's message."""
        options = self._named(Parameter.VAR_KEYWORD)
        # for `def f(a=1, /, **options)` Python takes the `a` of f(a=2) as an option, but `bind` refuses it
        # or, in 3.13.0, accepts it where `a` is required
        aside = {
            name: value
            for name, value in kwargs.items()
            if options and name in self.shapes and self._kind(name) is Parameter.POSITIONAL_ONLY
        }
        others = {name: value for name, value in kwargs.items() if name not in aside}
        arguments = self.signature.bind(*args, **others).arguments
        if options and aside:
            taken = {**arguments.get(options, {}), **aside}
            arguments[options] = {name: value for name, value in kwargs.items() if name in taken}
        return arguments

    def described(self, name: str) -> str:
        parameter = self.signature.parameters[name]
        if parameter.annotation is Parameter.empty:
            return "a parameter without annotation"
        return f"its annotation {inspect.formatannotation(parameter.annotation)}"

    def spread(self, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Turn decoded values into the (args, kwargs) of a call; UNSET ones keep their defaults."""
        if not self._plain:
            return self._spread_by_kind(values)
        if UNSET not in values:
            if self._positional == len(values):
                return values, {}
            return (), dict(zip(self._names, values))  # noqa: B905 (strict= would double the cost)
        first = values.index(UNSET)
        if first <= self._positional and values.count(UNSET) == len(values) - first:
            return values[:first], {}
        return (), {n: v for n, v in zip(self._names, values) if v is not UNSET}  # noqa: B905

    def by_parameter(self, stored: dict[str, Raw] | list[Raw]) -> dict[str, Raw]:
        """Each stored argument by its parameter's name. Raises Misfit."""
        found = self.sorted_by_parameter(stored)
        for parameter in self.parameters:
            if _is_required(parameter) and parameter.name not in found:
                raise Misfit(f"the argument {parameter.name!r} is missing")
        return found

    def sorted_by_parameter(self, stored: dict[str, Raw] | list[Raw]) -> dict[str, Raw]:
        """As `by_parameter`, of a call that may lack arguments."""
        found = stored if isinstance(stored, dict) else self._by_position(stored)
        unknown = found.keys() - self.shapes.keys()
        return self._with_options(found, unknown) if unknown else found

    @cached_property
    def defaults(self) -> dict[str, Raw]:
        """The encoded defaults of parameters, if they can be encoded."""
        found: dict[str, Raw] = {}
        for parameter in self.parameters:
            if parameter.default is not Parameter.empty:
                try:
                    found[parameter.name] = Raw(self.shapes[parameter.name].write(parameter.default))
                except Misfit:
                    pass
        return found

    @cached_property
    def read_bare(self) -> Callable[[bytes], Any]:
        types = {p.name: rewritten(_annotation_of(p), Mode.BARE) for p in self.parameters}
        return guarded(msgspec.json.Decoder(self._struct(types), dec_hook=revive).decode, self.collides)

    def _struct(self, types: Mapping[str, Any]) -> Any:
        """Make a struct with one field per parameter, in order; optional fields are UNSET by default."""

        def fields(by_keyword: bool) -> list[Any]:
            return [
                (_field(p.name), types[p.name])
                if _is_required(p)
                else (_field(p.name), Union[types[p.name], UnsetType], UNSET)  # noqa: UP007
                for p in self.parameters
                if (p.kind in _BY_KEYWORD_ONLY) is by_keyword
            ]

        # gc=False: instances are short-lived and have no reference cycles
        options: dict[str, Any] = {
            "gc": False,
            "forbid_unknown_fields": True,
            "rename": {_field(p.name): p.name for p in self.parameters},
        }
        positional = msgspec.defstruct("Arguments", fields(False), **options)
        if not fields(True):
            return positional
        return msgspec.defstruct("Arguments", fields(True), bases=(positional,), kw_only=True, **options)

    def _bound_to(self, struct: Any) -> Callable[..., Any]:
        def bind(*args: Any, **kwargs: Any) -> Any:
            return struct(**{_field(name): value for name, value in self.bound(args, kwargs).items()})

        return bind

    def _spread_by_kind(self, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        # if a later parameter is passed by position, earlier ones need their defaults
        last = max(
            (
                i
                for i, (p, value) in enumerate(zip(self.parameters, values, strict=True))
                if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL) and value is not UNSET
            ),
            default=-1,
        )
        for i, (parameter, value) in enumerate(zip(self.parameters, values, strict=True)):
            if i < last:
                args.append(parameter.default if value is UNSET else value)
            elif value is UNSET:
                continue
            elif parameter.kind is Parameter.POSITIONAL_ONLY:
                args.append(value)
            elif parameter.kind is Parameter.VAR_POSITIONAL:
                args.extend(value)
            elif parameter.kind is Parameter.VAR_KEYWORD:
                kwargs.update(value)
            else:
                kwargs[parameter.name] = value
        return tuple(args), kwargs

    def _by_position(self, items: list[Raw]) -> dict[str, Raw]:
        names = self._names[: self._positional]
        found = dict(zip(names, items, strict=False))
        rest = items[len(names) :]
        variable = self._named(Parameter.VAR_POSITIONAL)
        if rest and variable:
            found[variable] = Raw(_ENCODE(rest))
        elif rest:
            raise Misfit(f"{len(items)} positional arguments for {len(names)} parameters")
        return found

    def _with_options(self, found: dict[str, Raw], unknown: set[str]) -> dict[str, Raw]:
        variable = self._named(Parameter.VAR_KEYWORD)
        if not variable:
            raise Misfit(f"unknown argument(s) {', '.join(sorted(map(repr, unknown)))}")
        options = msgspec.json.decode(found.get(variable, b"{}"), type=dict[str, Raw])
        options.update({name: found[name] for name in unknown})
        known = {name: raw for name, raw in found.items() if name not in unknown}
        return {**known, variable: Raw(_ENCODE(options))}

    def _kind(self, name: str) -> Any:
        return self.signature.parameters[name].kind

    def _named(self, kind: Any) -> str | None:
        return next((p.name for p in self.parameters if p.kind is kind), None)


def signature_of(function: Callable[..., Any], name: str) -> Signature:
    """The function's signature. Raises ConfigError if there is none, as for some builtins."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(f"{name}: its signature cannot be read: {error}") from error


def resolved_signature(function: Callable[..., Any], name: str) -> Signature:
    """The signature with resolved annotations. Raises ConfigError."""
    signature, scope = signature_of(function, name), scope_of(function)
    parameters = [
        parameter.replace(annotation=resolved(parameter.annotation, scope, f"{name}({parameter.name})"))
        for parameter in signature.parameters.values()
    ]
    return signature.replace(parameters=parameters)


def resolved(annotation: Any, scope: Mapping[str, Any], where: str) -> Any:
    """The type of an annotation, which may be text. Raises ConfigError that names `where`."""
    if annotation is Parameter.empty:
        return annotation
    try:
        # one at a time, so that the error can name the parameter
        holder = SimpleNamespace(__annotations__={"it": annotation})
        found = get_type_hints(holder, globalns=dict(scope), include_extras=True)["it"]
        hash(found)  # an annotation that is not a type, a dict say, fails here
        return found
    except Exception as error:  # boundary: an annotation is any expression
        raise ConfigError(
            f"{where}: the annotation cannot be resolved: {error}. Define or import what it names "
            "at the top level of the task's module, outside `if TYPE_CHECKING`"
        ) from error


def scope_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The namespace in which the names of the function's annotations are resolved."""
    inner = inspect.unwrap(getattr(function, "func", function))
    return getattr(inner, "__globals__", {})


def _annotation_of(parameter: Parameter) -> Any:
    """The type of the value that is stored under the parameter's name."""
    annotation: Any = Any if parameter.annotation is Parameter.empty else parameter.annotation
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return tuple[annotation, ...]
    if parameter.kind is Parameter.VAR_KEYWORD:
        unpacked = get_origin(annotation) is Unpack
        return get_args(annotation)[0] if unpacked else dict[str, annotation]
    if parameter.default is None:
        one_of: Any = Union
        return one_of[annotation, None]  # `lang: str = None` is wrong but common
    return annotation


def _is_required(parameter: Parameter) -> bool:
    return parameter.default is Parameter.empty and parameter.kind not in _VARIABLE


def _field(name: str) -> str:
    return f"argument{name}" if name.startswith("__") else name


_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_BY_KEYWORD_ONLY = (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)
_BEYOND_A_STRUCT = (Parameter.POSITIONAL_ONLY, *_VARIABLE)
_ENCODE = msgspec.json.Encoder(enc_hook=spell).encode
