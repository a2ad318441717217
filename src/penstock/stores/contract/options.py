"""The options of requests that a store may lack, and the check by which such a store refuses them.

Options are data: fields of jobs, limits and heartbeats. A store declares the ones that it honours as
capabilities, beside those of its requests (`Store.capabilities`). A store that lacks some calls
`check_supported` on each request. Our own stores have all and need no check.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET

from penstock.core.errors import Unsupported
from penstock.core.job import FINISHED_KEPT, NewJob, State
from penstock.core.lifecycle import Transition
from penstock.core.limits import LimitChange, OnFull
from penstock.core.schedule import NewEntry
from penstock.stores.contract.capabilities import Capability, capability_of, unsupported
from penstock.stores.contract.changing import JobRetry
from penstock.stores.contract.consuming import HeartbeatRequest, Wait
from penstock.stores.contract.request import Request


class Option(msgspec.Struct, frozen=True):
    """A field that only a store with a capability honours.

    - `of`, `field`: the type, and its field.
    - `needs`: the capability.
    - `plain`: the values that every store takes.
    - `name`: the option as users know it.
    """

    of: type[msgspec.Struct]
    field: str
    needs: Capability
    plain: tuple[Any, ...]
    name: str


_NO_CHANGE = (UNSET, None)

#: The fields that only a store with the capability honours; those of a value inside another one, too. Each
#: `NewEntry` needs SCHEDULE: its schedule has no plain value.
OPTIONS = (
    Option(NewJob, "unique", Capability.UNIQUE, (None,), "unique="),
    Option(NewJob, "partition", Capability.PARTITIONS, (None,), "concurrency_key="),
    Option(NewJob, "tenant", Capability.FAIR_SHARE, (None,), "fair_by="),
    Option(NewJob, "batch_terms", Capability.BATCHES, (None,), "batch="),
    Option(NewJob, "priority", Capability.PRIORITIES, (0,), "priority="),
    Option(NewJob, "expires_in", Capability.EXPIRY, (None,), "expires="),
    Option(NewJob, "expires_at", Capability.EXPIRY, (None,), "expires="),
    # the client gives FINISHED_KEPT to jobs whose task says nothing of it
    Option(NewJob, "retention", Capability.RETENTION, (0, FINISHED_KEPT), "retention="),
    Option(NewJob, "keep_dead", Capability.RETENTION, (None,), "keep_dead="),
    Option(NewJob, "flow", Capability.FLOW, (None,), "a flow"),
    Option(NewEntry, "schedule", Capability.SCHEDULE, (), "a schedule"),
    Option(JobRetry, "expires_in", Capability.EXPIRY, _NO_CHANGE, "expires="),
    Option(LimitChange, "max_size", Capability.LIMITS, _NO_CHANGE, "max_size="),
    Option(LimitChange, "on_full", Capability.LIMITS, (UNSET, OnFull.REJECT), "on_full="),
    Option(LimitChange, "max_running", Capability.LIMITS, _NO_CHANGE, "max_running="),
    Option(LimitChange, "rate", Capability.LIMITS, _NO_CHANGE, "rate="),
    Option(LimitChange, "throttle", Capability.LIMITS, _NO_CHANGE, "throttle="),
    Option(LimitChange, "keep_finished", Capability.LIMITS, _NO_CHANGE, "keep_finished="),
    Option(LimitChange, "keep_dead", Capability.LIMITS, _NO_CHANGE, "keep_dead="),
    Option(LimitChange, "keep_finished_for", Capability.LIMITS, _NO_CHANGE, "keep_finished_for="),
    Option(LimitChange, "keep_dead_for", Capability.LIMITS, _NO_CHANGE, "keep_dead_for="),
    Option(HeartbeatRequest, "checkpoint", Capability.CHECKPOINTS, (None,), "a checkpoint"),
    Option(Transition, "state", Capability.PARKING, tuple(set(State) - {State.PARKED}), "a parked job"),
    Option(Transition, "throttle", Capability.LIMITS, (0,), "a throttle of a queue"),
    Option(Transition, "throttle_partition", Capability.PARTITIONS, (0,), "a throttle of a key"),
    Option(Wait, "parked", Capability.PARKING, ((), []), "a wait for parked jobs"),
)


def check_supported(request: Request[Any], url: str, capabilities: Collection[Capability]) -> None:
    """Raise Unsupported if a request, or an option of a value in it, needs more than these capabilities.

    Not for streams, which are not asked: their store raises `unsupported`.
    """
    if capability_of(type(request)) not in capabilities:
        raise unsupported(url, type(request))
    for option in options_beyond(request, capabilities):
        raise Unsupported(
            f"{url} cannot {option.needs.value}, which {option.name} needs; nothing was changed: "
            f"leave {option.name} out, or use a store that can"
        )


def options_beyond(value: Any, capabilities: Collection[Capability]) -> Iterator[Option]:
    """The options that a value, or a value in it, uses and that need more than these capabilities."""
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from options_beyond(one, capabilities)
    elif isinstance(value, msgspec.Struct):
        for option in _own(type(value)):
            if option.needs not in capabilities and getattr(value, option.field) not in option.plain:
                yield option
        for name in _parts(type(value)):
            yield from options_beyond(getattr(value, name), capabilities)


@functools.cache
def _own(kind: type) -> tuple[Option, ...]:
    return tuple(option for option in OPTIONS if option.of is kind)


@functools.cache
def _parts(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields of a type whose values may have options."""
    hints = get_type_hints(kind)
    return tuple(name for name in kind.__struct_fields__ if any(map(_has_options, _structs(hints[name]))))


def _has_options(kind: type[msgspec.Struct]) -> bool:
    return bool(_own(kind) or _parts(kind))


def _structs(hint: Any) -> Iterator[type[msgspec.Struct]]:
    """The structs in a type; a function in it is no data."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    if get_origin(hint) is not Callable:
        for inside in get_args(hint):
            yield from _structs(inside)
