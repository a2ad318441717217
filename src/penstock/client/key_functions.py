"""Key functions: compute a call's partition key and tenant from its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from penstock.client.option_readers import shown_name
from penstock.client.options import TaskOptions
from penstock.codec import ArgsCodec
from penstock.codec.shape import spell
from penstock.core import lazy
from penstock.core.errors import ArgumentError, ConfigError, did_you_mean
from penstock.core.job import NewJob
from penstock.core.limits import Rate
from penstock.core.relations import MOST_AT_ONCE, MOST_PARTITION_KEY, MOST_WEIGHT, Partition, Tenant
from penstock.core.text import plain, whole

_TERMS = ("max_running_per_key", "ordered", "rate_per_key", "burst_per_key")
_encode = msgspec.json.Encoder(enc_hook=spell).encode


def key_functions_of(
    function: Callable[..., Any], args: ArgsCodec, given: TaskOptions, who: str
) -> KeyFunctions | None:
    """The key functions of a task with these options; None if it has none. Raises ConfigError."""
    try:
        partition = _partition_rule(function, given)
        tenant = _tenant_rule(function, given)
    except ConfigError as error:
        raise ConfigError(f"{who}: {error}") from None
    return (
        None if partition is None and tenant is None else KeyFunctions(who, function, args, partition, tenant)
    )


class KeyFunctions:
    """Computes a task's concurrency key and fairness key from a call's arguments. Errors reach the caller."""

    def __init__(
        self,
        who: str,
        function: Callable[..., Any],
        args: ArgsCodec,
        partition: tuple[_KeyRule, Partition] | None,
        tenant: tuple[_KeyRule, Callable[[str], Any]] | None,
    ) -> None:
        self._who = who
        self._signature = inspect.signature(function)
        self._args = args
        self._partition = partition
        self._tenant = tenant

    def sample(self, job: NewJob) -> NewJob:
        """The job with the terms of its partition and tenant, and empty keys."""
        partition = None if self._partition is None else self._partition[1]
        return msgspec.structs.replace(
            job, partition=partition, tenant=None if self._tenant is None else Tenant("")
        )

    def apply(self, job: NewJob, *, partial: bool = False) -> NewJob:
        """Return the job with its partition and its tenant.

        `partial`: the payload lacks arguments; `refuse_results` has checked that no key depends on them.
        """
        arguments = self._known(job.payload) if partial else self._arguments(job.payload)
        partition, tenant = None, None
        if self._partition is not None:
            rule, terms = self._partition
            key = self._key(rule, arguments)
            partition = None if key is None else Partition(key, terms.most, terms.ordered, terms.rate)
        if self._tenant is not None:
            rule, weight_of = self._tenant
            key = self._key(rule, arguments)
            tenant = None if key is None else Tenant(key, self._weight(weight_of, key))
        return msgspec.structs.replace(job, partition=partition, tenant=tenant)

    def refuse_results(self, names: Iterable[str]) -> None:
        """Raise ConfigError if a key depends on one of these arguments, which are results of other nodes."""
        for rule in self._rules():
            for name in names:
                if name in rule.names:
                    raise ConfigError(
                        f"{self._who}: {rule} depends on the argument {name!r}, which is the result "
                        "of another node, and keys are fixed at the enqueue: pass the argument in the "
                        f"call, as in task.partial({name}=...), or let the node before enqueue the job; "
                        "nothing was stored"
                    )

    def _rules(self) -> list[_KeyRule]:
        return [one[0] for one in (self._partition, self._tenant) if one is not None]

    def _known(self, payload: bytes) -> dict[str, Any]:
        """The arguments that the keys depend on."""
        names = {name for rule in self._rules() for name in rule.names}
        return self._args.known(payload, [name for name in self._signature.parameters if name in names])

    def _arguments(self, payload: bytes) -> dict[str, Any]:
        args, kwargs = self._args.decode(payload)
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def _key(self, rule: _KeyRule, arguments: Mapping[str, Any]) -> str | None:
        try:
            value = rule.of(arguments)
        except Exception as error:  # boundary: a user's function
            raise ArgumentError(
                f"{self._who}: {rule} failed with {type(error).__name__}: {error}; nothing was stored"
            ) from error
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
            raise ArgumentError(
                f"{self._who}: {rule} gave {value!r:.100}, which is neither a text, nor a whole number, nor "
                "None (no key); nothing was stored"
            )
        return _bounded(_key_text(value))

    def _weight(self, weight_of: Callable[[str], Any], tenant: str) -> int:
        try:
            weight = weight_of(tenant)
        except Exception as error:  # boundary: a user's function
            raise ArgumentError(
                f"{self._who}: fair_weights= failed for {tenant!r} with {type(error).__name__}: {error}; "
                "nothing was stored"
            ) from error
        if not _is_weight(weight):
            raise ArgumentError(
                f"{self._who}: fair_weights= gave {_no_weight(weight, tenant)}; nothing was stored"
            )
        return whole(weight)


class _KeyRule:
    """How to compute the key of a call: from one argument, from several, or by a function of some."""

    def __init__(self, option: str, value: Any, parameters: Mapping[str, inspect.Parameter]) -> None:
        self._option = option
        self._function: Callable[..., Any] | None = None
        self.names: tuple[str, ...]
        if callable(value):
            self._function = value
            self.names = _arguments_of(option, value, parameters)
            return
        names = (value,) if isinstance(value, str) else value
        if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
            raise ConfigError(
                f"{option}={value!r} is neither the name of an argument, nor several, nor a function of them"
            )
        for name in names:
            if name not in parameters:
                near = did_you_mean(name, parameters) or f"; it takes {', '.join(parameters) or 'none'}"
                raise ConfigError(f"{option}={value!r}: the task has no argument {name!r}{near}")
        self.names = tuple(names)

    def of(self, arguments: Mapping[str, Any]) -> Any:
        if self._function is not None:
            return self._function(**{name: arguments[name] for name in self.names})
        first, *others = self.names
        if others:
            return _encode([arguments[name] for name in self.names]).decode()
        value = arguments[first]
        plain = value is None or (isinstance(value, (str, int)) and not isinstance(value, bool))
        return value if plain else _encode(value).decode()

    def __str__(self) -> str:
        if self._function is not None:
            return f"the key function of {self._option}="
        return f"{self._option}={self.names[0] if len(self.names) == 1 else self.names!r}"


def _arguments_of(option: str, function: Any, parameters: Mapping[str, inspect.Parameter]) -> tuple[str, ...]:
    """The names of the arguments that a key function takes; all of them for `**others`."""
    name = shown_name(function)
    if lazy.returned_by(function):
        raise ConfigError(f"{option}={name}: a key function is a plain `def`, not `async def`")
    try:
        wanted = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise ConfigError(
            f"{option}={name}: its arguments cannot be inspected; wrap it in a function"
        ) from None
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in wanted):
        return tuple(parameters)
    for p in wanted:
        by_name = p.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        if not by_name or (p.name not in parameters and p.default is inspect.Parameter.empty):
            raise ConfigError(
                f"{option}={name}: a key function takes arguments of the task by their names "
                f"({', '.join(parameters) or 'it has none'}), not {p.name!r}"
            )
    return tuple(p.name for p in wanted if p.name in parameters)


def _partition_rule(function: Callable[..., Any], given: TaskOptions) -> tuple[_KeyRule, Partition] | None:
    if given.get("concurrency_key") is None:
        for option in _TERMS:
            if option in given:
                raise ConfigError(f"{option}= needs a key: give concurrency_key= too")
        return None
    most: Any = given.get("max_running_per_key", 1)
    ordered: Any = given.get("ordered", False)
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= MOST_AT_ONCE:
        raise ConfigError(f"max_running_per_key={most!r} is not a whole number of 1 or more")
    if not isinstance(ordered, bool):
        raise ConfigError(f"ordered={ordered!r} is neither True nor False")
    if ordered and most > 1:
        raise ConfigError(f"ordered=True allows one job at a time: leave max_running_per_key={most} out")
    rate = given.get("rate_per_key")
    if rate is None and "burst_per_key" in given:
        raise ConfigError("burst_per_key= needs a rate: give rate_per_key= too")
    rate_per_key = (
        None if rate is None else Rate.of(rate, burst=given.get("burst_per_key"), what="rate_per_key")
    )
    key = _KeyRule("concurrency_key", given.get("concurrency_key"), inspect.signature(function).parameters)
    return key, Partition("", whole(most), ordered, rate_per_key)


def _tenant_rule(
    function: Callable[..., Any], given: TaskOptions
) -> tuple[_KeyRule, Callable[[str], Any]] | None:
    if given.get("fair_by") is None:
        if "fair_weights" in given:
            raise ConfigError("fair_weights= needs a key: give fair_by= too")
        return None
    key = _KeyRule("fair_by", given.get("fair_by"), inspect.signature(function).parameters)
    weights: Any = given.get("fair_weights", {})
    if callable(weights):
        return key, weights
    if not isinstance(weights, Mapping):
        raise ConfigError(f"fair_weights={weights!r} is neither a mapping of keys to weights nor a function")
    for name, weight in weights.items():
        if not _is_weight(weight):
            raise ConfigError(f"fair_weights has {_no_weight(weight, name)}")
    known = {_bounded(_key_text(name)): weight for name, weight in weights.items()}
    return key, lambda key: known.get(key, 1)


def _is_weight(weight: Any) -> bool:
    return isinstance(weight, int) and not isinstance(weight, bool) and 1 <= weight <= MOST_WEIGHT


def _no_weight(weight: Any, tenant: Any) -> str:
    return f"{weight!r:.100} for {tenant!r}, which is not a whole number from 1 to {MOST_WEIGHT}"


def _key_text(key: Any) -> str:
    if isinstance(key, str):
        return plain(key)
    return str(whole(key)) if isinstance(key, int) else str(key)


def _bounded(key: str) -> str:
    """The key, or its hash if it is too long or is not valid Unicode."""
    try:
        if len(key.encode()) <= MOST_PARTITION_KEY:
            return key
    except UnicodeEncodeError:  # unpaired surrogates
        pass
    return "#" + blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
