"""The store in one SQLite file: durable, for several processes of one host, with nothing to install.

`SqliteStore` is for event loops, `SqliteStore.sync` for threads. The engine (`stores/sql/`) has the requests,
and a `Runner` the connection and the transactions. This module has the file, the checkup, and closing.
"""

from __future__ import annotations

import os
import sqlite3
import weakref
from pathlib import Path

from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import ConfigError, did_you_mean
from penstock.core.formats import size_text
from penstock.stores.contract import Checkup, Finding, Level
from penstock.stores.sql.store import SeenCounts, SqlStore
from penstock.stores.sql.transactions import Verb
from penstock.stores.sql.verbs import operating
from penstock.stores.sqlite.fair_write_lock import vulnerable
from penstock.stores.sqlite.modes import open_to_others, read_mode
from penstock.stores.sqlite.runner import Runner
from penstock.stores.sqlite.transactions import FileTransactions

_UNREADABLE_SETTINGS = Verb(operating.unreadable_settings, reads=True)

_DURABILITIES = ("full", "normal")


class SqliteStore(SqlStore):
    """A store in a SQLite file. A missing file is created; a missing directory is an error.

    - `durability="full"`: an acknowledged job survives a power cut. `"normal"`: an acknowledged job survives
      the crash of any process, but a power cut can lose the last commits.
    - `patience`: how long (ms) to wait for other writers before StoreBusy.
    - `mode`: the mode of a new file, e.g. 0600 (private) or 0660 (its group, too). An existing file keeps its
      mode.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        namespace: str = "",
        durability: str = "full",
        clock: Clock | None = None,
        patience: int = 30_000,
        mode: str = "0600",
    ) -> None:
        if durability not in _DURABILITIES:
            hint = did_you_mean(durability, _DURABILITIES)
            raise ConfigError(f"durability={durability!r} is neither 'full' nor 'normal'{hint}")
        text = os.fspath(path)
        if text in ("", ":memory:") or "\0" in text:
            raise ConfigError(f"{text!r} is not the path of a file; for jobs in memory use memory://")
        self._clock = clock or SystemClock()
        self._mode, self._full_sync = read_mode(mode), durability == "full"
        # the real path, so that all processes use the same fair write lock, which is beside the file
        self._path = Path(os.path.realpath(text))
        seen_counts = SeenCounts()
        runner = Runner(
            FileTransactions(
                self._path,
                namespace=namespace,
                clock=self._clock,
                full_sync=self._full_sync,
                patience=patience,
                mode=self._mode,
                on_open=seen_counts.begin,
            )
        )
        self._set_up(namespace, runner, seen_counts)
        self._closer = weakref.finalize(self, runner.close, 1.0)
        self._own_runner: Runner | None = runner

    def _view(self, namespace: str) -> SqliteStore:
        view = SqliteStore.__new__(SqliteStore)
        view._clock, view._mode, view._path = self._clock, self._mode, self._path
        view._full_sync = self._full_sync
        view._own_runner = None
        assert self._own_runner is not None  # a view makes no views
        view._set_up(namespace, self._own_runner, SeenCounts())
        return view

    @property
    def url(self) -> str:
        return f"sqlite:///{self._path}"

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._path

    def close(self) -> None:
        """Close the file; a later verb opens it again. Closing a view of a namespace does nothing."""
        if self._own_runner is not None:
            self._own_runner.close()

    # ── checkup ──

    async def _checkup(self, request: Checkup) -> list[Finding]:
        settings: list[Finding] = []
        if self._path.exists():
            settings = await self._runner.run(self.namespace, _UNREADABLE_SETTINGS)
        return [_library(), self._privacy(), *self._file(), *settings]

    def _file(self) -> list[Finding]:
        """The size of the file, and when its commits reach the disk."""
        syncs = "each commit is synced to the disk" if self._full_sync else "commits are synced now and then"
        kept = f"{syncs} (durability={'full' if self._full_sync else 'normal'})"
        found = [Finding(Level.FINE, "syncs", kept)]
        if size := _size_of(f"{self._path}"):
            log = _size_of(f"{self._path}-wal")
            found.append(
                Finding(Level.FINE, "size", f"{size_text(size)}, and {size_text(log)} in the write-ahead log")
            )
        return found

    def _privacy(self) -> Finding:
        """Check whether other users can read the jobs or lock the file."""
        if not self._path.exists():
            return Finding(Level.FINE, "permissions", f"a new file will have the mode {self._mode:04o}")
        folder = self._path.with_name(self._path.name + "-penstock")
        found = list(open_to_others(self._path, folder, self._mode))
        if not found:
            return Finding(
                Level.FINE, "permissions", f"the files are not accessible beyond mode={self._mode:04o}"
            )
        return Finding(
            Level.WARNING,
            "permissions",
            "; ".join(found),
            f"chmod {self._mode:o} {self._path}* (and 700 for the folder), or give mode= in the URL",
        )


def _size_of(path: str) -> int:
    """The bytes of a file; 0 if there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _library() -> Finding:
    version = sqlite3.sqlite_version
    if not vulnerable(sqlite3.sqlite_version_info):
        return Finding(Level.FINE, "SQLite", version)
    return Finding(
        Level.FINE,  # nothing has to be done: the fair write lock prevents it, and opening a file logs it
        "SQLite",
        f"{version}; it can lose committed writes when a checkpoint races a commit. Penstock prevents this "
        "among its own processes. Other programs should not write to the same file",
        "fixed in 3.51.3, 3.50.7 and 3.44.6",
    )
