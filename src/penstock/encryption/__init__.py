"""Encrypts what jobs carry, so that the store, its backups and their readers hold no clear text.

`keys` reads keys and derives others from them. `envelope` defines the stored form, which is recognised
without a key. `cipher` encrypts and decrypts single values. `penstock.stores.encrypted` does so with every
job of a store; docs/encryption.md describes the format.
"""

from penstock.encryption.cipher import (
    CannotDecrypt,
    Cipher,
    additional_data,
    clear_size,
    encrypted_size,
)
from penstock.encryption.envelope import (
    Unreadable,
    is_encrypted_text,
    is_envelope,
    why_not_here,
    why_unreadable,
)
from penstock.encryption.keys import EncryptionKey, Keyring, new_key, read_keys

__all__ = [
    "CannotDecrypt",
    "Cipher",
    "EncryptionKey",
    "Keyring",
    "Unreadable",
    "additional_data",
    "clear_size",
    "encrypted_size",
    "is_encrypted_text",
    "is_envelope",
    "new_key",
    "read_keys",
    "why_not_here",
    "why_unreadable",
]
