"""Commands and worker processes import the modules of `App(include=[...])`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

FILES = {
    "shop/__init__.py": "",
    "shop/app.py": """
from penstock import App

app = App("sqlite:///jobs.db", include=["shop.tasks"])
""",
    "shop/tasks.py": """
import os
from shop.app import app

@app.task
def greet(name: str) -> str:
    return f"hello {name}"

@app.task(run_in="process", queue="cpu")
def pid() -> int:
    return os.getpid()
""",
}

Shell = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def shop(here: Path) -> Path:
    for name, text in FILES.items():
        path = here / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return here


@pytest.mark.usefixtures("shop")
def test_jobs_are_enqueued_and_run_by_worker_processes_and_their_children(shell: Shell) -> None:
    for task, args in (("shop.tasks.greet", '["ann"]'), ("shop.tasks.pid", "[]")):
        assert shell("enqueue", "shop.app:app", task, args).returncode == 0
    ran = shell("worker", "shop.app:app", "--burst")
    assert ran.returncode == 0, ran.stderr
    jobs = json.loads(shell("jobs", "list", "--json").stdout)["jobs"]
    assert [(job["task"], job["state"]) for job in jobs] == [
        ("shop.tasks.pid", "completed"),
        ("shop.tasks.greet", "completed"),
    ]


def test_a_broken_module_stops_workers_and_not_the_look_at_jobs(shop: Path, shell: Shell) -> None:
    (shop / "shop/tasks.py").write_text("1 / 0\n")
    refused = shell("worker", "shop.app:app", "--burst")
    assert refused.returncode == 2
    assert "the module 'shop.tasks' cannot be imported: ZeroDivisionError" in refused.stderr
    assert "there is no store at" in shell("queues", "list", "--app", "shop.app:app").stderr
