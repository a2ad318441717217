"""Waiting for results: how long, and where it must not be done by blocking."""

from __future__ import annotations

import asyncio
import time

from penstock.duration import Duration, format_ms, milliseconds
from penstock.errors import ConfigError

__all__ = ["Patience", "refuse_in_loop"]

#: How long a wait without a limit is (ms), until it begins anew; the store tells at once all the same.
_LONG = 86_400_000


class Patience:
    """How long somebody is ready to wait, from now on; None: for as long as it takes."""

    __slots__ = ("_ms", "_until")

    def __init__(self, timeout: Duration | None) -> None:
        self._ms = None if timeout is None else milliseconds(timeout, what="timeout")
        self._until = None if self._ms is None else time.monotonic() + self._ms / 1000

    def again(self) -> Patience:
        """The same, from now on."""
        return Patience(None if self._ms is None else self._ms / 1000)

    @property
    def left(self) -> int:
        """For how many ms to wait now."""
        return _LONG if self._until is None else max(0, round((self._until - time.monotonic()) * 1000))

    @property
    def over(self) -> bool:
        return self.left == 0

    def __str__(self) -> str:
        return "any time" if self._ms is None else format_ms(self._ms)


def refuse_in_loop(what: str, instead: str) -> None:
    """Raise ConfigError where an event loop runs in this thread: blocking it may wait for itself."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigError(f"{what} would block the event loop that runs in this thread: use `{instead}`")
