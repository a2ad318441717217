"""list_next: the jobs of a queue in one state, in the order in which they leave it."""

from __future__ import annotations

from penstock.core.job import TERMINAL, State
from penstock.stores.contract import Page, page_size
from penstock.stores.cursors import numbers_of
from penstock.stores.sqlite.columns import SqliteJobRow
from penstock.stores.sqlite.rows import Row
from penstock.stores.sqlite.sql import SQL
from penstock.stores.sqlite.states import CODE
from penstock.stores.sqlite.transaction_context import TransactionContext
from penstock.stores.sqlite.verbs.aside import show

__all__ = ["list_next"]

_OF_PRIORITY = SQL["list_next.of_priority"]
_BELOW_PRIORITY = SQL["list_next.below_priority"]
_DUE = SQL["list_next.due"]
_ENDED = SQL["list_next.ended"]

#: Before all instants, and above all priorities.
_FIRST, _ABOVE = -(2**62), 2**31
_WIDTH = len(SqliteJobRow._fields)
_SEQ, _RUN_AT, _ENDED_AT = (SqliteJobRow._fields.index(name) for name in ("seq", "due", "ended_at"))


def list_next(tx: TransactionContext, name: str, state: State, after: str | None, limit: int) -> Page:
    limit = page_size(state, limit)
    available = state is State.AVAILABLE
    cursor = None if after is None else numbers_of(after, 4 if available else 2)
    queue = tx.queue(name)
    if queue is None:
        return Page([], None)
    if available:
        rows = _available(tx, queue.qid, cursor, limit + 1)
    else:
        query = _ENDED if state in TERMINAL else _DUE
        rows = tx.execute(query, (queue.qid, CODE[state], *(cursor or (_FIRST, 0)), limit + 1)).fetchall()
    jobs = [show(tx, row[:_WIDTH]) for row in rows[:limit]]
    return Page(jobs, _cursor(state, rows[limit - 1]) if len(rows) > limit else None)


def _available(tx: TransactionContext, qid: int, cursor: tuple[int, ...] | None, limit: int) -> list[Row]:
    rows: list[Row] = []
    priority = _ABOVE
    if cursor is not None:
        priority = cursor[0]
        rows = tx.execute(_OF_PRIORITY, (qid, *cursor, limit)).fetchall()
    if len(rows) < limit:
        rows += tx.execute(_BELOW_PRIORITY, (qid, priority, limit - len(rows))).fetchall()
    return rows


def _cursor(state: State, row: Row) -> str:
    if state is State.AVAILABLE:
        priority, place = row[_WIDTH:]
        return f"{priority}:{place}:{row[_RUN_AT]}:{row[_SEQ]}"
    return f"{row[_ENDED_AT if state in TERMINAL else _RUN_AT]}:{row[_SEQ]}"
