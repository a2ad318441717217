"""Keys: how they are written down, what is derived from them, and how none is ever shown."""

from __future__ import annotations

import binascii
import hmac
import os
from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.core.errors import ConfigError

#: Bytes of a key: AES-256.
SIZE = 32
_RULE = f"a key is {SIZE} bytes, or those as base64 text; `penstock keygen` makes one"


class EncryptionKey:
    """One key, and the keys derived from it, one per purpose."""

    __slots__ = ("encryption_key", "hashing_key", "id", "signing_key")

    def __init__(self, secret: bytes) -> None:
        #: Identifies the key without revealing it.
        self.id = _derived(secret, b"id")[:4].hex()
        # the labels "seal", "sign" and "mark" are part of the stored format
        self.encryption_key = _derived(secret, b"seal")
        self.signing_key = _derived(secret, b"sign")
        self.hashing_key = _derived(secret, b"mark")  # unique keys

    def __repr__(self) -> str:
        return f"<Key {self.id}>"

    def __reduce__(self) -> Any:
        raise TypeError("a key is not pickled: it would be written down where nobody looks for one")


class Keyring:
    """The keys of an app: it encrypts with the first and decrypts with any."""

    __slots__ = ("_keys",)

    def __init__(self, secrets: Sequence[bytes]) -> None:
        self._keys = {key.id: key for key in map(EncryptionKey, secrets)}
        if not self._keys:
            raise ConfigError(f"key: there is none in it; {_RULE}")

    @property
    def first(self) -> EncryptionKey:
        return next(iter(self._keys.values()))

    def get(self, id: str) -> EncryptionKey | None:
        """The key of this id."""
        return self._keys.get(id)

    def __iter__(self) -> Iterator[EncryptionKey]:
        return iter(self._keys.values())

    def __repr__(self) -> str:
        return f"<Keyring {', '.join(self._keys)}>"


def read_keys(value: Any, what: str = "key") -> list[bytes]:
    """The keys in what a user may write: bytes, base64 text (several with commas between), or a list of
    either, the one to write with first. Raises ConfigError, which never quotes what was written."""
    if isinstance(value, str):
        return [_read_text(text.strip(), what) for text in value.split(",")]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return [_sized(bytes(value), what)]
    if isinstance(value, Sequence):
        return [key for one in value for key in read_keys(one, what)]
    raise ConfigError(f"{what} is a {type(value).__name__}: {_RULE}")


def new_key() -> str:
    """A new key, as text for a variable or a file."""
    return b64encode(os.urandom(SIZE)).decode()


# ── private ──────────────────────────────────────────────────────────────────────────────────────


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return hmac.digest(secret, b"penstock 1 " + purpose, "sha256")


def _read_text(text: str, what: str) -> bytes:
    try:
        # both alphabets of base64, with or without what fills up its end
        plain = text.translate(_STANDARD).rstrip("=")
        key = binascii.a2b_base64(plain + "=" * (-len(plain) % 4), strict_mode=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"{what}: a text of {len(text)} characters that is not base64: {_RULE}") from None
    return _sized(key, what)


def _sized(key: bytes, what: str) -> bytes:
    if len(key) != SIZE:
        raise ConfigError(f"{what}: the key has {len(key)} bytes: {_RULE}")
    return key


_STANDARD = str.maketrans("-_", "+/")
