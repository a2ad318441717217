"""A store that seals what jobs carry before another store keeps it, and opens it on the way out.

Above it everybody sees clear jobs, below it nobody does, so that no way into the store is forgotten. Sealed
are arguments, results, checkpoints, error messages and tracebacks, reasons in somebody's own words, notes of
progress, and the arguments of periodic entries. Ids, queues, tasks, headers, lanes, turns, groups and times
stay clear: the store works with them. What does not open stays closed (`sealing.Closed`), and its job is not
lost.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.config import Config
from penstock.core.job import Job
from penstock.encryption import Keyring, Sealer, read_keys, why_sealed
from penstock.stores.contract import Store
from penstock.stores.encrypted.field_cipher import Clerk
from penstock.stores.encrypted.store import EncryptedStore

__all__ = ["vault", "vault_of", "why_closed"]


def vault(store: Store, sealer: Sealer, namespace: str = "") -> Store:
    """The same store; what jobs carry there is sealed. `namespace` is the app's: what is sealed in one does
    not open in another."""
    return EncryptedStore(store, Clerk(sealer, namespace))


def vault_of(store: Store, config: Config) -> Store:
    """The same by these settings; the store itself, if there is no key among them."""
    if not config.key:
        return store
    keys = Keyring(read_keys(config.key))
    sealer = Sealer(keys, encrypt=config.encrypt, required=config.key_required)
    return vault(store, sealer, config.namespace)


def why_closed(store: Store) -> Callable[[Job], str | None]:
    """What says of a job of this store why it cannot be read here; None of one that can."""
    found: Callable[[Job], str | None] = getattr(store, "why_closed", why_sealed)
    return found
