"""How what is sealed looks: JSON that also who has no key knows by sight, and never takes for arguments.

Bytes are `{"$sealed":"1.KEYID.BASE64"}`, or, only signed, `{"$signed":"1.KEYID.BASE64","is":...}`, so that a
batch of them is a JSON array still; texts are `$sealed:1.KEYID.BASE64`.
"""

from __future__ import annotations

import re

import msgspec

from penstock.core.job import Job

__all__ = [
    "BEFORE_SEALED",
    "BEFORE_SIGNED",
    "BEFORE_TEXT",
    "Closed",
    "is_sealed",
    "is_sealed_text",
    "key_id",
    "shown_text",
    "why_not_here",
    "why_sealed",
]

BEFORE_SEALED = b'{"$sealed":"1.'
BEFORE_SIGNED = b'{"$signed":"1.'
BEFORE_TEXT = "$sealed:1."
_MARKS = (BEFORE_SEALED, BEFORE_SIGNED)
_ID = re.compile(rb"[0-9a-f]{8}")
_TEXT = re.compile(r"\$sealed:1\.([0-9a-f]{8})\.[A-Za-z0-9+/=]+")


class Closed(bytes):
    """What could not be opened, and why not. Always looks sealed, whatever it was."""

    why: str

    @classmethod
    def of(cls, data: bytes, why: str) -> Closed:
        closed = cls(data if is_sealed(data) else b'{"$sealed":"1."}')
        closed.why = why
        return closed


def is_sealed(data: bytes) -> bool:
    """Whether this is sealed or signed."""
    return data.startswith(_MARKS)


def is_sealed_text(text: str) -> bool:
    return text.startswith(BEFORE_TEXT)


def key_id(data: bytes, start: int = len(BEFORE_SEALED)) -> str:
    """The id of the key under which this is sealed or signed. It stands in logs and on terminals, so what
    somebody else wrote there and is no id is not repeated."""
    found = _ID.match(data, start)
    return "unknown" if found is None else found[0].decode()


def why_sealed(job: Job) -> str | None:
    """Why nobody here can read what the job carries; None: it is clear. Of a store without a key."""
    payload = job.spec.payload
    if isinstance(payload, Closed):
        return payload.why
    if payload.startswith(_MARKS):
        return _away(payload)
    if job.members and any(mark in payload for mark in _MARKS):
        return next((_away(one) for one in _elements(payload) if one.startswith(_MARKS)), None)
    return None


def why_not_here(data: bytes) -> str | None:
    """The same of a result."""
    if isinstance(data, Closed):
        return data.why
    return _away(data) if data.startswith(_MARKS) else None


def shown_text(text: str) -> str:
    """A text for people; what is sealed in it says so in a word."""
    return _TEXT.sub(r"(encrypted with the key \1)", text) if "$sealed:" in text else text


def _elements(batch: bytes) -> list[bytes]:
    try:
        return [bytes(element) for element in _decode(batch)[0]]
    except (msgspec.DecodeError, ValueError):  # whoever runs it will say so
        return []


_decode = msgspec.json.Decoder(tuple[list[msgspec.Raw]]).decode


def _away(data: bytes) -> str:
    how = "encrypted" if data.startswith(BEFORE_SEALED) else "signed"
    return (
        f"it is {how} with the key {key_id(data)}, and there is no key here: give the app that key with "
        "App(key=...) or PENSTOCK_KEY"
    )
