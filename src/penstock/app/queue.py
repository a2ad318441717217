"""A queue as an app's code sees it: its settings in the store, the same for all workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict, Unpack

from penstock.core.duration import Duration
from penstock.core.errors import ConfigError
from penstock.core.limits import LimitChange, Rate
from penstock.stores.contract import QueueInfo, Store

__all__ = ["QueueSettings", "StoredQueue"]


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

    def __repr__(self) -> str:
        return f"<StoredQueue {self.name}>"


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
