"""The encrypted store: a store around another one that encrypts the data of jobs.

Callers see clear jobs; the inner store never does. Marks on fields (`core/security.py::Secret`) say what is
encrypted; docs/encryption.md has a table of it, and of what stays clear because the store works with it. A
value that cannot be decrypted becomes `encryption.Unreadable`; its job is not lost.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.config import Config
from penstock.core.forks import importing
from penstock.core.job import Job
from penstock.encryption import Cipher, Keyring, read_keys, why_unreadable
from penstock.stores.contract import Store

__all__ = ["encrypted_store", "encrypted_with_config", "unreadable_check"]


def encrypted_store(store: Store, cipher: Cipher, namespace: str = "") -> Store:
    """This store with the data of jobs encrypted.

    `namespace` is the app's: data encrypted in one namespace cannot be decrypted in another.
    """
    with importing():  # most apps have no key
        from penstock.stores.encrypted.field_cipher import FieldCipher
        from penstock.stores.encrypted.store import EncryptedStore
    return EncryptedStore(store, FieldCipher(cipher, namespace))


def encrypted_with_config(store: Store, config: Config) -> Store:
    """This store, encrypted as configured; the store itself if no key is configured."""
    if not config.key:
        return store
    keys = Keyring(read_keys(config.key))
    cipher = Cipher(keys, encrypt=config.encrypt, required=config.key_required)
    return encrypted_store(store, cipher, config.namespace)


def unreadable_check(store: Store) -> Callable[[Job], str | None]:
    """The store's check of whether a job can be read here: it returns the reason why not, or None."""
    found: Callable[[Job], str | None] = getattr(store, "why_unreadable", why_unreadable)
    return found
