"""Query plans of SQLite: all statements use an index without sorting, for any number of jobs."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.stores.sql.statements import SQL
from penstock.stores.sqlite import SqliteStore
from tests.cases import case

#: What may be walked: the running jobs, which are as many as there are slots; and listings, which stop at
#: their limit. `purge` walks its way from the oldest job.
MAY_WALK = {
    "counters.void": "penstock_job",  # once per boot
    "list.oldest": "penstock_job",
    "list.held": "penstock_running",
    "list.running": "penstock_running",
    "reclaim.run_out": "penstock_running",
    "reclaim.held_by": "penstock_running",
    "counters.with_running": "penstock_running",
    "queues.any_job": "",
}
#: What may sort: few rows, or those of an operator.
MAY_SORT = {
    "counters.with_running",  # the numbers of queues
    "reclaim.run_out",
    "reclaim.held_by",
    "fetch.parked",
    "list.these",
    "prune.silent",
    "batches.show",
    "steps.waiting_one",  # only steps of one job that wait for one signal and key
    "search.of_priority",  # only those that share a place, in a queue with a fair share
    "search.below_priority",
}


@pytest.fixture(scope="module")
def cx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path: Path = tmp_path_factory.mktemp("plans") / "jobs.db"
    store = SqliteStore(path)
    store.sync.queues()
    store.close()
    cx = sqlite3.connect(path, isolation_level=None)
    yield cx
    cx.close()


def plan(cx: sqlite3.Connection, sql: str) -> list[str]:
    numbers = [int(n) for n in re.findall(r"\?(\d+)", sql)]
    n = max(numbers) if numbers else sql.count("?")
    rows = cx.execute(f"EXPLAIN QUERY PLAN {sql}", [0] * n).fetchall()
    return [row[3] for row in rows]


def test_no_statement_walks_the_jobs_or_sorts(cx: sqlite3.Connection) -> None:
    for name in sorted(SQL):
        with case(name):
            steps = plan(cx, SQL[name])
        for step in steps:
            if re.match(r"SCAN (penstock_job|j\b)", step) and "VIRTUAL" not in step:
                assert MAY_WALK.get(name, "-") in step, (name, steps)
            assert "TEMP B-TREE" not in step or name in MAY_SORT, (name, steps)


def test_the_hot_verbs_use_their_indexes(cx: sqlite3.Connection) -> None:
    assert any("COVERING INDEX penstock_ready (queue=?)" in step for step in plan(cx, SQL["fetch.lease"]))
    assert any("PRIMARY KEY (rowid=?)" in step for step in plan(cx, SQL["settle.remove"]))
    assert any("PRIMARY KEY (rowid=?)" in step for step in plan(cx, SQL["settle.keep"]))
    assert any("penstock_due (queue=? AND due<?)" in step for step in plan(cx, SQL["promote.due"]))
    assert any("penstock_id (queue=? AND id=?)" in step for step in plan(cx, SQL["get.one"]))


def test_a_job_pays_only_for_the_indexes_of_its_state(cx: sqlite3.Connection) -> None:
    indexes = dict(
        cx.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = 'penstock_job'")
    )
    assert {name for name, sql in indexes.items() if " WHERE " not in sql} == {"penstock_id"}
