"""The store of a worker stays where its app was made, and its first line says where that is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.cli.conftest import Cli
from tests.cli.test_doctor import found

Shell = Callable[..., CompletedProcess[str]]

TASKS = """
import os
from penstock import App

app = App("sqlite:///jobs.db")


@app.task
def leave(to: str) -> str:
    os.chdir(to)
    in_a_thread.enqueue()
    in_a_child.enqueue()
    return os.getcwd()


@app.task
def in_a_thread() -> str:
    return os.getcwd()


@app.task(run_in="process")
def in_a_child() -> str:
    in_a_thread.enqueue()
    return os.getcwd()

"""


@pytest.fixture
def project(here: Path) -> Path:
    (here / "tasks.py").write_text(TASKS)
    (here / "elsewhere").mkdir()
    return here


@pytest.mark.parametrize("start", ["fork", "spawn", "preload"])
def test_a_task_that_changes_the_directory_moves_neither_the_store_nor_later_children(
    project: Path, shell: Shell, start: str
) -> None:
    assert shell("enqueue", "tasks.leave", '{"to": "elsewhere"}', "--app", "tasks:app").returncode == 0
    done = shell("worker", "tasks:app", "--burst", env={"PENSTOCK_PROCESS_START": start})
    assert done.returncode == 0, done.stderr
    assert list((project / "elsewhere").iterdir()) == []
    listed = json.loads(shell("jobs", "list", "--json", "--app", "tasks:app").stdout)
    ended = sorted((job["task"], job["state"], job["attempt"]) for job in listed["jobs"])
    assert ended == [
        ("tasks.in_a_child", "completed", 1),
        ("tasks.in_a_thread", "completed", 1),
        ("tasks.in_a_thread", "completed", 1),
        ("tasks.leave", "completed", 1),
    ]


def test_the_first_line_of_a_worker_names_its_store_and_says_if_the_file_is_new(
    project: Path, shell: Shell
) -> None:
    for new in ("; this file is new", ""):
        first, *_ = shell("worker", "tasks:app", "--burst").stderr.splitlines()
        assert first.endswith(f": the store is sqlite:///{project.resolve()}/jobs.db{new}")


def test_the_doctor_says_that_a_file_is_new(project: Path, shell: Shell) -> None:
    penstock = Cli(f"sqlite:///{project}/jobs.db")
    assert "does not exist yet: this file is new" in found(penstock.json("doctor"))["store"][1]
    shell("worker", "tasks:app", "--burst")
    assert found(penstock.json("doctor"))["store"][1].endswith("; this file is new: it has had no job yet")
    shell("enqueue", "tasks.in_a_thread", "--app", "tasks:app")
    assert "new" not in found(penstock.json("doctor"))["store"][1]
