"""Formats instants, durations, bytes and texts for people and for JSON."""

from __future__ import annotations

import re
from base64 import b64encode
from datetime import UTC, datetime

import msgspec

__all__ = ["instant", "iso", "json_or_base64", "ms_of", "seconds", "shown_text", "size_text"]

#: Text that was encrypted with the key of this id.
_ENCRYPTED = re.compile(r"\$sealed:1\.([0-9a-f]{8})\.[A-Za-z0-9+/=]+")


def iso(ms: int | None) -> str | None:
    """An instant in RFC 3339 format, `2026-11-20T08:30:00.250Z`; None for None."""
    return None if ms is None else instant(ms)


def instant(ms: int) -> str:
    """An instant in the format of `iso`."""
    whole, rest = divmod(ms, 1000)
    try:
        return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03d}Z"
    except (ValueError, OverflowError, OSError):  # a foreign producer may have stored any number
        return f"{ms} ms since 1970"


def ms_of(text: str | None) -> int | None:
    """The instant of a text in the format of `iso`; None if it has none."""
    try:
        return None if text is None else round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None


def shown_text(text: str) -> str:
    """A text for people: encrypted parts are replaced by a note that names their key."""
    return _ENCRYPTED.sub(r"(encrypted with the key \1)", text) if "$sealed:" in text else text


def seconds(begin: int | None, end: int | None) -> float | None:
    """The seconds between two instants; None if one is unknown."""
    return None if begin is None or end is None else max(0, end - begin) / 1000


def size_text(count: float) -> str:
    """A number of bytes: `950 B`, `312 MB`, `2.9 GB`."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 999.5 * size else f"{count / size:.0f} {unit}"
    return f"{count:.0f} B"


def json_or_base64(data: bytes | None) -> tuple[msgspec.Raw | None, str | None]:
    """The bytes as JSON in one line, or else as base64; one of the two is None."""
    if data is None:
        return None, None
    try:
        text = data.decode("utf-8")
        return msgspec.Raw(msgspec.json.format(text, indent=-1).encode()), None
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):  # the last: nested too deeply
        return None, b64encode(data).decode()
