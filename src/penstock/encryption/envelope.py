"""The stored form of encrypted and signed values, which is recognised without a key.

- encrypted bytes: `{"$sealed":"1.KEYID.BASE64"}`
- signed bytes: `{"$signed":"1.KEYID.BASE64","is":...}`
- encrypted texts: `$sealed:1.KEYID.BASE64`

Bytes stay JSON, so that a batch of them is a JSON array. `$sealed` is part of the stored format and stays.
"""

from __future__ import annotations

import re

import msgspec

from penstock.core.job import Job

ENCRYPTED_PREFIX = b'{"$sealed":"1.'
SIGNED_PREFIX = b'{"$signed":"1.'
TEXT_PREFIX = "$sealed:1."
_MARKS = (ENCRYPTED_PREFIX, SIGNED_PREFIX)
_ID = re.compile(rb"[0-9a-f]{8}")


class Unreadable(bytes):
    """Bytes that could not be decrypted, and the reason. They always look encrypted."""

    why: str

    @classmethod
    def of(cls, data: bytes, why: str) -> Unreadable:
        unreadable = cls(data if is_envelope(data) else b'{"$sealed":"1."}')
        unreadable.why = why
        return unreadable


def is_envelope(data: bytes) -> bool:
    """Whether these bytes are encrypted or signed."""
    return data.startswith(_MARKS)


def is_encrypted_text(text: str) -> bool:
    return text.startswith(TEXT_PREFIX)


def key_id(data: bytes, start: int = len(ENCRYPTED_PREFIX)) -> str:
    """The id of the key that encrypted or signed this; "unknown" if it is no valid id.

    It goes to logs and terminals, so other text in its place is not repeated.
    """
    found = _ID.match(data, start)
    return "unknown" if found is None else found[0].decode()


def why_unreadable(job: Job) -> str | None:
    """Why the job's payload cannot be read without a key; None if it is clear."""
    payload = job.spec.payload
    if isinstance(payload, Unreadable):
        return payload.why
    if payload.startswith(_MARKS):
        return _away(payload)
    if job.members and any(mark in payload for mark in _MARKS):
        return next((_away(one) for one in _elements(payload) if one.startswith(_MARKS)), None)
    return None


def why_not_here(data: bytes) -> str | None:
    """Why a result cannot be read without a key; None if it is clear."""
    if isinstance(data, Unreadable):
        return data.why
    return _away(data) if data.startswith(_MARKS) else None


def _elements(batch: bytes) -> list[bytes]:
    try:
        return [bytes(element) for element in _decode(batch)[0]]
    except (msgspec.DecodeError, ValueError):  # the worker that runs it reports it
        return []


_decode = msgspec.json.Decoder(tuple[list[msgspec.Raw]]).decode


def _away(data: bytes) -> str:
    how = "encrypted" if data.startswith(ENCRYPTED_PREFIX) else "signed"
    return (
        f"it is {how} with the key {key_id(data)}, and there is no key here: give the app that key with "
        "App(key=...) or PENSTOCK_KEY"
    )
