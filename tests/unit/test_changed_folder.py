"""What an app means by a relative path is settled when the app is made: a task may change the directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock import App, ConfigError
from penstock.stores.connect import check_url, shown_store


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, whose name must be quoted in a URL."""
    folder = tmp_path / "a b#c%20"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("source", ["argument", "variable", "file", "default"])
def test_the_file_of_an_app_is_where_the_app_was_made(
    home: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    if source == "variable":
        monkeypatch.setenv("PENSTOCK_URL", "sqlite:///jobs.db?durability=normal")
    elif source == "file":
        (home / "penstock.toml").write_text('url = "sqlite:///jobs.db"\n')
    app = App("sqlite:///jobs.db") if source == "argument" else App()

    @app.task
    def work() -> None: ...

    monkeypatch.chdir(elsewhere)
    work.enqueue()
    app.close()
    work.enqueue()  # opened again
    app.close()
    assert (home / "jobs.db").exists()
    assert list(elsewhere.iterdir()) == []
    assert app.connect_url == app.url
    assert app.url.startswith("sqlite:////")


def test_a_url_keeps_its_options_and_an_absolute_one_stays_as_it_is(home: Path) -> None:
    assert check_url("sqlite:///x/j.db?durability=normal").endswith(
        "/a%20b%23c%2520/x/j.db?durability=normal"
    )
    assert check_url(check_url("sqlite:///x%20y.db")) == check_url("sqlite:///x%20y.db")
    for url in (
        "sqlite:////srv/a%20b.db?mode=0660",
        "memory://",
        "memory://x",
        "redis://:p%40ss@host/1?timeout=2s",
    ):
        assert check_url(url) == url


def test_the_certificates_of_a_redis_url_are_where_the_app_was_made(home: Path, elsewhere: Path) -> None:
    url = "rediss://:p%40w@host:1/2?ssl_ca_certs=ca+1.pem&ssl_keyfile=%2Fsrv%2Fk.pem&ssl_cert_reqs=required"
    settled = check_url(url)
    assert settled.startswith("rediss://:p%40w@host:1/2?ssl_ca_certs=/")
    assert settled.endswith("/a%20b%23c%2520/ca%201.pem&ssl_keyfile=/srv/k.pem&ssl_cert_reqs=required")
    assert check_url(settled) == settled


def test_a_working_directory_that_was_removed_is_named(home: Path) -> None:
    home.rmdir()
    with pytest.raises(ConfigError, match="was removed: give an absolute path"):
        App("sqlite:///jobs.db")
    App("sqlite:////tmp/jobs.db")


def test_a_store_is_named_with_its_whole_path_and_as_new_until_it_exists(home: Path) -> None:
    app = App("sqlite:///jobs.db")

    @app.task
    def work() -> None: ...

    named = f"sqlite:///{os.path.realpath(home)}/jobs.db"
    assert shown_store(app.store) == f"{named}; this file is new"
    work.enqueue()
    assert shown_store(app.store) == named
    app.close()
    assert shown_store(App("memory://").store) == "memory://"
