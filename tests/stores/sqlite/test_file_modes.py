"""File permissions of a SQLite store: private to its user by default, independent of the umask."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.stores.connect import check_url, connect
from penstock.stores.contract import Level
from penstock.stores.sqlite import SqliteStore
from tests.stores.sqlite.conftest import new

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="modes are POSIX's")

NOBODY = 65_534


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(path: Path) -> dict[str, int]:
    """The modes of the database and all that lies beside it."""
    folder = path.with_name(path.name + "-penstock")
    found = [*path.parent.glob(path.name + "*"), *folder.iterdir()]
    return {one.name: stat.S_IMODE(one.stat().st_mode) for one in found}


def used(path: Path, **options: str) -> SqliteStore:
    store = SqliteStore(path, **options)
    store.sync.enqueue([new()])
    return store


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_new_store_is_open_to_its_user_alone(path: Path, mask: int) -> None:
    with umask(mask):
        store = used(path)
    found = modes(path)
    assert found.pop("jobs.db-penstock") == 0o700
    assert {"jobs.db", "jobs.db-wal", "jobs.db-shm", "main", "next", "work", "ended"} <= set(found)
    assert set(found.values()) == {0o600}, found
    store.close()


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_store_for_a_group_is_open_to_it_with_all_its_files(path: Path, mask: int) -> None:
    with umask(mask):
        store = connect(f"sqlite:///{path}?mode=0660")
        store.sync.enqueue([new()])
    found = modes(path)
    assert found.pop("jobs.db-penstock") == 0o770
    assert set(found.values()) == {0o660}, found
    store.close()


def test_a_file_that_is_there_keeps_its_mode_and_the_others_take_it(path: Path) -> None:
    path.touch()
    path.chmod(0o640)
    used(path).close()
    assert modes(path)["jobs.db"] == 0o640
    path.chmod(0o660)
    store = used(path)
    found = modes(path)
    assert found.pop("jobs.db-penstock") == 0o770
    assert set(found.values()) == {0o660}, "locks of before, too"
    store.close()


def test_a_user_with_read_permission_cannot_lock(path: Path) -> None:
    store = used(path, mode="0644")
    found = modes(path)
    assert (found["jobs.db"], found["work"], found["main"], found["next"]) == (0o644, 0o644, 0o600, 0o600)
    store.close()


def as_another_user(act: Callable[[], object]) -> str:
    """What another user, without our groups, says who does this: "done", or the error's name."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "done"
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            act()
        except BaseException as error:
            said = type(error).__name__
        os.write(theirs, said.encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        return pipe.read()


@pytest.fixture
def public(tmp_path: Path) -> Iterator[Path]:
    """A directory that others may enter."""
    if os.geteuid() != 0:
        pytest.skip("only root may become somebody else")
    before = []
    for one in (tmp_path, *tmp_path.parents[:3]):
        if one.owner() == "root" and one != Path("/tmp"):
            before.append((one, stat.S_IMODE(one.stat().st_mode)))
            one.chmod(0o755)
    yield tmp_path
    for one, mode in before:
        one.chmod(mode)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_another_user_reads_no_payload_and_holds_no_lock(public: Path) -> None:
    path = public / "jobs.db"
    with umask(0o022):
        store = used(path)
        lock = path.with_name("jobs.db-penstock") / "main"
        assert as_another_user(path.read_bytes) == "PermissionError"
        assert (
            as_another_user(lambda: fcntl.flock(os.open(lock, os.O_RDONLY), fcntl.LOCK_EX))
            == "PermissionError"
        )
    store.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_two_users_of_a_group_share_a_store(public: Path) -> None:
    """root makes it for a group; who has only that group enqueues too, also into files that he made."""
    path = public / "shared" / "jobs.db"
    path.parent.mkdir()
    os.chown(path.parent, 0, NOBODY)
    path.parent.chmod(0o2770)
    with umask(0o022):
        store = used(path, mode="0660")
        assert as_another_user(lambda: used(path).close()) == "done"
        store.sync.enqueue([new()])
        store.close()
        assert as_another_user(lambda: used(path).close()) == "done", "who opens it first makes the log"
        assert as_another_user(lambda: used(path.with_name("theirs.db"), mode="0660").close()) == "done"
        used(path.with_name("theirs.db")).close()


@pytest.mark.parametrize("mode", ["0777", "600", "0066", "rw", "", "0660 "])
def test_a_mode_that_is_none_is_a_clear_error(path: Path, mode: str) -> None:
    with pytest.raises(ConfigError, match="mode="):
        check_url(f"sqlite:///{path}?mode={mode}")
    with pytest.raises(ConfigError, match=r"mode=.* write '0600'"):
        SqliteStore(path, mode=mode)


def permissions(store: SqliteStore) -> tuple[Level, str]:
    (found,) = [found for found in asyncio.run(store.checkup()) if found.what == "permissions"]
    return found.level, found.why


def test_the_checkup_says_what_is_open_to_others(path: Path) -> None:
    store = used(path)
    assert permissions(store)[0] is Level.FINE
    path.chmod(0o644)
    assert permissions(store) == (
        Level.WARNING,
        "its group may read jobs.db; every user of this machine may read jobs.db",
    )
    store.close()


def test_what_was_asked_for_is_no_finding(path: Path) -> None:
    store = used(path, mode="0660")
    assert permissions(store)[0] is Level.FINE
    store.close()
