"""Removes one run's namespace from a SQLite file, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from penstock.core.clock import SystemClock
from penstock.core.errors import ConfigError
from penstock.stores.sqlite.calls import Verb
from penstock.stores.sqlite.runner import Runner
from penstock.stores.sqlite.transaction_context import TransactionContext
from penstock.stores.sqlite.transactions import Transactions

__all__ = ["PREFIX", "is_used", "left_in_file", "refuse_others", "remove_file", "wipe_file"]

#: Prefix of the namespaces of runs; a namespace without it is never emptied.
PREFIX = "verify-"
_PATIENCE = 30_000
_JOBS = "SELECT seq FROM penstock_job WHERE queue IN (SELECT qid FROM penstock_queue WHERE namespace = ?)"
#: Tables whose rows belong to rows of other tables, and which of their rows are those of a namespace.
_OF_OTHERS = {
    "penstock_flow_node": "flow IN (SELECT fid FROM penstock_flow WHERE namespace = ?)",
    "penstock_flow_addition": "flow IN (SELECT fid FROM penstock_flow WHERE namespace = ?)",
    "penstock_step": f"job IN ({_JOBS})",
    "penstock_memory": f"job IN ({_JOBS})",
}


def refuse_others(namespace: str) -> None:
    """Raise ConfigError if this namespace does not belong to a run."""
    if not namespace.startswith(PREFIX):
        raise ConfigError(
            f"namespace={namespace!r} does not belong to a verify run: nothing is removed from it"
        )


def wipe_file(path: Path, namespace: str) -> int:
    """Remove all rows of this namespace in one transaction. Returns their number."""
    refuse_others(namespace)
    return _ask_file(path, _WIPE, namespace)


def left_in_file(path: Path, namespace: str) -> int:
    """The number of rows of this namespace."""
    return _ask_file(path, _COUNT, namespace)


def is_used(path: Path) -> bool:
    """Whether this file has rows of any namespace, or tables that do not belong to Penstock."""
    return _ask_file(path, _USED, "") > 0


def remove_file(path: Path) -> None:
    """Remove a store file with its -wal, -shm and -penstock companions."""
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)
    shutil.rmtree(path.with_name(f"{path.name}-penstock"), ignore_errors=True)


def _ask_file(path: Path, verb: Verb[[], int], namespace: str) -> int:
    runner = Runner(
        Transactions(
            path,
            namespace=namespace,
            clock=SystemClock(),
            full_sync=True,
            patience=_PATIENCE,
            on_open=lambda tx: None,
        )
    )
    try:
        return runner.do(verb)
    finally:
        runner.close(1.0)


def _wipe(tx: TransactionContext) -> int:
    """Delete the namespace's rows table by table, in the order in which they refer to each other."""
    gone = 0
    for table, where in _tables(tx):
        removed = tx.execute(f"DELETE FROM {table} WHERE {where}", (tx.namespace,))  # noqa: S608 (our own names)
        gone += removed.rowcount
    return gone


def _count(tx: TransactionContext) -> int:
    n = 0
    for table, where in _tables(tx):
        found = tx.execute(f"SELECT count(*) FROM {table} WHERE {where}", (tx.namespace,))  # noqa: S608 (our own names)
        n += found.fetchone()[0]
    return n


def _used(tx: TransactionContext) -> int:
    """Count user tables and rows; queues with a number of 0 or below belong to the file itself."""
    (n,) = tx.execute(
        "SELECT count(*) FROM sqlite_master WHERE type = 'table' "
        "AND name NOT LIKE 'penstock\\_%' ESCAPE '\\' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    ).fetchone()
    for table in ("penstock_queue WHERE qid > 0", "penstock_job", "penstock_worker", "penstock_signal"):
        n += tx.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608 (our own names)
    return int(n)


def _tables(tx: TransactionContext) -> Iterator[tuple[str, str]]:
    yield from _OF_OTHERS.items()
    names = tx.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'penstock\\_%' ESCAPE '\\' "
        "ORDER BY name = 'penstock_queue'"
    ).fetchall()
    for (table,) in names:
        columns = {row[1] for row in tx.execute(f"PRAGMA table_info({table})")}
        if table in _OF_OTHERS:
            continue
        if "namespace" in columns:
            yield table, "namespace = ?"
        elif "queue" in columns:
            yield table, "queue IN (SELECT qid FROM penstock_queue WHERE namespace = ?)"


_WIPE, _COUNT, _USED = Verb(_wipe), Verb(_count, reads=True), Verb(_used, reads=True)
