"""`penstock keygen`: a new key, for PENSTOCK_KEY or a file of secrets."""

from __future__ import annotations

import click

from penstock.cli.session import Command, Session
from penstock.cli.show import emit, say

__all__ = ["command"]


@click.command("keygen", cls=Command)
def command() -> None:
    """Print a new key, which encrypts what jobs carry.

    Keep it as a secret: who has it reads all jobs; without it nobody does. `id` is what is seen of it.
    """
    from penstock.encryption import Keyring, new_key, read_keys

    key = new_key()
    if Session.current().json:
        emit({"key": key, "id": Keyring(read_keys(key)).first.id})
    else:
        say(key)
