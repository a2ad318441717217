"""Encrypts what jobs carry, so that the store, its backups and their readers hold no clear text.

`keys` reads keys and derives others from them. `envelope` defines the stored form, which is recognised
without a key. `cipher` encrypts and decrypts single values. `penstock.stores.encrypted` does so with every
job of a store; docs/encryption.md describes the format.
"""

from penstock.encryption.cipher import CannotOpen, Sealer, about
from penstock.encryption.envelope import (
    Closed,
    is_sealed,
    is_sealed_text,
    shown_text,
    why_not_here,
    why_sealed,
)
from penstock.encryption.keys import Key, Keyring, new_key, read_keys

__all__ = [
    "CannotOpen",
    "Closed",
    "Key",
    "Keyring",
    "Sealer",
    "about",
    "is_sealed",
    "is_sealed_text",
    "new_key",
    "read_keys",
    "shown_text",
    "why_not_here",
    "why_sealed",
]
