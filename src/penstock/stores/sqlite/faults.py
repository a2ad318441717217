"""Translate exceptions of sqlite3 and the system to Penstock's; no driver exception leaves the store."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

from penstock.core.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

__all__ = ["busy", "cannot_open", "os_fault", "translated"]

_FULL_DISK = "no room left on its disk; nothing of this call was stored"


def translated(error: sqlite3.Error, path: Path) -> StoreError:
    """Translate an exception of sqlite3."""
    extended = getattr(error, "sqlite_errorcode", None)
    if extended is None:  # raised by Python's sqlite3 module for wrong use: it has no error code
        return StoreError(f"{path}: {type(error).__name__}: {error}")
    match extended & 0xFF:
        case 13:
            return StoreFull(f"{path}: {_FULL_DISK}")
        case 8 | 3:
            return StoreReadOnly(f"{path} can be read but not written ({error}): check its permissions")
        case 26:
            return StoreCorrupt(f"{path} is not a SQLite database: give another path, or move that file away")
        case 11 | 24:
            return StoreCorrupt(f"{path} is damaged ({error}): restore a backup, or try sqlite3's `.recover`")
        case 5 | 6 | 15:
            return busy(path, "another program holds its write lock")
        case 14:
            return cannot_open(path, str(error))
        case 10 | 7 | 9:
            return StoreUnavailable(f"{path}: {error} (SQLite error {extended})")
        case _:
            return StoreError(f"{path}: {error} (SQLite error {extended})")


def busy(path: Path, why: str) -> StoreBusy:
    return StoreBusy(f"{path} is busy: {why}; nothing of this call was done, try again")


def cannot_open(path: Path, why: str) -> StoreError:
    """Return the error for a file that cannot be opened, with the most likely cause."""
    folder = path.parent
    if not folder.exists():
        return StoreError(f"cannot open {path}: there is no directory {folder}; make it first")
    if not folder.is_dir():
        return StoreError(f"cannot open {path}: {folder} is not a directory")
    if path.is_dir():
        return StoreError(f"cannot open {path}: it is a directory; give a file, e.g. {path / 'jobs.db'}")
    return StoreError(f"cannot open {path}: {why}; check the permissions of the file and of {folder}")


def os_fault(error: OSError, path: Path) -> StoreError:
    """Translate an OSError of the files beside the database."""
    what = f"{error.filename or path}: {error.strerror}"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return StoreReadOnly(f"{path} cannot be written, because the files beside it cannot ({what})")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(f"{path}: {_FULL_DISK}")
    if error.errno == errno.ENOENT:
        return cannot_open(path, what)
    return StoreUnavailable(f"{path}: {what}")
