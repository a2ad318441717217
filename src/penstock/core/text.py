"""Text that every store can keep, made of whatever user code gave."""

from __future__ import annotations

from typing import Any

__all__ = ["plain", "shown", "storable", "text_of", "whole"]


def plain(text: str) -> str:
    """The text itself, also of a subclass such as an enum: encoders know only `str`, and no method of the
    subclass may run where it could fail others too."""
    return text if type(text) is str else str.__str__(text)


def whole(number: int) -> int:
    """The same for a number."""
    return number if type(number) is int else int.__index__(number)


def storable(text: str) -> str:
    """The text, where it has halves of surrogate pairs (as file names that are not UTF-8 do) with these
    written as escapes: a strange message must not keep a job from being settled."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def text_of(value: Any, otherwise: str = "", *, most: int = 1_000) -> str:
    """The value as a plain text of at most `most` characters; `otherwise` if it has no words.

    Never raises, whatever the value's own methods do.
    """
    try:
        text = plain(value if isinstance(value, str) else str(value))
    except BaseException:  # noqa: BLE001  # boundary: a value of the user's whose own __str__ raises
        return otherwise
    return storable(text if len(text) <= most else text[: most - 1] + "…")


def shown(value: Any, *, most: int = 100) -> str:
    """The value as code would write it, for a message. Never raises."""
    try:
        return text_of(repr(value), most=most)
    except BaseException:  # noqa: BLE001  # boundary: a value of the user's whose own __repr__ raises
        return f"a value that cannot be shown, of {type(value)!r:.80}"
