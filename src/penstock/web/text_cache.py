"""Remembers what functions make of texts that clients send, in a bounded number of bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class TextCache(dict[K, V]):
    """`cache[key]` is `function(key)`, which is made once for a short key; a tuple of texts is one, too.

    A client chooses the texts, also one without a token. So long ones are not kept, and when there are many
    all are forgotten: then a kept entry costs no more than what `longest` bytes can make.
    """

    def __init__(self, function: Callable[[K], V], *, entries: int = 4_096, longest: int = 256) -> None:
        super().__init__()
        self._function = function
        self._entries = entries
        self._longest = longest

    def __missing__(self, key: K) -> V:
        made = self._function(key)
        if _size(key) <= self._longest:
            if len(self) >= self._entries:
                self.clear()
            self[key] = made
        return made


def _size(key: Any) -> int:
    if isinstance(key, str | bytes):
        return len(key)
    return sum(map(_size, key)) if isinstance(key, tuple) else 0
