"""Makes text from outside safe to store and safe to print.

Text to store is plain UTF-8, even if user code passed something else. Text to print moves no cursor, starts
no new line, and does not change the writing direction.
"""

from __future__ import annotations

import io
import re
import sys
from typing import Any

#: C0 and C1 controls, DEL, line and paragraph separators, controls of the writing direction, lone surrogates.
_BEYOND_ASCII = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_OF_A_LINE = re.compile(f"[\x00-\x1f{_BEYOND_ASCII}]")
_OF_A_BLOCK = re.compile(f"[\x00-\x08\x0b-\x1f{_BEYOND_ASCII}]")
#: JSON strings have control characters below space escaped already.
_OF_JSON = re.compile(f"[{_BEYOND_ASCII}]")
_NOT_ASCII = re.compile("[^\x00-\x7e]")


# ── to store ─────────────────────────────────────────────────────────────────────────────────────


def plain(text: str) -> str:
    """The text as a plain `str`, also from a subclass such as an enum.

    Encoders accept only `str`, and methods of a subclass might raise.
    """
    return text if type(text) is str else str.__str__(text)


def whole(number: int) -> int:
    """The number as a plain `int`, also from a subclass."""
    return number if type(number) is int else int.__index__(number)


def storable(text: str) -> str:
    """The text with unpaired surrogates (from file names that are not UTF-8, say) written as escapes.

    Without this, a message with such characters would keep its job from being settled.
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def text_of(value: Any, otherwise: str = "", *, most: int = 1_000) -> str:
    """The value as plain text of at most `most` characters; `otherwise` if it cannot be formatted.

    Never raises, even if the value's own methods do.
    """
    try:
        text = plain(value if isinstance(value, str) else str(value))
    except BaseException:  # noqa: BLE001  # boundary: a user's value whose __str__ raises
        return otherwise
    return storable(text if len(text) <= most else text[: most - 1] + "…")


def shown(value: Any, *, most: int = 100) -> str:
    """The value's `repr` for a message. Never raises."""
    try:
        return text_of(repr(value), most=most)
    except BaseException:  # noqa: BLE001  # boundary: a user's value whose __repr__ raises
        return f"a value that cannot be shown, of {type(value)!r:.80}"


# ── to print ─────────────────────────────────────────────────────────────────────────────────────


def one_line(text: str, most: int | None = None) -> str:
    """The text in one line of at most `most` characters, with control characters escaped."""
    return _OF_A_LINE.sub(_escaped, _cut(text, most))


def block(text: str, most: int | None = None) -> str:
    """Like `one_line` for text of several lines: newlines and tabs stay."""
    return _OF_A_BLOCK.sub(_escaped, _cut(text, most))


def json_escaped(text: str, *, ascii: bool = False) -> str:
    r"""Escape as `\u…` in a JSON document the characters that `one_line` escapes, or all non-ASCII ones."""
    return (_NOT_ASCII if ascii else _OF_JSON).sub(_json_escape, text)


def print_anything() -> None:
    """Let stdout and stderr take all characters: with the C locale, to print most of them would fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
            stream.reconfigure(errors="backslashreplace")


def short_line(text: str, most: int = 1_000) -> str:
    """The text in one line. A long one loses its middle, because its end often says what to do."""
    return one_line(_without_middle(text, most))


def short_lines(text: str, most: int = 50) -> str:
    """Several lines: at most `most`, and each the shorter the more there are."""
    lines = text.split("\n", most)[:most]
    return "\n".join(short_line(line, max(200, 1_000 // len(lines))) for line in lines)


def counted(n: int, noun: str) -> str:
    """A number with its noun: "1 job", "2,000 jobs"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def number(value: float) -> str:
    """A number for people: "0.25", "7.46", "1,234", without an exponent if possible."""
    return f"{value:,.0f}" if 100 <= abs(value) < 1e15 else f"{value:.3g}"


# ── private ──────────────────────────────────────────────────────────────────────────────────────


def _without_middle(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    left_out = len(text) - most
    return f"{text[: most // 2]}… ({left_out:,} characters left out) …{text[-(most - most // 2) :]}"


def _cut(text: str, most: int | None) -> str:
    if most is None or len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text) - most:,} more characters)"


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def _json_escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[n : n + 4]}" for n in range(0, len(units), 4))
