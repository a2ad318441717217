"""Nothing that users may write is in no page: options of the command line, of tasks and calls, attributes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import penstock
from penstock.app.queue import StoredQueue
from penstock.app.task import Using
from penstock.cli.main import cli
from penstock.client import options
from penstock.pool import CancelToken, Pool, ThreadPool

ROOT = Path(__file__).resolve().parent.parent
TEXT = "\n".join(
    page.read_text("utf-8") for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
)
OPTIONS_IN_TEXT = set(re.findall(r"(?<![\w-])--[\w-]+", TEXT))

#: What the worker and other parts of Penstock call; users have no use for it.
INTERNAL = {
    "App": {"connect_url", "identities", "swap_store"},
    "Attempt": {"ask_to_stop", "flow", "inherited_headers", "notice", "noticed", "owner", "wait"},
    "Taken": {"has_progress", "limit_passed", "record_start", "send_heartbeat", "value"},
    "Task": {"retry_function"},
    "Worker": {"calls_back", "has_listeners", "report_lost_worker"},
}
INTERNAL["Taken"] |= INTERNAL["Attempt"]
#: Keyword arguments that a supervisor gives to its worker processes.
BETWEEN_PROCESSES = {"supervision"}
#: Keyword arguments that `penstock.testing.inline` gives to its workers.
INSIDE_BLOCKS = {"store_clock"}


def options_of_commands(command: click.Command, path: str = "") -> Iterator[tuple[str, str]]:
    """Each command, and one of its options in long form."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                yield from options_of_commands(inner, f"{path} {name}".strip())
    for one in command.params:
        if isinstance(one, click.Option) and not one.hidden:
            names = [name for name in (*one.opts, *one.secondary_opts) if name.startswith("--")]
            if OPTIONS_IN_TEXT.isdisjoint(names):
                yield path, names[0]


def test_each_option_of_the_command_line_is_in_a_page() -> None:
    assert list(options_of_commands(cli)) == []


@pytest.mark.parametrize("kind", sorted(name for name in vars(options) if name.endswith("Options")))
def test_each_option_of_tasks_and_calls_is_in_a_page(kind: str) -> None:
    names: set[str] = getattr(getattr(options, kind), "__optional_keys__", set())
    assert {name for name in names if not re.search(rf"\b{name}=|`{name}`", TEXT)} == set()


@pytest.mark.parametrize(
    "kind",
    [
        *(penstock.App, penstock.Attempt, penstock.Handle, penstock.Queue, penstock.Taken, penstock.Task),
        *(penstock.Worker, StoredQueue, Using, Pool, ThreadPool, CancelToken),
    ],
    ids=lambda kind: kind.__name__,
)
def test_each_attribute_and_argument_of_what_users_hold_is_in_a_page(kind: type[Any]) -> None:
    internal = INTERNAL.get(kind.__name__, set())
    public = {name for name in dir(kind) if not name.startswith("_") and name not in internal}
    public = {name for name in public if any(name in vars(base) for base in kind.__mro__ if ours(base))}
    twins = {name for name in public if name[0] == "a" and name[1:] in public}  # documented with the other
    forms = r"\.{0}\b" if kind is penstock.Attempt else r"\.{0}\b|`{0}`|\b{0}=|`{0}\("  # many are words
    named = {name for name in public - twins if re.search(forms.format(name), TEXT)}
    assert public - twins - named == set()
    arguments = {
        one.name
        for one in inspect.signature(kind).parameters.values()
        if one.kind is one.KEYWORD_ONLY and one.name[0] != "_"
    }
    arguments -= BETWEEN_PROCESSES | INSIDE_BLOCKS
    assert {name for name in arguments if not re.search(rf"\b{name}=|`{name}`", TEXT)} == set()


def ours(kind: type) -> bool:
    return kind.__module__.startswith("penstock")
