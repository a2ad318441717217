"""Query parameters and numbers as lmstfy reads them: Go's `strconv`, the first value of a repeated name."""

from __future__ import annotations

import functools
import re
from urllib.parse import unquote_to_bytes

__all__ = ["RefusedError", "checked_text", "number", "read_query", "signed"]

_UNSIGNED = re.compile(r"[0-9]+")
_SIGNED = re.compile(r"[+-]?[0-9]+")
#: No number of more digits fits 64 bits, except with leading zeros, which Go accepts.
_MOST_DIGITS = 4_000


class RefusedError(Exception):
    """A request that is answered with an error: its status, the text, and when to try again (s)."""

    def __init__(self, status: int, error: str, retry_after: int | None = None) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.retry_after = retry_after


@functools.lru_cache(maxsize=1_024)
def read_query(query: bytes) -> dict[str, str]:
    """The parameters of a query, the first value of each. Do not change the result: it is cached.

    A pair that is not valid percent-encoding, or that has a semicolon, is left out, as by Go.
    """
    found: dict[str, str] = {}
    for pair in query.split(b"&"):
        if not pair or b";" in pair:
            continue
        name, _, value = pair.partition(b"=")
        decoded_name, decoded = _unescaped(name), _unescaped(value)
        if decoded_name is not None and decoded is not None:
            found.setdefault(decoded_name, decoded)
    return found


def _unescaped(text: bytes) -> str | None:
    text = text.replace(b"+", b" ")
    if b"%" in text:
        if re.search(rb"%(?![0-9A-Fa-f]{2})", text):
            return None
        text = unquote_to_bytes(text)
    return text.decode("utf-8", "surrogateescape")


def checked_text(text: str, name: str) -> str:
    """A text that was sent; raises RefusedError(400, "invalid NAME") if its bytes are not UTF-8."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RefusedError(400, f"invalid {name}") from None
    return text


def number(given: dict[str, str], name: str, default: int, *, bits: int = 32) -> int:
    """An unsigned number; raises RefusedError(400, "invalid NAME")."""
    text = given.get(name)
    if text is None:
        return default
    if _UNSIGNED.fullmatch(text) is None or len(text) > _MOST_DIGITS or (value := int(text)) >= 1 << bits:
        raise RefusedError(400, f"invalid {name}")
    return value


def signed(given: dict[str, str], name: str, default: int) -> int:
    """A signed 64-bit number; raises RefusedError(400, "invalid NAME")."""
    text = given.get(name)
    if text is None:
        return default
    if _SIGNED.fullmatch(text) is None or len(text) > _MOST_DIGITS:
        raise RefusedError(400, f"invalid {name}")
    value = int(text)
    if not -(1 << 63) <= value < 1 << 63:
        raise RefusedError(400, f"invalid {name}")
    return value
