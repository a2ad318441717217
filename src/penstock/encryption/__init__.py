"""What jobs carry, sealed under a key: the store, its backups and whoever reads them hold no clear text.

`keys` (how keys are written, and what is derived from them), `envelope` (how what is sealed looks, so that
also who has no key knows it by sight) and `sealer` (seals and opens, for one place each). The store that
does so with every job is `vault`; docs/encryption.md is the format.
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
