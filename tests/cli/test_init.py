"""`penstock init` writes a project that runs at once, and overwrites nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

Shell = Callable[..., "subprocess.CompletedProcess[str]"]

POST = """
import io, json
from shop.web import respond
body = json.dumps({"order": 7, "email": "ann@example.org"}).encode()
print(respond("POST", "/orders", {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))})[0])
"""
GET = """
import json
from shop.web import respond
print(json.dumps(respond("GET", "/jobs/receipt-7", {})[1]))
"""


@pytest.fixture
def penstock() -> Cli:
    return Cli("memory://init")


def python(folder: Path, *words: str) -> str:
    ran = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_the_project_has_tasks_web_app_tests_dockerfile_and_settings(penstock: Cli, here: Path) -> None:
    said = penstock.ok("init", "mine", url=False)
    assert files_in(here / "mine") == [
        *(".dockerignore", "Dockerfile", "README.md", "penstock.toml", "requirements.txt"),
        *("shop/__init__.py", "shop/app.py", "shop/tasks.py", "shop/web.py", "tests/test_shop.py"),
    ]
    assert "cd mine && penstock dev" in said


def test_its_tests_pass(penstock: Cli, here: Path) -> None:
    penstock.ok("init", url=False)
    assert "6 passed" in python(here, "-m", "pytest", "-q", "-p", "no:cacheprovider")


def test_its_web_app_enqueues_and_its_worker_runs_the_job(penstock: Cli, here: Path, shell: Shell) -> None:
    penstock.ok("init", url=False)
    assert python(here, "-c", POST) == "202 Accepted\n"
    ran = shell("worker", "--burst")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(python(here, "-c", GET))["result"] == "receipt for order 7 sent to ann@example.org"
    shown = json.loads(shell("queues", "show", "mail", "--json").stdout)["queue"]
    assert (shown["limits"]["rate"], shown["set_by"]["rate"]) == ("10/s", "code")


@pytest.mark.parametrize("existing", ["penstock.toml", "shop/app.py", "shop/tasks.py/keep"])
def test_nothing_is_overwritten(penstock: Cli, here: Path, existing: str) -> None:
    path = here / existing
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    says = penstock.says(1, "init", url=False)
    assert "already: nothing was written" in says
    assert (files_in(here), path.read_text()) == ([existing], "mine")


def test_other_files_may_be_there(penstock: Cli, here: Path) -> None:
    (here / "notes.md").write_text("mine")
    document = penstock.json("init", url=False)
    assert (document["directory"], len(document["files"])) == (".", 10)
    assert (here / "notes.md").read_text() == "mine"


def test_a_directory_that_cannot_be_written_is_an_error(penstock: Cli, here: Path) -> None:
    (here / "file").write_text("")
    assert "file" in penstock.says(2, "init", "file", url=False)


def test_the_settings_of_the_project_are_valid(penstock: Cli, here: Path) -> None:
    penstock.ok("init", url=False)
    assert "penstock.toml" in penstock.ok("config", url=False)
