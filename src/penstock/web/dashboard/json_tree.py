"""JSON as a tree for a page: numbers exactly as they are stored, hidden values, and a bound on its size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from penstock.core.security import HIDDEN, Redaction

__all__ = [
    "HIDDEN",
    "Redaction",
    "TreeNode",
    "hidden_texts",
    "holds_hidden",
    "json_text",
    "json_tree",
]

#: Nodes and characters of a text that are shown at once.
_MOST_NODES, _LONGEST_TEXT = 400, 2_000
#: Children of one value: what stands beside a long list is shown, too.
_MOST_CHILDREN = 100
_DEEPEST = 40
#: Levels from which on the lines of a text are indented no further: its size would grow with the square.
_MOST_INDENTED = 20
_TOO_DEEP = "nested too deeply to be shown"


@dataclass
class TreeNode:
    """A value. `kind`: object, array, text, number, word, hidden or more; `size`: its children in all."""

    kind: str
    name: str | None = None
    text: str = ""
    size: int = 0
    children: list[TreeNode] = field(default_factory=list)


class _Number(str):
    """A number as it is written: 1.10 and integers of any length stay as they are."""

    __slots__ = ()


def json_tree(raw: bytes, redaction: Redaction, *, most: int = _MOST_NODES) -> TreeNode | None:
    """The tree of a JSON document, of at most `most` nodes; None if it is not JSON.

    A document that is nested too deeply is one word that says so: nothing of it is shown that may be hidden.
    """
    try:
        value = json.loads(raw, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
    except ValueError:
        return None
    except RecursionError:
        return TreeNode("word", text=_TOO_DEEP)
    return _Builder(redaction, most).node(None, value, 0)


class _Builder:
    def __init__(self, redaction: Redaction, most: int) -> None:
        self._redaction = redaction
        self._left = most

    def node(self, name: str | None, value: Any, depth: int) -> TreeNode:
        self._left -= 1
        if name is not None:
            hides, name = self._redaction.hides(name), _cut(name)
            if hides:
                return TreeNode(HIDDEN, name)
        match value:
            case dict():
                pairs = ((str(key), one) for key, one in value.items())
                return self._inner("object", name, len(value), pairs, depth)
            case list():
                items = ((None, one) for one in value)
                return self._inner("array", name, len(value), items, depth)
            case _Number():
                return TreeNode("number", name, _cut(str(value)), len(value))
            case str():
                return TreeNode("text", name, _cut(value), len(value))
        return TreeNode("word", name, {None: "null", True: "true", False: "false"}[value])

    def _inner(
        self, kind: str, name: str | None, size: int, pairs: Iterator[tuple[str | None, Any]], depth: int
    ) -> TreeNode:
        made = TreeNode(kind, name, size=size)
        shown = min(size, _MOST_CHILDREN)
        for key, one in islice(pairs, shown):
            if self._left <= 0 or depth >= _DEEPEST:
                break
            beside = shown - len(made.children) - 1  # each of these gets a line
            self._left -= beside
            made.children.append(self.node(key, one, depth + 1))
            self._left += beside
        if len(made.children) < size:
            made.children.append(TreeNode("more", size=size - len(made.children)))
        return made


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


def json_text(raw: bytes, redaction: Redaction) -> str:
    """A whole JSON document as indented text, with exact numbers and hidden values replaced."""
    lines: list[str] = []
    try:
        value = json.loads(raw, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
        _write(value, redaction, lines, 0)
    except ValueError:
        return "This is not JSON.\n"
    except RecursionError:
        return f"This is {_TOO_DEEP}.\n"
    return "".join(lines)


def holds_hidden(raw: bytes, redaction: Redaction) -> bool:
    """Whether a JSON document has a value that is not shown, or cannot be searched for one."""
    try:
        return _hides_one(json.loads(raw, parse_int=str), redaction)
    except (ValueError, RecursionError):
        return True


def _hides_one(value: Any, redaction: Redaction) -> bool:
    if isinstance(value, dict):
        return any(redaction.hides(name) or _hides_one(one, redaction) for name, one in value.items())
    return isinstance(value, list) and any(_hides_one(one, redaction) for one in value)


def hidden_texts(raw: bytes, redaction: Redaction) -> list[str] | None:
    """The values of a JSON document that are not shown, as texts; None if it is nested too deeply."""
    try:
        return list(_hidden_texts(json.loads(raw, parse_int=str, parse_float=str), redaction, False))
    except ValueError:
        return []
    except RecursionError:
        return None


def _hidden_texts(value: Any, redaction: Redaction, hides: bool) -> Iterator[str]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _hidden_texts(one, redaction, hides or redaction.hides(name))
    elif isinstance(value, list):
        for one in value:
            yield from _hidden_texts(one, redaction, hides)
    elif hides:
        yield value if isinstance(value, str) else json.dumps(value)


def _write(value: Any, redaction: Redaction, lines: list[str], depth: int) -> None:
    indent = "\n" + "  " * min(depth, _MOST_INDENTED)
    match value:
        case _Number():
            lines.append(value)
        case dict() if value:
            for n, (name, one) in enumerate(value.items()):
                lines.append(f"{'{' if n == 0 else ','}{indent}  {json.dumps(name, ensure_ascii=False)}: ")
                if redaction.hides(name):
                    lines.append(f'"{HIDDEN}"')
                else:
                    _write(one, redaction, lines, depth + 1)
            lines.append(f"{indent}}}")
        case list() if value:
            for n, one in enumerate(value):
                lines.append(f"{'[' if n == 0 else ','}{indent}  ")
                _write(one, redaction, lines, depth + 1)
            lines.append(f"{indent}]")
        case _:
            lines.append(json.dumps(value, ensure_ascii=False))
