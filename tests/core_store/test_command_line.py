"""Every command on a store that has the core alone: it works, or says what the store cannot do."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from penstock.cli.main import cli
from penstock.stores.sqlite import SqliteStore
from tests.core_store.core_alone import CoreAlone

_APP = """
from penstock import App
from penstock.stores.sqlite import SqliteStore
from tests.core_store.core_alone import CoreAlone

app = App(store=CoreAlone(SqliteStore("jobs.db")))

@app.task
def work(n: int) -> int:
    return n
"""
_JOB, _ENTRY = "default/x", "default/p"
#: Commands that work, with their arguments.
_WORKS = {
    "enqueue": "core_app.work [5]",
    "queues list": "",
    "queues show": "default",
    "queues pause": "default",
    "queues resume": "default",
    "queues close": "default",
    "queues open": "default",
    "queues reset": "default",
    "config": "",
    "doctor": "",
}
#: Commands that the store cannot do, with their arguments and what it lacks.
_LACKS = {
    "jobs list": ("", "list or search jobs"),
    "jobs show": (_JOB, "tell what became of a job, or cancel it"),
    "jobs log": (_JOB, "tell what became of a job, or cancel it"),
    "jobs why": (_JOB, "tell what became of a job, or cancel it"),
    "jobs cancel": (_JOB, "tell what became of a job, or cancel it"),
    "jobs retry": (_JOB, "tell what became of a job, or cancel it"),
    "jobs run-now": (_JOB, "tell what became of a job, or cancel it"),
    "jobs duplicate": (_JOB, "tell what became of a job, or cancel it"),
    "jobs edit": (f"{_JOB} --args [6]", "tell what became of a job, or cancel it"),
    "jobs move": (f"{_JOB} --to mail", "tell what became of a job, or cancel it"),
    "jobs steps list": (_JOB, "tell what became of a job, or cancel it"),
    "jobs steps set": (f"{_JOB} step 1", "tell what became of a job, or cancel it"),
    "jobs steps drop": (f"{_JOB} step", "tell what became of a job, or cancel it"),
    "jobs delete": (f"{_JOB} --yes", "change, move or remove jobs"),
    "jobs complete": (f"{_JOB} --yes", "change, move or remove jobs"),
    "jobs discard": (f"{_JOB} --yes", "change, move or remove jobs"),
    "jobs reschedule": (f"{_JOB} --delay 5m", "change, move or remove jobs"),
    "queues purge": ("default --yes", "change, move or remove jobs"),
    "queues delete": ("default --yes", "change, move or remove jobs"),
    "queues set": ("default --max-running 5", "limit queues"),
    "queues parked": ("", "list or search jobs"),
    "batches list": ("", "list or search jobs"),
    "batches flush": ("default core_app.work", "change, move or remove jobs"),
    "bulk list": ("", "keep documents and logs"),
    "bulk show": ("b", "keep documents and logs"),
    "bulk abort": ("b", "keep documents and logs"),
    "tokens list": ("", "keep documents and logs"),
    "tokens create": ("t --allow read", "keep documents and logs"),
    "tokens revoke": ("t --yes", "keep documents and logs"),
    "audit": ("", "keep documents and logs"),
    "stats": ("", "keep statistics"),
    "errors": ("", "keep statistics"),
    "flows list": ("", "keep flows"),
    "flows show": (_JOB, "keep flows"),
    "flows retry": (_JOB, "keep flows"),
    "flows cancel": (_JOB, "keep flows"),
    "flows signal": ("name", "keep durable steps and signals"),
    "flows signals list": ("", "keep durable steps and signals"),
    "flows signals drop": ("name", "keep durable steps and signals"),
    "periodic add": ("p @hourly core_app.work [1]", "keep periodic entries"),
    "periodic list": ("", "keep periodic entries"),
    "periodic show": (_ENTRY, "keep periodic entries"),
    "periodic next": (_ENTRY, "keep periodic entries"),
    "periodic pause": (_ENTRY, "keep periodic entries"),
    "periodic resume": (_ENTRY, "keep periodic entries"),
    "periodic remove": (_ENTRY, "keep periodic entries"),
    "periodic trigger": (_ENTRY, "keep periodic entries"),
    "workers list": ("", "keep a list of workers"),
    "workers quiet": ("w", "keep a list of workers"),
    "workers drain": ("w", "keep a list of workers"),
    "workers stop": ("w --yes", "keep a list of workers"),
    "workers restart": ("w", "keep a list of workers"),
    "workers stacks": ("w", "keep a list of workers"),
}
#: Commands that ask no store of the app.
_WITHOUT_STORE = {"init", "demo", "keygen", "completion"}
#: Commands with a test of their own.
_ELSEWHERE = {"top", "worker", "serve", "dev", "verify"}


def _commands(command: click.Command, path: str = "") -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield path
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from _commands(inner, f"{path} {name}".strip())


def test_every_command_is_here() -> None:
    assert set(_commands(cli)) == {*_WORKS, *_LACKS, *_WITHOUT_STORE, *_ELSEWHERE}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with an app whose store has the core alone, and with a job in it."""
    (tmp_path / "core_app.py").write_text(_APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    level = logging.getLogger().level
    assert _run("enqueue core_app.work [1]").exit_code == 0
    yield tmp_path
    sys.modules.pop("core_app").app.store.close()  # type: ignore[attr-defined]
    logging.getLogger().setLevel(level)


def _run(words: str) -> Result:
    return CliRunner().invoke(cli, ["--app", "core_app:app", *words.split()], prog_name="penstock", input="")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("command", _WORKS)
def test_it_works(command: str) -> None:
    ran = _run(f"{command} {_WORKS[command]}")
    assert ran.exit_code == 0, ran.output
    assert "error" not in ran.stderr


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("command", _LACKS)
def test_it_says_what_the_store_cannot_do(command: str) -> None:
    arguments, lacks = _LACKS[command]
    ran = _run(f"{command} {arguments}")
    assert ran.exit_code == 1, ran.output
    (line,) = ran.stderr.splitlines()
    assert line.startswith("penstock: error: sqlite://")
    assert f"cannot {lacks}, which " in line


def test_top_shows_what_there_is(here: Path) -> None:
    pytest.importorskip("textual")
    from penstock.cli.top.app import Top

    store = CoreAlone(SqliteStore(here / "jobs.db"))

    async def showing() -> Any:
        top = Top(store, place="here", interval=60)
        async with top.run_test() as pilot:
            for key in ("2", "3", "4", "5", "1", "enter"):
                await pilot.press(key)
                await pilot.pause()
            return top.screen._compositor.render_strips()

    try:
        shown = "\n".join("".join(part.text for part in strip) for strip in asyncio.run(showing()))
    finally:
        store.close()
    assert "default" in shown
    assert "ready 1" in shown
    for word in ("no worker", "does not answer", "cannot"):
        assert word not in shown
