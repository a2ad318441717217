"""New SQLite files with all tables, copied from one: to run all migrations takes ten times as long.

The tests in `tests/stores/sqlite/` and the system tests let Penstock make their files.
"""

from __future__ import annotations

import contextlib
import tempfile
from functools import cache
from pathlib import Path

from penstock.core.clock import Clock, ManualClock, SystemClock
from penstock.stores.sqlite import SqliteStore

__all__ = ["new_file", "new_url"]


def new_file(path: Path, clock: Clock) -> Path:
    """Make the file of a store, as its first use on this clock would, unless it exists."""
    if not path.exists():
        path.touch(0o600)
        path.write_bytes(_content(clock.boot_id()))
    return path


def new_url(folder: Path) -> str:
    """The URL of a new file in this folder. Without the syncs of each commit, as a test loses no power."""
    return f"sqlite:///{new_file(folder / 'jobs.db', SystemClock())}?durability=normal"


@cache
def _content(boot: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.db"
        with contextlib.closing(SqliteStore(path, clock=ManualClock(boot=boot))) as store:
            store.sync.queues()
        assert [one.name for one in path.parent.glob("*.db-*") if one.is_file()] == [], "its log is left"
        return path.read_bytes()
