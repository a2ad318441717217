"""Takes everything of one namespace out of a file, and nothing else."""

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

#: What the names of a run's namespaces begin with; no other one is ever emptied.
PREFIX = "verify-"
_PATIENCE = 30_000


def refuse_others(namespace: str) -> None:
    """Raise ConfigError for a namespace that is not of a run."""
    if not namespace.startswith(PREFIX):
        raise ConfigError(f"namespace={namespace!r} is not one of verify's own: nothing is removed there")


def wipe_file(path: Path, namespace: str) -> int:
    """Remove all rows of this namespace, in one transaction; how many there were."""
    refuse_others(namespace)
    return _ask_file(path, _WIPE, namespace)


def left_in_file(path: Path, namespace: str) -> int:
    """How many rows of this namespace there are."""
    return _ask_file(path, _COUNT, namespace)


def is_used(path: Path) -> bool:
    """Whether there is something in this file: of any namespace, or a table that is no store's."""
    return _ask_file(path, _USED, "") > 0


def remove_file(path: Path) -> None:
    """A store that was not there before the run, with all that lies beside it."""
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
    """A table has the queue of each row, or the namespace; that of the queues goes last."""
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
    """A queue with the number 0 or below is the file's own."""
    (n,) = tx.execute(
        "SELECT count(*) FROM sqlite_master WHERE type = 'table' "
        "AND name NOT LIKE 'penstock\\_%' ESCAPE '\\' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    ).fetchone()
    for table in ("penstock_queue WHERE qid > 0", "penstock_job", "penstock_worker", "penstock_signal"):
        n += tx.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608 (our own names)
    return int(n)


def _tables(tx: TransactionContext) -> Iterator[tuple[str, str]]:
    names = tx.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'penstock\\_%' ESCAPE '\\' "
        "ORDER BY name = 'penstock_queue'"
    ).fetchall()
    for (table,) in names:
        columns = {row[1] for row in tx.execute(f"PRAGMA table_info({table})")}
        if "namespace" in columns:
            yield table, "namespace = ?"
        elif "queue" in columns:
            yield table, "queue IN (SELECT qid FROM penstock_queue WHERE namespace = ?)"


_WIPE, _COUNT, _USED = Verb(_wipe), Verb(_count, reads=True), Verb(_used, reads=True)
