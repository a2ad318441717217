"""The name of the user who runs a command, for the audit log."""

from __future__ import annotations

import getpass
import os
import platform

__all__ = ["acting_user"]


def acting_user() -> str:
    """`cli:USER@HOST`; the user's number where it has no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"cli:{user}@{platform.node()}"
