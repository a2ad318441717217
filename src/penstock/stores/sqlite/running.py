"""Run one verb inside a transaction, and set aside the jobs that it cannot read."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

from penstock.stores.sqlite.calls import PendingCall
from penstock.stores.sqlite.rows import UnreadableRow
from penstock.stores.sqlite.transaction_context import TransactionContext
from penstock.stores.sqlite.verbs.aside import put_aside
from penstock.stores.sqlite.verbs.flow_ends import count_ends

__all__ = ["causes_of", "run_probe", "run_verb", "run_without"]


def run_verb(call: PendingCall, tx: TransactionContext) -> None:
    tx.begin(call.namespace)
    call.answer = call.verb.act(tx, *call.args)
    if tx.flow_ends:
        count_ends(tx)
    tx.flush()


def run_without(call: PendingCall, tx: TransactionContext, causes: dict[int, str]) -> None:
    """Set aside the jobs that a verb could not read and run the verb again, until it can read all."""
    tx.begin(call.namespace)
    unreported = len(tx.found)
    tx.execute("SAVEPOINT whole")
    with _any_text(tx.cx):
        while True:
            try:
                tx.begin(call.namespace)
                put_aside(tx, causes)
                count_ends(tx)
                tx.flush()
                run_verb(call, tx)
                break
            except UnreadableRow as more:
                if more.causes.keys() <= causes.keys():
                    raise
                causes |= more.causes
                del tx.found[unreported:]
                tx.execute("ROLLBACK TO whole")
    tx.execute("RELEASE whole")


def run_probe(call: PendingCall, tx: TransactionContext, probe: Callable[..., Any]) -> Any:
    try:
        return probe(tx, *call.args)
    except sqlite3.OperationalError as error:
        causes_of(error)
        with _any_text(tx.cx):
            return probe(tx, *call.args)


def causes_of(error: UnreadableRow | sqlite3.OperationalError) -> dict[int, str]:
    """Return the unreadable jobs to set aside: none for text that is not UTF-8. Re-raises other errors."""
    if isinstance(error, UnreadableRow):
        return dict(error.causes)
    if "UTF-8" in str(error):
        return {}
    raise error


@contextlib.contextmanager
def _any_text(cx: sqlite3.Connection) -> Iterator[None]:
    """Allow text that is not UTF-8. Not the default, because it costs a Python call per text."""
    cx.text_factory = lambda text: text.decode(errors="replace")
    try:
        yield
    finally:
        cx.text_factory = str
