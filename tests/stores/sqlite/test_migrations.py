"""Creation and migration of a store file, and files that are refused."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
from multiprocessing.context import SpawnContext
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.core.unique import UniqueKey
from penstock.errors import StoreCorrupt, StoreTooNew
from penstock.stores import statements
from penstock.stores.contract import EnqueueStatus
from penstock.stores.sql.rows import spec_blob
from penstock.stores.sql.statements import SQL
from penstock.stores.sqlite import SqliteStore
from penstock.stores.sqlite.file import MIGRATIONS
from penstock.stores.statements import Migration, Statements, missing
from tests.stores.sqlite.conftest import OpenStore, new


def test_a_new_file_has_the_latest_version(store: SqliteStore, path: Path) -> None:
    store.sync.enqueue([new()])
    store.close()
    cx = sqlite3.connect(path)
    assert cx.execute("SELECT value FROM penstock_meta WHERE key = 'schema'").fetchone() == (
        str(len(MIGRATIONS)),
    )
    assert cx.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    cx.close()


def test_opening_again_changes_nothing(open_store: OpenStore, path: Path) -> None:
    first = open_store()
    first.sync.enqueue([new("a")])
    first.close()
    before = path.read_bytes()
    second = open_store()
    assert second.sync.get([new("a").ref])[0] is not None
    second.close()
    assert path.read_bytes() == before


def test_a_later_version_is_refused_with_both_versions_and_a_way_out(
    open_store: OpenStore, path: Path
) -> None:
    store = open_store()
    store.sync.enqueue([new()])
    store.close()
    cx = sqlite3.connect(path)
    cx.execute("UPDATE penstock_meta SET value = '99' WHERE key = 'schema'")
    cx.commit()
    cx.close()
    with pytest.raises(StoreTooNew) as caught:
        open_store().sync.enqueue([new()])
    line = str(caught.value)
    assert "\n" not in line
    assert re.search(rf"jobs\.db has the store version 99.* up to {len(MIGRATIONS)}: upgrade", line)


def test_a_file_of_the_first_version_gets_what_is_missing_and_keeps_its_jobs(
    open_store: OpenStore, path: Path
) -> None:
    cx = sqlite3.connect(path)
    for statement in MIGRATIONS[0].statements:
        cx.execute(statement)
    cx.execute("INSERT INTO penstock_meta (key, value) VALUES ('schema', '1')")
    cx.execute(
        "INSERT INTO penstock_queue (namespace, name, available, enqueued) VALUES ('', 'default', 4, 4)"
    )
    cx.execute("UPDATE penstock_queue SET enqueued = 4 WHERE qid = 0")
    now = SystemClock().now()
    for seq, (id, until) in enumerate([("a", None), ("b", now + 10**7), ("c", now - 1), ("d", None)], 1):
        spec = new(id, unique=UniqueKey(f"k-{id}"))
        key = None if id == "d" else f"k-{id}"
        cx.execute(
            "INSERT INTO penstock_job (seq, queue, id, state, priority, place, due, task, enqueued_at, spec,"
            " ukey, ukey_until) VALUES (?, 1, ?, 3, 0, ?, ?, 't', ?, ?, ?, ?)",
            (seq, id, seq, now, now, spec_blob(spec), key, until),
        )
    cx.commit()
    cx.close()
    again = open_store()
    assert again.sync.get([new("a").ref])[0] is not None
    assert asyncio.run(again.entries()).entries == []
    answers = again.sync.enqueue([new(unique=UniqueKey(f"k-{id}")) for id in "abcd"])
    assert [answer.id if answer.status is EnqueueStatus.DUPLICATE else None for answer in answers] == [
        "a",
        "b",
        None,
        None,
    ]
    again.sync.cancel([new("a").ref])
    assert again.sync.enqueue([new(unique=UniqueKey("k-a"))])[0].status is EnqueueStatus.NEW


def test_the_users_own_tables_may_live_in_the_same_file(open_store: OpenStore, path: Path) -> None:
    cx = sqlite3.connect(path)
    cx.execute("PRAGMA user_version = 7")
    cx.execute("PRAGMA application_id = 4711")
    cx.execute("CREATE TABLE job (id)")
    cx.execute("INSERT INTO job VALUES ('mine')")
    cx.commit()
    store = open_store()  # while the application holds it open, in this process
    store.sync.enqueue([new("a")])
    cx.execute("INSERT INTO job VALUES ('mine too')")
    cx.commit()
    store.sync.enqueue([new("b")])
    assert cx.execute("SELECT count(*) FROM job").fetchone() == (2,)
    assert cx.execute("PRAGMA user_version").fetchone() == (7,)
    assert cx.execute("PRAGMA application_id").fetchone() == (4711,)
    cx.close()
    store.sync.enqueue([new("c")])  # its lock on the file did not go with the other connection's
    assert all(store.sync.get([new(id).ref for id in "abc"]))


def test_tables_of_ours_without_a_version_are_no_store(open_store: OpenStore, path: Path) -> None:
    cx = sqlite3.connect(path)
    cx.execute("CREATE TABLE penstock_job (bare)")
    cx.close()
    with pytest.raises(StoreCorrupt, match="already exists"):
        open_store().sync.enqueue([new()])


def enqueue_one(path: str, id: str) -> None:
    store = SqliteStore(path)
    store.sync.enqueue([new(id)])
    store.close()


@pytest.mark.slow
def test_several_processes_may_make_the_file_at_once(path: Path, spawn: SpawnContext) -> None:
    processes = [spawn.Process(target=enqueue_one, args=(str(path), f"p{i}")) for i in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    store = SqliteStore(path)
    assert all(store.sync.get([new(f"p{i}").ref for i in range(4)]))
    store.close()


def test_several_threads_may_make_the_file_at_once(path: Path) -> None:
    failed: list[BaseException] = []

    def make(i: int) -> None:
        try:
            enqueue_one(str(path), f"t{i}")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=make, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


# ── the numbers ──


STEPS = [Migration(n, f"step_{n}", ()) for n in (1, 2, 3)]


def test_what_is_missing_is_what_comes_after_the_version() -> None:
    assert missing(STEPS, 0, "x") == STEPS
    assert missing(STEPS, 2, "x") == STEPS[2:]
    assert missing(STEPS, 3, "x") == []
    with pytest.raises(StoreTooNew, match="x has the store version 4"):
        missing(STEPS, 4, "x")
    with pytest.raises(StoreCorrupt):
        missing(STEPS, -1, "x")


def test_migrations_are_numbered_without_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "numbered_tables" / "migrations"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    (folder / "0001_first.sql").write_text(
        "-- about\nCREATE TABLE a (\n  b -- what\n);\n\nCREATE TABLE c (d);\n"
    )
    (first,) = statements.migrations("numbered_tables")
    assert first == Migration(1, "first", ("CREATE TABLE a (\n  b -- what\n)", "CREATE TABLE c (d)"))
    (folder / "0003_third.sql").write_text("SELECT 1;\n")
    with pytest.raises(ValueError, match="without gaps"):
        statements.migrations("numbered_tables")


# ── the statements beside a store ──


def test_statements_are_found_by_file_and_name() -> None:
    sql = Statements("penstock.stores.sql", "sqlite")
    assert sql["settle.remove"].startswith("DELETE FROM penstock_job")
    assert "--" not in sql["fetch.lease"]
    with pytest.raises(KeyError, match=r"no statement 'nothing' in fetch\.sql"):
        sql["fetch.nothing"]


def test_statements_say_states_by_name() -> None:
    folder = Path(statements.__file__).parent / "sql" / "sqlite"
    files = list(folder.glob("*.sql"))
    assert files
    for file in files:
        assert not re.search(r"\bstate *(=|<|>|<>|<=|>=) *[0-9]", file.read_text()), file
    assert "state = 4" in SQL["fetch.is_under"]
    assert "{" not in "".join(SQL[name] for name in SQL)


def test_a_statement_that_names_what_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match=r"aside: unknown constant \{dead\}"):
        Statements("penstock.stores.sql", "sqlite", words={})["aside.end"]


def test_every_file_of_statements_says_what_it_is_for() -> None:
    folder = Path(statements.__file__).parent / "sql" / "sqlite"
    files = list(folder.glob("*.sql"))
    assert files
    for file in files:
        assert file.read_text().startswith("-- "), file
