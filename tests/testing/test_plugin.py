"""The pytest plugin: the fixture `penstock_inline`, and the guard against real stores."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TEST = """
import pytest
from penstock import App

app = App("sqlite:///must-not-be-made.db")
did = []

@app.task
async def greet(name: str) -> None:
    did.append(name)

def test_it_runs_on_request(penstock_inline):
    box = penstock_inline(app)
    greet.using(delay="5m").enqueue("Ada")
    box.assert_enqueued(greet, "Ada", delay="5m")
    box.advance("5m")
    assert did == ["Ada"]

@pytest.mark.penstock_store
def test_it_ends_with_its_test(penstock_inline):
    assert app.store.url.startswith("sqlite:")
    penstock_inline(app)
    assert app.store.url.startswith("memory:")
"""


@pytest.mark.slow
def test_a_users_test_gets_the_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_greeting.py").write_text(TEST)
    installed = any(e.value == "penstock.testing.plugin" for e in entry_points(group="pytest11"))
    named = [] if installed else ["-p", "penstock.testing.plugin"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *named, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout
    assert not list(tmp_path.glob("*.db"))


FORGETS = """
import os

import pytest
from penstock import App, ConfigError
from penstock.testing import inline

app = App("sqlite:///jobs.db")

@app.task
async def greet(name: str) -> None: ...

def test_it_forgets():
    greet.enqueue("Ada")

def test_it_forgets_after_it_remembered():
    with inline(app):
        greet.enqueue("Ada")
    greet.enqueue("Ada")

@pytest.mark.parametrize("url", ["redis://localhost:1", "sqlite:///jobs.db"])
def test_the_way_out_is_said(url):
    with pytest.raises(ConfigError, match="penstock_inline.*pytest.mark.penstock_store.*PENSTOCK_URL"):
        App(url).store

def test_what_is_temporary_is_chosen(tmp_path):
    App(f"sqlite:///{tmp_path}/chosen.db").store
    App("memory://").store

def test_so_is_the_environments(monkeypatch):
    monkeypatch.setenv("PENSTOCK_URL", "redis://localhost:1")
    App().store
    monkeypatch.setenv("PENSTOCK_URL", "sqlite:///of-the-environment.db")
    App().store

@pytest.mark.penstock_store
def test_and_what_is_marked():
    App("sqlite:///jobs.db").store
"""


def run_in(folder: Path, test: str, *options: str) -> str:
    (folder / "test_it.py").write_text(test)
    installed = any(e.value == "penstock.testing.plugin" for e in entry_points(group="pytest11"))
    named = [] if installed else ["-p", "penstock.testing.plugin"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *named, *options, str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ran.stdout + ran.stderr


@pytest.mark.slow
def test_a_test_that_forgets_the_box_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    said = run_in(tmp_path, FORGETS)
    assert "2 failed, 5 passed" in said, said
    assert f"sqlite:///{tmp_path}/jobs.db, which was not chosen for tests" in said
    assert not list(tmp_path.glob("*.db"))


@pytest.mark.slow
def test_a_project_may_choose_any_store(tmp_path: Path) -> None:
    said = run_in(tmp_path, FORGETS, "-o", "penstock_store=any", "-k", "forgets")
    assert "2 passed" in said, said
    assert (tmp_path / "jobs.db").exists()
    assert "is not one of chosen, any" in run_in(tmp_path, FORGETS, "-o", "penstock_store=some")


def test_the_package_announces_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"penstock": "penstock.testing.plugin"}


def test_the_plugin_costs_other_projects_nothing() -> None:
    """It is loaded by every pytest run where Penstock is installed."""
    probe = "import sys, penstock.testing.plugin; print([m for m in sys.modules if m.startswith('penstock')])"
    ran = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "['penstock', 'penstock.testing', 'penstock.testing.plugin']"
