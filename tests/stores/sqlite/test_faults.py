"""Errors of a file: each gives a one-line error, and leaves no partial change."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.job import NewJob, State
from penstock.core.lifecycle import Transition
from penstock.errors import (
    ConfigError,
    PenstockError,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from penstock.stores.contract import EnqueueStatus, Settled, Settlement
from penstock.stores.sqlite import SqliteStore
from penstock.stores.sqlite.file import os_fault, translated
from tests.cases import case
from tests.stores.sqlite.conftest import OpenStore, checked, new, settlements, take

# ── the file ──


def one_line(error: BaseException, *words: str) -> None:
    text = str(error)
    assert "\n" not in text
    for word in words:
        assert word in text


async def test_a_missing_directory_is_named(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(tmp_path / "nowhere" / "jobs.db")
    with pytest.raises(StoreError) as caught:
        await store.enqueue([new()])
    one_line(caught.value, "there is no directory", "nowhere")
    with pytest.raises(StoreError):
        store.sync.enqueue([new()])
    (tmp_path / "nowhere").mkdir()
    await store.enqueue([new("now")])  # the same store object, once the cause is gone


def test_a_directory_is_no_file(open_store: OpenStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        open_store(tmp_path).sync.queues()
    one_line(caught.value, "is a directory", "jobs.db")


def test_a_file_that_is_no_database_is_left_alone(open_store: OpenStore, path: Path) -> None:
    path.write_text("Dear diary, " * 100)
    with pytest.raises(StoreCorrupt) as caught:
        open_store().sync.enqueue([new()])
    one_line(caught.value, str(path), "is not a SQLite database")
    assert path.read_text().startswith("Dear diary")


def test_a_damaged_file_is_named(open_store: OpenStore, path: Path) -> None:
    store = open_store()
    store.sync.enqueue([new(payload=b"x" * 500) for _ in range(500)])
    store.close()
    with path.open("r+b") as file:
        for page in range(1, path.stat().st_size // 4096):
            file.seek(page * 4096)
            file.write(b"\xff" * 4096)
    with pytest.raises(StoreCorrupt) as caught:
        open_store().sync.enqueue([new()])
    one_line(caught.value, str(path))


@pytest.mark.parametrize("text", ["", ":memory:", "a\0b"])
def test_what_is_no_path_is_refused_at_once(text: str) -> None:
    with pytest.raises(ConfigError, match="memory://"):
        SqliteStore(text)


def test_an_unknown_durability_is_refused_with_the_nearest_one(path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'normal'"):
        SqliteStore(path, durability="norml")


@pytest.fixture
def read_only(open_store: OpenStore, path: Path) -> Iterator[SqliteStore]:
    """A store whose file and folder this process may only read."""
    store = open_store()
    store.sync.enqueue([new("there")])
    store.close()
    if os.geteuid() == 0:  # permissions do not stop root, but an immutable file does
        if subprocess.run(["chattr", "+i", path], capture_output=True).returncode:
            pytest.skip("neither permissions nor chattr make a file read-only here")
        yield open_store()
        subprocess.run(["chattr", "-i", path], check=True)
    else:
        path.chmod(0o444)
        yield open_store()
        path.chmod(0o644)


async def test_a_read_only_file_can_be_read(read_only: SqliteStore) -> None:
    with pytest.raises(StoreReadOnly) as caught:
        await read_only.enqueue([new("not there")])
    one_line(caught.value, "can be read but not written")
    with pytest.raises(StoreReadOnly):
        read_only.sync.enqueue([new("not there")])
    found = await read_only.get([new("there").ref, new("not there").ref])
    assert [job is not None for job in found] == [True, False]


FULL_DISK = textwrap.dedent("""
    import asyncio, sys
    from penstock.errors import PenstockError, StoreFull, StoreUnavailable
    from penstock.core.job import NewJob
    from penstock.stores.sqlite import SqliteStore

    def some(name, n):
        return [NewJob(f"{name}-{i}", "t", b"x" * 2_000) for i in range(n)]

    async def main(path):
        store = SqliteStore(path)
        stored = []
        for i in range(1_000):
            jobs = some(f"batch-{i}", 20)
            try:
                await store.enqueue(jobs)
                stored += jobs
            except PenstockError as error:
                assert isinstance(error, (StoreFull, StoreUnavailable)), repr(error)
                assert "\\n" not in str(error)
                refused, why = jobs, type(error).__name__
                break
        else:
            sys.exit("the disk never became full")
        assert stored, "nothing fitted"
        assert None not in await store.get([job.ref for job in stored])
        assert set(await store.get([job.ref for job in refused])) == {None}
        (queue,) = await store.queues()
        assert sum(queue.counts.values()) == len(stored), (queue, len(stored))
        store.close()
        print("refused", why)

    asyncio.run(main(sys.argv[1]))
