"""Reads the files of a package that are not Python: SQL statements and Lua scripts.

`importlib.resources` does the same and takes 0.4 MB of memory, so it is used for a zip archive only.
"""

from __future__ import annotations

import os
from importlib import import_module
from pkgutil import get_data

__all__ = ["file_names", "read_text"]


def file_names(package: str, folder: str) -> list[str]:
    """The sorted names of what lies in a folder of this package."""
    path = os.path.join(import_module(package).__path__[0], *folder.split("/"))
    if os.path.isdir(path):
        return sorted(os.listdir(path))
    from importlib import resources

    return sorted(entry.name for entry in resources.files(package).joinpath(folder).iterdir())


def read_text(package: str, path: str) -> str:
    """The text of a file of this package."""
    data = get_data(package, path)
    if data is None:
        raise FileNotFoundError(f"{path} of {package} cannot be read: its loader reads no data")
    return data.decode().replace("\r\n", "\n")
