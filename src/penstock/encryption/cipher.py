"""Encrypts values with AES-256-GCM, or only signs them with HMAC-SHA256.

A value is bound to its job, queue, task and namespace, its additional authenticated data (AAD): moved
elsewhere, it cannot be decrypted. Each encryption has its own AES key, derived from 16 random bytes, and a
nonce of 12 more, so no number of jobs comes near the limits of one AES-GCM key.
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
    ENCRYPTED_PREFIX,
    SIGNED_PREFIX,
    TEXT_PREFIX,
    is_encrypted_text,
    is_envelope,
    key_id,
)
from penstock.encryption.keys import EncryptionKey, Keyring

_SALT, _NONCE, _TAG = 16, 12, 16
_HEAD = len(ENCRYPTED_PREFIX) + 9  # the key's id and a point
_END = b'"}'
_MAC = 44  # base64 of 32 bytes
_IS = b'","is":'
#: More than the bytes that encryption or a signature adds, apart from a third for base64.
_ADDED = 128
#: A hashed unique key begins with this.
_HASHED = "~"


class CannotDecrypt(PenstockError):
    """A value cannot be decrypted, or is clear although a key is required; the message says why."""


def additional_data(kind: str, *bound_to: str) -> bytes:
    """The additional authenticated data (AAD) of a value: it decrypts only with the same.

    `kind`: of the value. `bound_to`: what it belongs to, such as namespace, queue and job.
    """
    return _pack((kind, *bound_to))


def encrypted_size(clear: int) -> int:
    """The most bytes that a value of so many bytes has when it is encrypted or signed."""
    return clear * 4 // 3 + _ADDED


def clear_size(encrypted: int) -> int:
    """About the bytes of a value that has so many bytes when it is encrypted."""
    return max(0, (encrypted - _HEAD - len(_END)) * 3 // 4 - _SALT - _NONCE - _TAG)


class Cipher:
    """Encrypts with the first of the keys, decrypts with any of them.

    - `encrypt=False`: sign only.
    - `required`: refuse values that are neither encrypted nor signed.
    """

    def __init__(self, keyring: Keyring, *, encrypt: bool = True, required: bool = False) -> None:
        self._keyring = keyring
        self.encrypts = encrypt
        self.required = required
        if encrypt:
            _aes()  # a missing package raises now, not at the first job

    def encrypt(self, data: bytes, aad: bytes, *, deterministic: bool = False) -> bytes:
        """Encrypt these bytes, or sign them if the cipher only signs.

        `deterministic`: equal bytes with the same key and AAD give equal results.
        """
        key = self._keyring.first
        if not self.encrypts:
            mac = binascii.b2a_base64(_signature(key, data, aad), newline=False)
            return b"".join((SIGNED_PREFIX, key.id.encode(), b".", mac, _IS, data, b"}"))
        encrypted = binascii.b2a_base64(_encrypted(key, data, aad, deterministic), newline=False)
        return b"".join((ENCRYPTED_PREFIX, key.id.encode(), b".", encrypted, _END))

    def decrypt(self, data: bytes, *aad: bytes) -> bytes:
        """Decrypt or verify bytes that were encrypted with one of these AADs.

        Clear bytes are returned unchanged, unless a key is required. Raises CannotDecrypt.
        """
        if not is_envelope(data):
            if self.required:
                raise CannotDecrypt(
                    "it is neither encrypted nor signed, and this app takes no such job (key_required)"
                )
            return data
        key = self._key(key_id(data))
        if data.startswith(SIGNED_PREFIX):
            return _verified(key, data, aad)
        if data[_HEAD - 1 : _HEAD] != b"." or not data.endswith(_END):
            raise CannotDecrypt(_NOT_HERE.format(key.id))
        return _decrypted(key, data[_HEAD : -len(_END)], aad)

    def encrypt_text(self, text: str, aad: bytes) -> str:
        """Encrypt a text; lone surrogates become escapes. A cipher that only signs returns it unchanged."""
        if not self.encrypts or not text:
            return text
        key = self._keyring.first
        data = _encrypted(key, text.encode("utf-8", "backslashreplace"), aad, False)
        return f"{TEXT_PREFIX}{key.id}.{binascii.b2a_base64(data, newline=False).decode()}"

    def decrypt_text(self, text: str, *aad: bytes) -> str:
        """Decrypt a text. A clear text is returned unchanged; if it cannot be decrypted, the reason is."""
        if not is_encrypted_text(text):
            return text
        data, start = text.encode("ascii", "replace"), len(TEXT_PREFIX)
        try:
            return _decrypted(self._key(key_id(data, start)), data[start + 9 :], aad).decode("utf-8")
        except (CannotDecrypt, UnicodeDecodeError) as error:
            return f"(encrypted; {error})"

    def hash_unique_key(self, unique: str) -> str:
        """The keyed hash of a unique key: equal for equal keys, and the arguments cannot be guessed from it.

        A hash is not hashed again.
        """
        if unique.startswith(_HASHED):
            return unique
        mac = hmac.digest(self._keyring.first.hashing_key, unique.encode("utf-8", "surrogatepass"), "sha256")
        return _HASHED + mac[:16].hex()

    def _key(self, id: str) -> EncryptionKey:
        key = self._keyring.get(id)
        if key is None:
            known = ", ".join(key.id for key in self._keyring)
            raise CannotDecrypt(
                f"its key is {id}, which this app has not ({known}): add it, App(key=[..., it])"
            )
        return key


# ── private ──────────────────────────────────────────────────────────────────────────────────────


def _encrypted(key: EncryptionKey, data: bytes, aad: bytes, deterministic: bool) -> bytes:
    if deterministic:  # derived from contents and `aad`, the seed is as good as random where these differ
        seed = hmac.digest(key.encryption_key, b"same" + aad + b"\0" + data, "sha256")[: _SALT + _NONCE]
    else:
        seed = os.urandom(_SALT + _NONCE)
    encrypted: bytes = _aes_cipher(key, seed).encrypt(seed[_SALT:], data, aad)
    return seed + encrypted


def _decrypted(key: EncryptionKey, text: bytes, aads: tuple[bytes, ...]) -> bytes:
    cipher_error = _invalid_tag()
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
        if binascii.b2a_base64(binascii.a2b_base64(text[-4:]), newline=False) != text[-4:]:
            raise ValueError("bits at its end that say nothing")
    except (binascii.Error, ValueError):
        raise CannotDecrypt(f"it is damaged: no base64 after its key's id, {key.id}") from None
    seed, rest = data[: _SALT + _NONCE], data[_SALT + _NONCE :]
    if len(rest) >= 16:
        cipher = _aes_cipher(key, seed)
        for aad in aads:
            try:
                decrypted: bytes = cipher.decrypt(seed[_SALT:], rest, aad)
            except cipher_error:
                continue
            return decrypted
    raise CannotDecrypt(_NOT_HERE.format(key.id))


def _aes_cipher(key: EncryptionKey, seed: bytes) -> Any:
    return _aes()(hmac.digest(key.encryption_key, b"each" + seed[:_SALT], "sha256"))


def _signature(key: EncryptionKey, data: bytes, aad: bytes) -> bytes:
    return hmac.digest(key.signing_key, _pack((aad, data)), "sha256")


def _verified(key: EncryptionKey, data: bytes, aads: tuple[bytes, ...]) -> bytes:
    mac, rest = data[_HEAD : _HEAD + _MAC], data[_HEAD + _MAC :]
    if data[_HEAD - 1 : _HEAD] == b"." and rest.startswith(_IS) and rest.endswith(b"}"):
        contents = rest[len(_IS) : -1]
        for aad in aads:
            said = binascii.b2a_base64(_signature(key, contents, aad), newline=False)
            if hmac.compare_digest(said, mac):
                return contents
    raise CannotDecrypt(_NOT_HERE.format(key.id))


_NOT_HERE = (
    "it cannot be decrypted with its key, {}: it was changed, or moved from another namespace, queue, task "
    "or job"
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
        raise CannotDecrypt(
            "it is encrypted, and a package is missing here: pip install 'penstock[crypto]'"
        ) from None
    return InvalidTag
