"""Migrations of a store's tables: numbered .sql files, each applied once, in order.

A store keeps the number of the last applied file in a table of its own: the database may also hold the user's
tables, so its global version fields are not ours. All missing files are applied in one transaction. Files are
named `0001_what_it_does.sql`, without gaps. The statements of a released file are never changed.
"""

from __future__ import annotations

import re

import msgspec

from penstock.core.errors import StoreCorrupt, StoreTooNew
from penstock.stores.package_files import file_names, read_text

__all__ = ["Migration", "migrations", "missing"]

_FILE = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql\Z")


class Migration(msgspec.Struct, frozen=True):
    """One migration: its number (from 1), its name, and its statements."""

    number: int
    name: str
    statements: tuple[str, ...]


def migrations(package: str, folder: str = "migrations") -> list[Migration]:
    """Return all migrations of a store, in order."""
    found = []
    for name in file_names(package, folder):
        match = _FILE.match(name)
        if match:
            text = read_text(package, f"{folder}/{name}")
            found.append(Migration(int(match[1]), match[2], _statements(text)))
    found.sort(key=lambda m: m.number)
    if [m.number for m in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"the migrations of {package} are not numbered 1 … {len(found)} without gaps")
    return found


def missing(known: list[Migration], version: int, where: str) -> list[Migration]:
    """Return the migrations that a store of this version (0: empty) still needs.

    Raises StoreTooNew for a store of a later version, which this Penstock cannot use correctly.
    """
    if version > len(known):
        raise StoreTooNew(
            f"{where} has the store version {version}, this Penstock knows versions up to {len(known)}: "
            "upgrade penstock here, or use another file"
        )
    if version < 0:
        raise StoreCorrupt(f"{where} has the impossible store version {version}")
    return known[version:]


def _statements(text: str) -> tuple[str, ...]:
    """Split a file into statements. Each ends with `;` at the end of a line; comments are whole lines."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    parts = re.split(r";\s*$", "\n".join(lines), flags=re.MULTILINE)
    return tuple(part.strip() for part in parts if part.strip())
