"""Which values are hidden from viewers, by their names, and what of a JSON document is left to search."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from fnmatch import translate

import msgspec

__all__ = ["HIDDEN", "Redaction"]

HIDDEN = "hidden"
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:,]|[^\s"{}\[\]:,]+', re.DOTALL)


class Redaction:
    """Which names have values that are not shown. `patterns`: lower case, `*` stands for any characters."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(pattern.lower() for pattern in patterns)
        wanted = "|".join(translate(pattern) for pattern in self.patterns)
        self._matches = re.compile(wanted or r"(?!)").match

    def hides(self, name: str) -> bool:
        """Whether the value of this name is hidden."""
        return self._matches(name.lower()) is not None

    def apply(self, values: dict[str, str]) -> dict[str, str]:
        """A flat object with hidden values replaced."""
        return {name: HIDDEN if self.hides(name) else value for name, value in values.items()}

    def visible_parts(self, raw: bytes) -> list[bytes]:
        """The bytes of a JSON document between its hidden values; none if it is not JSON in UTF-8.

        Without a placeholder: a text that matched one would show what is hidden, e.g. that it is null.
        """
        try:
            msgspec.json.decode(raw)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return []
        parts, begin, before = [], 0, b""
        tokens = _TOKEN.finditer(raw)
        for token in tokens:
            if token[0] == b":" and self.hides(json.loads(before)):
                parts.append(raw[begin : token.end()])
                begin = _end_of_value(tokens)
            before = token[0]
        return [*parts, raw[begin:]]


def _end_of_value(tokens: Iterator[re.Match[bytes]]) -> int:
    depth, end = 0, 0
    for token in tokens:
        depth += (token[0] in (b"{", b"[")) - (token[0] in (b"}", b"]"))
        end = token.end()
        if depth == 0:
            break
    return end
