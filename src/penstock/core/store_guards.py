"""Asked before an app makes the store of its URL: a test run refuses one that nobody chose for tests."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["guards"]

#: Called with the URL; what one of them raises, the use of the store raises.
guards: list[Callable[[str], None]] = []