""")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "penstock-test", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.slow
def test_a_full_disk_refuses_and_keeps_what_it_has(small_disk: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(small_disk / "jobs.db")], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split()[-1] == "StoreFull"
    assert checked(small_disk / "jobs.db") == "ok"


@pytest.mark.slow
def test_a_limit_on_the_files_size_is_like_a_full_disk(path: Path) -> None:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))

    ran = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, preexec_fn=limit
    )
    assert ran.returncode == 0, ran.stderr
    assert checked(path) == "ok"


async def test_a_foreign_writer_is_waited_for_and_then_named(open_store: OpenStore, path: Path) -> None:
    store, impatient = open_store(), open_store(patience=200)
    await store.enqueue([new("a")])
    cx = sqlite3.connect(path, isolation_level=None)
    cx.execute("BEGIN IMMEDIATE")
    # SQLite says the first; the second is said where this process was not let run for so long
    named = r"jobs\.db is busy: another pro(gram holds its write lock|cess has held)"
    with pytest.raises(StoreBusy, match=named):
        await impatient.enqueue([new("b")])
    cx.execute("COMMIT")
    cx.close()
    await store.enqueue([new("c")])
    assert [job is not None for job in await store.get([new(id).ref for id in "abc"])] == [True, False, True]


async def test_a_deleted_file_swallows_no_jobs(
    open_store: OpenStore, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.stores.sqlite.transactions._LOOK_AT_FILE", 0.0)
    store = open_store()
    await store.enqueue([new("a")])
    for name in ("jobs.db", "jobs.db-wal", "jobs.db-shm"):
        path.with_name(name).unlink(missing_ok=True)
    await store.enqueue([new("b")])
    assert "was deleted or replaced while it was open" in caplog.text
    found = await open_store().get([new("a").ref, new("b").ref])
    assert [job is not None for job in found] == [False, True]


# ── errors of single questions ──


async def test_one_question_that_fails_leaves_the_others_of_its_transaction(store: SqliteStore) -> None:
    import asyncio

    await store.enqueue([new("a"), new("b")])
    (a, b) = await take(store, 2)
    nonsense = Settlement(b.lease, Transition(State.RUNNING))
    results = await asyncio.gather(
        store.enqueue([new("c")]),
        store.settle([nonsense]),
        store.settle(settlements([a])),
        store.enqueue([new("d", priority=2**70)]),
        store.enqueue([new("e")]),
        return_exceptions=True,
    )
    assert isinstance(results[1], ValueError)
    assert [answer.status for answer in results[3]] == [EnqueueStatus.FAILED]
    assert results[2] == [Settled.APPLIED]
    found = await store.get([new(id).ref for id in "abcde"])
    assert [job and job.state for job in found] == [
        None,
        State.RUNNING,
        State.AVAILABLE,
        None,
        State.AVAILABLE,
    ]
    (queue,) = await store.queues()
    assert queue.counts == {State.AVAILABLE: 2, State.RUNNING: 1}


# ── SQLite's exceptions ──

CODES = {
    name: getattr(sqlite3, name)
    for name in dir(sqlite3)
    if name.startswith("SQLITE_") and isinstance(getattr(sqlite3, name), int)
}
CLASSES = [
    value for value in vars(sqlite3).values() if isinstance(value, type) and issubclass(value, sqlite3.Error)
]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_exception_class_becomes_ours(kind: type[sqlite3.Error], path: Path) -> None:
    ours = translated(kind("what it said"), path)
    assert isinstance(ours, StoreError)
    one_line(ours, str(path), "what it said")


def test_every_error_code_becomes_ours(path: Path) -> None:
    for name in sorted(CODES):
        with case(name):
            _becomes_ours(name, path)


def _becomes_ours(name: str, path: Path) -> None:
    error = sqlite3.OperationalError("what it said")
    error.sqlite_errorcode = CODES[name]
    ours = translated(error, path)
    expected = {
        "FULL": StoreFull,
        "READONLY": StoreReadOnly,
        "NOTADB": StoreCorrupt,
        "CORRUPT": StoreCorrupt,
        "BUSY": StoreBusy,
        "LOCKED": StoreBusy,
        "IOERR": StoreUnavailable,
        "CANTOPEN": StoreError,
    }.get(name.split("_")[1], StoreError)
    assert isinstance(ours, expected)
    one_line(ours, str(path))


@pytest.mark.parametrize(
    ("number", "expected"),
    [("EROFS", StoreReadOnly), ("EACCES", StoreReadOnly), ("ENOSPC", StoreFull), ("EIO", StoreUnavailable)],
)
def test_the_files_beside_it_fail_in_our_words_too(
    number: str, expected: type[PenstockError], path: Path
) -> None:
    import errno

    error = OSError(getattr(errno, number), "why", str(path) + "-penstock/main")
    ours = os_fault(error, path)
    assert isinstance(ours, expected)
    one_line(ours, str(path))


def test_a_job_with_any_bytes_is_stored_unchanged(store: SqliteStore) -> None:
    payload = bytes(range(256)) * 4
    store.sync.enqueue([NewJob("a", "t", payload, headers={"ключ": "𝄞\0"})])
    (job,) = store.sync.get([new("a").ref])
    assert job
    assert job.spec.payload == payload
    assert job.spec.headers == {"ключ": "𝄞\0"}
