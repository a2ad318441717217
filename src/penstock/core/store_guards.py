"""Guards called before an app makes the store of its URL: test runs refuse stores not meant for tests."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["guards"]

#: Functions called with the URL. If one raises, the app's use of the store raises the error.
guards: list[Callable[[str], None]] = []
