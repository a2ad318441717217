"""The limit of SQLite: the bare statements in batches, on the store's own tables and with the same bytes.

Decisions, checks, decoding, counts and fairness are left out. So a store cannot be faster than this, and the
difference is the cost of its work.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.stores.sql.statements import AVAILABLE, RUNNING
from penstock.stores.statements import migrations

__all__ = ["RawTable", "stored_rows"]

_BATCH = 1_000
_TOKEN, _WORKER = "0123456789abcdefghij", "ABCDEFGHIJ0123456789"


class Rows:
    """Jobs as the store writes them: the columns and their values."""

    def __init__(self, columns: Sequence[str], values: list[tuple[Any, ...]]) -> None:
        self.columns = tuple(columns)
        self.values = values

    def __len__(self) -> int:
        return len(self.values)


def stored_rows(file: Path) -> Rows:
    """All jobs of this file, without the columns that have their default in all of them."""
    with _connected(file) as cx:
        info = cx.execute("PRAGMA table_info(penstock_job)").fetchall()
        defaults = {name: None if default is None else int(default) for _, name, _, _, default, _ in info}
        names = list(defaults)
        values = cx.execute("SELECT * FROM penstock_job ORDER BY seq").fetchall()
    cx.close()
    used = [
        i for i, name in enumerate(names) if any(row[i] != defaults[name] for row in values) or name == "seq"
    ]
    return Rows([names[i] for i in used], [tuple(row[i] for i in used) for row in values])


class RawTable:
    """A file with the store's tables, empty at first."""

    def __init__(self, file: Path, durability: str) -> None:
        self._cx = _connected(file)
        self._cx.execute("PRAGMA journal_mode = WAL")
        self._cx.execute(f"PRAGMA synchronous = {'FULL' if durability == 'full' else 'NORMAL'}")
        for migration in migrations("penstock.stores.sql"):
            for statement in migration.statements:
                self._cx.execute(statement)

    def insert(self, rows: Rows, *, batch: int, seconds: float = float("inf")) -> float:
        """Insert rows in batches until the time limit. Returns jobs per second."""
        cx, names = self._cx, ", ".join(rows.columns)
        marks = ", ".join("?" * len(rows.columns))
        statement = f"INSERT INTO penstock_job ({names}) VALUES ({marks})"
        started, done = time.perf_counter(), 0
        while done < len(rows) and time.perf_counter() - started < seconds:
            part = rows.values[done : done + batch]
            cx.execute("BEGIN IMMEDIATE")
            cx.executemany(statement, part)
            cx.execute("COMMIT")
            done += len(part)
        return done / (time.perf_counter() - started)

    def drain(self) -> float:
        """Lease a batch and delete the one before it, both in one transaction, until the table is empty;
        jobs per second."""
        cx = self._cx
        (queue,) = cx.execute("SELECT min(queue) FROM penstock_job").fetchone()
        now = time.time_ns() // 1_000_000
        lease = (RUNNING, now, _TOKEN, _WORKER, now + 15_000, queue, AVAILABLE, _BATCH)
        done, before = 0, "[]"
        started = time.perf_counter()
        while True:
            cx.execute("BEGIN IMMEDIATE")
            done += cx.execute(_DELETE, (before, _TOKEN)).rowcount
            leased = cx.execute(_LEASE, lease).fetchall()
            cx.execute("COMMIT")
            if not leased and before == "[]":
                return done / (time.perf_counter() - started)
            before = "[" + ",".join(str(seq) for seq, _ in leased) + "]"

    def close(self) -> None:
        self._cx.close()


_LEASE = """
UPDATE penstock_job
SET state = ?, attempt = attempt + 1, fetched_at = ?, token = ?, worker = ?, lease_until = ?
WHERE seq IN (
    SELECT seq FROM penstock_job WHERE queue = ? AND state = ? ORDER BY priority DESC, place LIMIT ?
)
RETURNING seq, spec
"""
#: One statement for a whole batch: a statement per job takes a fifth more CPU time.
_DELETE = "DELETE FROM penstock_job WHERE seq IN (SELECT value FROM json_each(?)) AND token = ?"


def _connected(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(file, isolation_level=None)
