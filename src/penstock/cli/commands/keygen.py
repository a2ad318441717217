"""`penstock keygen`: print a new key for PENSTOCK_KEY or a file of secrets."""

from __future__ import annotations

import click

from penstock.cli.session import Command, Session
from penstock.cli.show import emit, say


@click.command("keygen", cls=Command)
def command() -> None:
    """Print a new key for the encryption of jobs.

    Keep the key secret: anybody who has it can read the jobs, and without it they cannot be read. Only the
    key's `id` is shown elsewhere.
    """
    from penstock.encryption import Keyring, new_key, read_keys

    key = new_key()
    if Session.current().json:
        emit({"key": key, "id": Keyring(read_keys(key)).first.id})
    else:
        say(key)
