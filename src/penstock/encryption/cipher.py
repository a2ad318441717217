"""Seals and opens: with AES-256-GCM, or, where contents may be read by all, with a signature alone.

Whatever is sealed is sealed for one place (`about`): moved to another job, queue, task or namespace it does
not open. Each sealing has a key of its own, derived from 16 random bytes: with 12 more for the nonce no
number of jobs comes near the bounds of AES-GCM under one key.
"""

from __future__ import annotations

import binascii
import hmac
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

from penstock.core.errors import MissingExtra, PenstockError
from penstock.encryption.envelope import (
    BEFORE_SEALED,
    BEFORE_SIGNED,
    BEFORE_TEXT,
    is_sealed,
    is_sealed_text,
    key_id,
)
from penstock.encryption.keys import Key, Keyring

__all__ = ["CannotOpen", "Sealer", "about"]

_SALT, _NONCE = 16, 12
_HEAD = len(BEFORE_SEALED) + 9  # the key's id and a point
_END = b'"}'
_MAC = 44  # base64 of 32 bytes
_IS = b'","is":'
#: A unique key that nobody can guess arguments from begins with this.
_MARKED = "~"


class CannotOpen(PenstockError):
    """What is sealed does not open, or what should be sealed is not; the message says why."""


def about(kind: str, *place: str) -> bytes:
    """What a sealing is for: it opens in the same place alone."""
    return _pack((kind, *place))


class Sealer:
    """Writes with the first of the keys, reads with all.

    `encrypt=False` signs instead. `required`: what is neither sealed nor signed is refused.
    """

    def __init__(self, keys: Keyring, *, encrypt: bool = True, required: bool = False) -> None:
        self._keys = keys
        self.encrypts = encrypt
        self.required = required
        if encrypt:
            _aes()  # a missing package is told now, not at the first job

    def seal(self, data: bytes, about: bytes, *, same: bool = False) -> bytes:
        """Seal these bytes. `same`: equal bytes under one key look equal in the same place."""
        key = self._keys.first
        if not self.encrypts:
            mac = binascii.b2a_base64(_signature(key, data, about), newline=False)
            return b"".join((BEFORE_SIGNED, key.id.encode(), b".", mac, _IS, data, b"}"))
        sealed = binascii.b2a_base64(_sealed(key, data, about, same), newline=False)
        return b"".join((BEFORE_SEALED, key.id.encode(), b".", sealed, _END))

    def open(self, data: bytes, *about: bytes) -> bytes:
        """What was sealed for one of these places; raises CannotOpen. Clear bytes are as they are, unless a
        key is required."""
        if not is_sealed(data):
            if self.required:
                raise CannotOpen(
                    "it is neither encrypted nor signed, and this app takes no such job (key_required)"
                )
            return data
        key = self._key(key_id(data))
        if data.startswith(BEFORE_SIGNED):
            return _verified(key, data, about)
        if data[_HEAD - 1 : _HEAD] != b"." or not data.endswith(_END):
            raise CannotOpen(_NOT_HERE.format(key.id))
        return _opened(key, data[_HEAD : -len(_END)], about)

    def seal_text(self, text: str, about: bytes) -> str:
        """Seal a text, halves of characters as escapes; where contents are only signed it stays as it is."""
        if not self.encrypts or not text:
            return text
        key = self._keys.first
        data = _sealed(key, text.encode("utf-8", "backslashreplace"), about, False)
        return f"{BEFORE_TEXT}{key.id}.{binascii.b2a_base64(data, newline=False).decode()}"

    def open_text(self, text: str, *about: bytes) -> str:
        """What was sealed so; a clear text is as it is. One that does not open says so instead."""
        if not is_sealed_text(text):
            return text
        data, start = text.encode("ascii", "replace"), len(BEFORE_TEXT)
        try:
            return _opened(self._key(key_id(data, start)), data[start + 9 :], about).decode("utf-8")
        except (CannotOpen, UnicodeDecodeError) as error:
            return f"(encrypted; {error})"

    def mark(self, unique: str) -> str:
        """A unique key that is the same for equal ones, and says nothing of the arguments to who has not
        this key. Marking twice is marking once."""
        if unique.startswith(_MARKED):
            return unique
        mac = hmac.digest(self._keys.first.marks, unique.encode("utf-8", "surrogatepass"), "sha256")
        return _MARKED + mac[:16].hex()

    def _key(self, id: str) -> Key:
        key = self._keys.get(id)
        if key is None:
            known = ", ".join(key.id for key in self._keys)
            raise CannotOpen(f"its key is {id}, which this app has not ({known}): add it, App(key=[..., it])")
        return key


# ── private ──────────────────────────────────────────────────────────────────────────────────────


def _sealed(key: Key, data: bytes, about: bytes, same: bool) -> bytes:
    if same:  # what is derived from contents and place is as good as random where these differ
        seed = hmac.digest(key.seals, b"same" + about + b"\0" + data, "sha256")[: _SALT + _NONCE]
    else:
        seed = os.urandom(_SALT + _NONCE)
    sealed: bytes = _cipher(key, seed).encrypt(seed[_SALT:], data, about)
    return seed + sealed


def _opened(key: Key, text: bytes, places: tuple[bytes, ...]) -> bytes:
    cipher_error = _invalid_tag()
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
        if binascii.b2a_base64(binascii.a2b_base64(text[-4:]), newline=False) != text[-4:]:
            raise ValueError("bits at its end that say nothing")
    except (binascii.Error, ValueError):
        raise CannotOpen(f"it is damaged: no base64 after its key's id, {key.id}") from None
    seed, rest = data[: _SALT + _NONCE], data[_SALT + _NONCE :]
    if len(rest) >= 16:
        cipher = _cipher(key, seed)
        for place in places:
            try:
                opened: bytes = cipher.decrypt(seed[_SALT:], rest, place)
            except cipher_error:
                continue
            return opened
    raise CannotOpen(_NOT_HERE.format(key.id))


def _cipher(key: Key, seed: bytes) -> Any:
    return _aes()(hmac.digest(key.seals, b"each" + seed[:_SALT], "sha256"))


def _signature(key: Key, data: bytes, about: bytes) -> bytes:
    return hmac.digest(key.signs, _pack((about, data)), "sha256")


def _verified(key: Key, data: bytes, places: tuple[bytes, ...]) -> bytes:
    mac, rest = data[_HEAD : _HEAD + _MAC], data[_HEAD + _MAC :]
    if data[_HEAD - 1 : _HEAD] == b"." and rest.startswith(_IS) and rest.endswith(b"}"):
        contents = rest[len(_IS) : -1]
        for place in places:
            said = binascii.b2a_base64(_signature(key, contents, place), newline=False)
            if hmac.compare_digest(said, mac):
                return contents
    raise CannotOpen(_NOT_HERE.format(key.id))


_NOT_HERE = (
    "it does not open with its key, {}: it was changed, or moved from another namespace, queue, task or job"
)
_pack = msgspec.msgpack.Encoder().encode


@cache
def _aes() -> Callable[[bytes], Any]:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise MissingExtra(
            "encryption needs a package that is not installed: pip install 'penstock[crypto]'; "
            "signatures alone need none: App(key=..., encrypt=False)"
        ) from None
    return AESGCM


@cache
def _invalid_tag() -> type[Exception]:
    try:
        from cryptography.exceptions import InvalidTag
    except ImportError:
        raise CannotOpen(
            "it is encrypted, and a package is missing here: pip install 'penstock[crypto]'"
        ) from None
    return InvalidTag
