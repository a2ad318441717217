"""Open a SQLite file as a store: connection settings, tables, the folder beside the file; and its errors."""

from __future__ import annotations

import contextlib
import errno
import logging
import sqlite3
from pathlib import Path

from penstock.core.clock import Clock
from penstock.core.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from penstock.stores.sql.statements import SQL
from penstock.stores.sql.transactions import check_library
from penstock.stores.sqlite.fair_write_lock import vulnerable
from penstock.stores.sqlite.modes import create, fit
from penstock.stores.statements import Migration, migrations, missing

_log = logging.getLogger("penstock.stores")

MIGRATIONS = migrations("penstock.stores.sql")

_CACHE_KIB = 4_096
#: A write-ahead log larger than this (bytes) is truncated when it is reset.
_LOG_LIMIT = 16 * 2**20
_HAS_TABLES = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'penstock_meta'"
_warned = False
#: The class of connections; a chaos run replaces it by one that records syncs.
connection_class: type[sqlite3.Connection] = sqlite3.Connection


def open_file(path: Path, patience: int, mode: int) -> sqlite3.Connection:
    """Open a connection with our settings; raises sqlite3.Error or StoreError.

    A missing file is created with this mode. A missing directory is an error.
    """
    _check_library()
    if not path.parent.is_dir() or path.is_dir():
        raise cannot_open(path, "")
    with contextlib.suppress(OSError):  # the error of sqlite3.connect gives the reason
        create(path, mode)
    cx = sqlite3.connect(
        path,
        timeout=patience / 1000,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
        factory=connection_class,
    )
    try:
        cx.execute("PRAGMA schema_version").fetchone()  # reads the header: fails if it is not a database
        # Half of SQLite's default, for new files: a single enqueue writes six pages (74 µs → 54 µs). Batches
        # are as fast as with the default; with 1024 they are slower.
        cx.execute("PRAGMA page_size = 2048")
        cx.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        cx.execute("PRAGMA temp_store = MEMORY")  # a sort must not need space on a full disk
        cx.execute("PRAGMA secure_delete = OFF")  # some builds overwrite deleted data: a second write
        cx.execute("PRAGMA wal_autocheckpoint = 0")  # our checkpoints run inside the fair write lock
        cx.execute(f"PRAGMA journal_size_limit = {_LOG_LIMIT}")
    except BaseException:  # boundary: a connection that is not returned is closed, after any error
        cx.close()
        raise
    return cx


def version_of(cx: sqlite3.Connection) -> int:
    """Return the number of the last migration of this file; 0 if it has none of our tables."""
    if cx.execute(_HAS_TABLES).fetchone() is None:
        return 0
    row = cx.execute("SELECT value FROM penstock_meta WHERE key = 'schema'").fetchone()
    return 0 if row is None else int(row[0])


def is_ready(cx: sqlite3.Connection, path: Path) -> bool:
    """Return True if the file needs no `prepare`; raises StoreTooNew for a later version."""
    if missing(MIGRATIONS, version_of(cx), str(path)):
        return False
    return bool(cx.execute("PRAGMA journal_mode").fetchone()[0] == "wal")


def prepare(cx: sqlite3.Connection, path: Path, clock: Clock) -> None:
    """Set up the write-ahead log and the tables of this version. Call it only inside the fair write lock."""
    (mode,) = cx.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreError(
            f"{path} cannot have a write-ahead log (its journal mode is {mode!r}): "
            "put it on a local disk, not on a network share"
        )
    cx.execute("PRAGMA synchronous = FULL")
    cx.execute("BEGIN IMMEDIATE")
    try:
        for step in missing(MIGRATIONS, version_of(cx), str(path)):
            _apply(cx, step)
        if cx.execute(SQL["counters.boot"]).fetchone() is None:
            cx.execute(SQL["counters.new_boot"], (clock.boot_id(),))
        cx.execute("COMMIT")
    except BaseException:  # boundary: after any error nothing may stay half done
        if cx.in_transaction:
            cx.execute("ROLLBACK")
        raise


def _apply(cx: sqlite3.Connection, step: Migration) -> None:
    try:
        for statement in step.statements:
            cx.execute(statement)
    except sqlite3.OperationalError as error:
        if "already exists" in str(error):
            raise StoreCorrupt(f"the file has tables of Penstock but not their version: {error}") from error
        raise
    cx.execute("INSERT OR REPLACE INTO penstock_meta (key, value) VALUES ('schema', ?)", (str(step.number),))


def sidecar(path: Path) -> Path:
    """Create the folder beside the file, for the write lock and the notification files; raises OSError.

    Users who may write the database file must also be able to write in this folder.
    """
    folder = path.with_name(path.name + "-penstock")
    if not folder.is_dir():
        folder.mkdir(0o700, exist_ok=True)
    with contextlib.suppress(OSError):  # owned by another user, or just made by another process
        fit(folder, path)
    return folder


def _check_library() -> None:
    global _warned
    check_library("sqlite://")
    if not _warned and vulnerable(sqlite3.sqlite_version_info):
        _warned = True
        _log.info(
            "SQLite %s can lose a commit that races a checkpoint. Penstock's fair write lock prevents this "
            "among Penstock's processes. Other programs should not write to this file (fixed in 3.51.3)",
            sqlite3.sqlite_version,
        )


# ── errors ───────────────────────────────────────────────────────────────────────────────────────

# No exception of sqlite3 or the system leaves the store: all are translated.


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
