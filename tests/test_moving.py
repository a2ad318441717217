"""docs/moving.md: every way of ours that its tables name exists and is accepted."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import click
import pytest

import penstock
from penstock import App, workflows
from penstock.app.attempt import Attempt
from penstock.cli.main import cli
from penstock.retry import exponential, sidekiq, steps
from tests.cases import each
from tests.test_docs import DOCS

PAGE = (DOCS / "moving.md").read_text("utf-8")

#: What the names of the tables stand for.
OWNERS = {
    "app": App,
    "task": penstock.Task,
    "handle": penstock.Handle,
    "current_job()": Attempt,
    "current_flow()": workflows.StepFlow,
}
KNOWN_NAMES = {"App", "Worker", "QueueDefaults", "Retry", "Cancel", "Discard", "current_job"}
FLOWS = {"chain", "chord", "group", "current_flow"}


def rows() -> Iterator[list[str]]:
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if line.startswith("| ") and len(cells) == 2 and cells[1] != "Penstock":
            yield cells


OURS = sorted({code for _, ours in rows() for code in re.findall(r"`([^`]+)`", ours)})
COMMANDS = [code for code in OURS if code.startswith("penstock ")]
OURS_BEGIN = r"(await |raise |@?app\b|task\b|handle\b|current_job|App\(|Worker\(|chain\(|chord\(|group\()"
CODE = [code for code in OURS if re.match(OURS_BEGIN, code)]
#: Parts of a sentence: names that the cell explains.
WORDS = set(OURS) - set(COMMANDS) - set(CODE)


def test_each_code_of_ours_is_of_a_kind_that_is_checked() -> None:
    assert len(CODE) > 60
    assert len(COMMANDS) > 20
    assert {
        "JobExists", "--strict", "async def", "async def send(user_id)", "ctx", "def", "inline(app)",
    } == WORDS  # fmt: skip
    assert hasattr(penstock, "JobExists")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_parses(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[click.Context] = []
    monkeypatch.setattr(click.Command, "invoke", lambda self, ctx: parsed.append(ctx))
    cli.main(command.split()[1:], standalone_mode=False)
    assert parsed


@each("code", CODE)
def test_code_names_what_exists(code: str) -> None:
    if code.startswith("@app.task"):
        is_accepted(code)
    text = code.removeprefix("@")
    text = f"async def f():\n    {text}" if "await " in text else text
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            owner = OWNERS.get(ast.unparse(node.value))
            if isinstance(node.value, ast.Call) and ast.unparse(node.value).startswith("app.handle"):
                owner = penstock.Handle
            if isinstance(node.value, ast.Call) and ast.unparse(node.value).startswith("task.using"):
                owner = penstock.Task
            if isinstance(node.value, ast.Call) and ast.unparse(node.value).startswith("group("):
                owner = workflows.Canvas
            assert owner is not None, ast.unparse(node)
            assert hasattr(owner, node.attr) or node.attr == "state", ast.unparse(node)
            if node.attr == "using":
                continue
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "task.using":
            is_accepted_by_using(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id != "task":
            assert node.func.id in KNOWN_NAMES | FLOWS | {"exponential", "sidekiq", "steps"}, node.func.id
            assert node.func.id not in FLOWS or hasattr(workflows, node.func.id)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("chain", "chord", "group"):
            is_a_flow(node)


def values() -> dict[str, Any]:
    return {
        "exponential": exponential,
        "sidekiq": sidekiq,
        "steps": steps,
        "KeyError": KeyError,
        "OSError": OSError,
        "alert": lambda job, error: None,
        "backoff": lambda attempt, error, job: 1.0,
        "when": datetime(2090, 1, 1, tzinfo=UTC),
        "__callback__": lambda job, result: None,
    }


def work(user_id: int = 0) -> None: ...


def is_accepted(code: str) -> None:
    """The options are taken by a task."""
    app = App("memory://")
    text = code.removeprefix("@").replace("=...", "=__callback__")
    made = eval(text, {**values(), "app": app})
    if "(" in text:
        made(work)
    else:
        app.task(work)


def is_a_flow(node: ast.Call) -> None:
    @App("memory://").task
    def task(*numbers: Any) -> None: ...

    assert eval(ast.unparse(node), {**vars(workflows), "task": task}) is not None


def is_accepted_by_using(node: ast.Call) -> None:
    app = App("memory://")
    text = ast.unparse(node).replace("=...", "=when")

    @app.task
    def task(*numbers: int) -> None: ...

    assert eval(text, {**values(), "task": task}) is not None
