"""A queue as an app's code sees it: its settings in the store, the same for all workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, TypedDict, TypeVar, Unpack

from penstock.core.errors import ConfigError, did_you_mean
from penstock.core.formats import Duration
from penstock.core.ids import check_queue
from penstock.core.limits import LIMIT_NAMES, LimitChange, Rate, limits_by_code, limits_reset
from penstock.core.portable import in_process
from penstock.stores.contract import QueueInfo, Store

T = TypeVar("T")


def _hint_at_unknown(kind: type[T]) -> type[T]:
    """Let a class of limits raise ConfigError with a hint for an unknown keyword, in place of TypeError."""
    plain: Any = kind.__init__

    @wraps(plain)  # with the signature that help() shows
    def __init__(self: T, *args: Any, **given: Any) -> None:
        for name in given:
            if name not in kind.__annotations__:
                from penstock.core.peer_words import hint  # only for this message

                near = hint("queue", name, kind.__annotations__)
                known = ", ".join(kind.__annotations__)
                raise ConfigError(f"{kind.__name__}() has no limit {name!r}{near or '; it has ' + known}")
        plain(self, *args, **given)

    type.__setattr__(kind, "__init__", __init__)
    return kind


@_hint_at_unknown
@dataclass(frozen=True, kw_only=True)
class QueueDefaults:
    """The limits of a queue in code, for `App(queues={"mail": QueueDefaults(rate="5/s")})`.

    Each applies to all workers, unless an operator has set another value: `penstock queues set`, or
    `app.queue("mail").settings(...)`. Raises ConfigError for an invalid value.
    """

    max_size: int | None = None
    on_full: str | None = None
    max_running: int | None = None
    rate: str | Rate | None = None
    burst: int | None = None
    keep_finished: int | None = None
    keep_dead: int | None = None
    keep_finished_for: Duration | None = None
    keep_dead_for: Duration | None = None

    def __post_init__(self) -> None:
        self.change()

    def change(self) -> LimitChange:
        """These limits as a change by code."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return limits_by_code(**{name: value for name, value in given.items() if value is not None})


class QueueSettings(TypedDict, total=False):
    """The settings of a queue. Missing ones stay as they are; None removes a limit."""

    paused: bool
    closed: bool
    max_size: int | None
    on_full: str
    max_running: int | None
    rate: str | Rate | None
    burst: int
    keep_finished: int | None
    keep_dead: int | None
    keep_finished_for: Duration | None
    keep_dead_for: Duration | None
    throttle: Duration | None


@in_process("send queue.name, and use app.queue() there")
class StoredQueue:
    """`app.queue("mail")`: the settings of a queue. Making it does not ask the store."""

    def __init__(self, store: Callable[[], Store], name: str) -> None:
        self._store = store
        self.name = name

    def settings(self, **changes: Unpack[QueueSettings]) -> QueueInfo:
        """Change the queue's settings for all workers and producers from now on; returns the new state.

        Raises ConfigError for invalid settings, and changes nothing then. docs/limits.md lists them all.
        """
        paused, closed, limits = _read(changes)
        return self._store().sync.settings(self.name, paused=paused, closed=closed, limits=limits)

    async def asettings(self, **changes: Unpack[QueueSettings]) -> QueueInfo:
        """Like `settings`, without blocking the event loop."""
        paused, closed, limits = _read(changes)
        return await self._store().settings(self.name, paused=paused, closed=closed, limits=limits)

    def reset(self, *names: str) -> QueueInfo:
        """Forget limits that were set by `settings` or an operator, all or these; the code's apply again."""
        return self._store().sync.settings(self.name, limits=_reset(names))

    async def areset(self, *names: str) -> QueueInfo:
        """Like `reset`, without blocking the event loop."""
        return await self._store().settings(self.name, limits=_reset(names))

    def __repr__(self) -> str:
        return f"<StoredQueue {self.name}>"


def check_defaults(queues: Mapping[str, QueueDefaults] | None) -> dict[str, LimitChange] | None:
    """The limits of `App(queues={...})`, by queue. Raises ConfigError."""
    if queues is None:
        return None
    if not isinstance(queues, Mapping):
        raise ConfigError(
            f"App(): queues={queues!r:.100} is not a mapping of names to limits: "
            'write queues={"mail": QueueDefaults(rate="5/s")}'
        )
    for name, defaults in queues.items():
        if not isinstance(defaults, QueueDefaults):
            raise ConfigError(f"App(): queues[{name!r}] is not a QueueDefaults(...): {defaults!r:.100}")
    return {check_queue(name): defaults.change() for name, defaults in queues.items()}


def _reset(names: Sequence[str]) -> LimitChange:
    for name in names:
        if name not in LIMIT_NAMES:
            near = did_you_mean(name, LIMIT_NAMES) or f"; the limits are {', '.join(LIMIT_NAMES)}"
            raise ConfigError(f"a queue has no limit {name!r}{near}")
    return limits_reset(names) if names else limits_reset()


def _read(changes: QueueSettings) -> tuple[bool | None, bool | None, LimitChange | None]:
    rest = dict(changes)
    paused, closed = rest.pop("paused", None), rest.pop("closed", None)
    return (
        _yes_or_no("paused", paused),
        _yes_or_no("closed", closed),
        LimitChange.of(**rest) if rest else None,
    )


def _yes_or_no(name: str, value: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r} is neither True nor False")
    return value
