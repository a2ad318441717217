"""A URL becomes a store, or gives a one-line error."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import NewJob
from penstock.errors import ConfigError, MissingExtra, UnknownScheme
from penstock.stores.connect import check_url, connect
from penstock.stores.memory import MemoryStore


def test_memory_without_a_name_is_a_store_of_ones_own() -> None:
    one, two = connect("memory://"), connect("memory://")
    one.sync.enqueue([NewJob("a", "t")])
    assert isinstance(one, MemoryStore)
    assert two.sync.queues() == []


def test_memory_of_one_name_is_one_store_per_namespace() -> None:
    one = connect("memory://test-connect", namespace="a")
    one.sync.enqueue([NewJob("a", "t")])
    assert len(connect("memory://test-connect", namespace="a").sync.queues()) == 1
    assert connect("memory://test-connect", namespace="b").sync.queues() == []


def test_a_test_may_pass_its_clock() -> None:
    clock = ManualClock(12_345)
    store = connect("memory://", clock=clock)
    store.sync.enqueue([NewJob("a", "t")])
    (info,) = store.sync.queues()
    assert info.oldest_available == 12_345


@pytest.mark.parametrize("options", ["", "?durability=full", "?durability=normal"])
def test_sqlite_keeps_jobs_in_the_file_of_its_path(tmp_path: Path, options: str) -> None:
    store = connect(f"sqlite:///{tmp_path}/a%20b.db{options}")
    assert not (tmp_path / "a b.db").exists()
    store.sync.enqueue([NewJob("a", "t")])
    assert (tmp_path / "a b.db").exists()
    store.close()


def test_three_slashes_are_a_file_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = connect("sqlite:///jobs.db")
    monkeypatch.chdir("/")  # where it is is settled when the store is made
    store.sync.enqueue([NewJob("a", "t")])
    store.close()
    assert (tmp_path / "jobs.db").exists()


def test_a_scheme_may_be_written_in_capitals(tmp_path: Path) -> None:
    check_url("MEMORY://")
    check_url(f"SQLite:///{tmp_path}/jobs.db")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("reddis://localhost", r"no store has the scheme 'reddis' \(did you mean 'redis'\?\)"),
        ("sqlite3:///jobs.db", r"'sqlite3' \(did you mean 'sqlite'\?\)"),
        ("postgres://localhost", r"'postgres' \(did you mean 'postgresql'\?\)"),
        ("ftp://localhost", "'ftp'; the schemes are memory://, sqlite://, redis://"),
    ],
)
def test_an_unknown_scheme_is_met_with_the_nearest_known_one(url: str, says: str) -> None:
    with pytest.raises(UnknownScheme, match=says):
        check_url(url)
    with pytest.raises(UnknownScheme):
        connect(url)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "'' is not the URL of a store: write sqlite:///jobs.db"),
        ("jobs.db", "is not the URL of a store"),
        (None, "None is not the URL of a store"),
        ("sqlite:jobs.db", "is not the URL of a store"),
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite:////var/lib/", "names no file"),
        ("sqlite:///a%00b", "names no file"),
        ("sqlite://jobs.db", "names a host.*three slashes, sqlite:///jobs.db"),
        ("sqlite:///:memory:", "use memory:// instead"),
        ("sqlite:///a.db#b", "write %23 for the '#'"),
        ("sqlite:///a.db?durabilty=full", r"no option 'durabilty' \(did you mean 'durability'\?\)"),
        ("sqlite:///a.db?mode=ro", "mode='ro' is not one of 0600, 0640"),
        ("sqlite:///a.db?durability=norml", r"not one of full, normal \(did you mean 'normal'\?\)"),
        ("sqlite:///a.db?durability=", "durability='' is not one of full, normal"),
        ("sqlite:///a.db?durability", "as name=value pairs"),
        ("sqlite:///a.db?durability=full&durability=full", "gives 'durability' twice"),
        ("memory://?durability=full", "no option 'durability'"),
        ("memory:///name", "a name at most, no path"),
        ("memory://a b", "cannot be a queue's name|cannot be"),
        ("redis://[::1", "cannot be read as a URL"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused(url: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_url(url)


@pytest.mark.parametrize(
    ("url", "extra"),
    [
        ("redis://localhost", "penstock[redis]"),
        ("rediss://localhost", "penstock[redis]"),
        ("redis+sentinel://localhost/main", "penstock[redis]"),
        ("redis+cluster://localhost", "penstock[redis]"),
        ("unix:///run/redis.sock", "penstock[redis]"),
    ],
)
def test_a_missing_driver_is_met_with_the_command_that_installs_it(
    url: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.core.installation.is_installed", lambda name: False)
    with pytest.raises(MissingExtra) as caught:
        check_url(url)
    assert f"pip install '{extra}'" in str(caught.value)


@pytest.mark.parametrize("installed", [False, True])
def test_a_store_that_is_still_to_come_says_so_with_its_driver_and_without(
    installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.core.installation.is_installed", lambda name: installed)
    with pytest.raises(ConfigError, match=r"has no store for postgresql:// yet") as caught:
        connect("postgresql://localhost")
    assert "pip install" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost:6379/1?prefix=jobs",
        "rediss://:word@localhost",
        "unix:///run/redis.sock",
        "redis+sentinel://a,b,c/main?sentinel_password=word",
        "rediss+sentinel://a/main",
        "redis+cluster://a:1,b:2?wait_replicas=1&timeout=2s",
        "rediss+cluster://a",
    ],
)
def test_a_redis_is_where_its_url_says_and_is_not_asked_yet(url: str) -> None:
    check_url(url)
    store = connect(url, namespace="a")
    assert type(store).__name__ == "RedisStore"
    assert "word" not in store.url
    store.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://localhost?timout=5s", r"no option 'timout' \(did you mean 'timeout'\?\)"),
        ("redis+sentinel://localhost", "does not say which master"),
        ("redis://a,b", "names 2 servers"),
    ],
)
def test_a_redis_url_that_makes_no_sense_is_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_url(url)
    with pytest.raises(ConfigError, match=says):
        connect(url)


def test_a_password_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        check_url("sqlite://user:s3cret@host/a.db")
    assert "s3cret" not in str(caught.value)


def test_a_namespace_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="namespace='team a' cannot be a namespace"):
        connect("memory://", namespace="team a")


def test_only_the_store_that_is_asked_for_is_imported() -> None:
    import subprocess

    code = (
        "import sys; from penstock import App; App('memory://'); App('memory://').store; "
        "print({'redis', 'psycopg', 'penstock.stores.sqlite'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
