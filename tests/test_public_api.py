"""The public API: every name of `penstock` exists, is documented, and is visible to type checkers."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import penstock
from penstock import errors, events, testing
from penstock.app.queue import StoredQueue
from penstock.app.take import Take
from penstock.app.task import Using
from penstock.client.handle import ProgressStream
from penstock.client.outbox import Outbox
from penstock.client.results import AsCompleted
from tests.cases import each

ROOT = Path(__file__).resolve().parent.parent
INIT = ROOT / "src" / "penstock" / "__init__.py"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

#: What a user writes; taking one away breaks programs.
PROMISED = """
    App Queue Worker Task Handle JobCall Attempt current_job Taken
    RawJob Job NewJob Ref State Unkept Progress AttemptError Unique Batch
    Retry Snooze Discard Cancel exponential fixed linear fibonacci steps polynomial
    config errors events retry testing
"""


def imported_for_checkers() -> dict[str, str]:
    """What the block under TYPE_CHECKING says: each name, and the module that it is from."""
    (block,) = (
        node
        for node in ast.parse(INIT.read_text("utf-8")).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    found = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name, "`import x as x` is how a checker knows that it is offered"
            assert alias.name not in found
            found[alias.name] = node.module or ""
    return found


def test_all_is_sorted_and_has_each_name_once() -> None:
    assert penstock.__all__ == sorted(set(penstock.__all__))
    assert set(PROMISED.split()) <= set(penstock.__all__)


def test_all_errors_and_all_events_are_offered() -> None:
    kinds = {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}
    assert kinds <= set(penstock.__all__)
    told = {
        name
        for name in events.__all__
        if isinstance(getattr(events, name), type) and issubclass(getattr(events, name), events.Event)
    }
    assert told <= set(penstock.__all__)


def test_no_event_and_error_share_a_stem() -> None:
    """`JobCancelled` beside `JobCancelledError` would be mixed up: one is listened to, the other caught."""
    of_events, of_errors = (
        {re.sub(r"(Event|Error|Warning)\Z", "", name) for name in module.__all__}
        for module in (events, errors)
    )
    pairs = [(event, error) for event in of_events - {""} for error in of_errors - {""}]
    shared = [(a, b) for a, b in pairs if a.startswith(b) or b.startswith(a)]
    assert shared == []


@each("name", penstock.__all__)
def test_a_public_name_is_there_and_says_what_it_is(name: str) -> None:
    found = getattr(penstock, name)
    said = found.__doc__
    assert said, f"penstock.{name} has no docstring"
    inherited = [base.__doc__ for base in getattr(found, "__mro__", ())[1:]]
    assert said not in inherited, f"penstock.{name} has its parent's docstring"
    assert name in dir(penstock)


@pytest.mark.parametrize("name", ["App", "Worker", "Handle", "Task", "Attempt", "Taken", "Queue", "Job"])
def test_each_public_verb_of_what_users_hold_says_what_it_does(name: str) -> None:
    kind = getattr(penstock, name)
    silent = []
    for verb, member in inspect.getmembers(kind, inspect.isfunction):
        if not verb.startswith("_") and member.__module__.startswith("penstock") and not member.__doc__:
            silent.append(verb)
    assert not silent


def held_by_users() -> set[type]:
    """The public classes, and those of the objects that their methods return."""
    of_the_package = {getattr(penstock, name) for name in penstock.__all__}
    of_tests = {getattr(testing, name) for name in testing.__all__}
    returned = {AsCompleted, Outbox, ProgressStream, StoredQueue, Take, Using}
    return {one for one in of_the_package | of_tests | returned if inspect.isclass(one)}


def test_each_public_async_method_has_a_docstring() -> None:
    twins = [
        (f"{kind.__name__}.{name}", method)
        for kind in held_by_users()
        for name, method in inspect.getmembers(kind, inspect.iscoroutinefunction)
        if not name.startswith("_") and method.__module__.startswith("penstock")
    ]
    assert {"App.aenqueue_many", "Handle.aresult", "Using.aenqueue"} <= {name for name, _ in twins}
    assert sorted(name for name, method in twins if not method.__doc__) == []


def test_type_checkers_see_the_same_names_as_the_interpreter() -> None:
    told = imported_for_checkers()
    assert set(told) == set(penstock.__all__)
    for name, home in told.items():
        found = getattr(penstock, name)
        if isinstance(found, ModuleType):
            assert home == "penstock"
            assert found.__name__ == f"penstock.{name}"
        else:
            assert getattr(sys.modules[home], name) is found


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Celery'"):
        penstock.Celery  # noqa: B018
    with pytest.raises(ImportError):
        from penstock import nothing  # noqa: F401


def test_a_module_is_reached_through_a_plain_import() -> None:
    code = "import penstock; print(penstock.errors.StoreFull.__name__, penstock.__version__)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    name, version = ran.stdout.split()
    assert name == "StoreFull"
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", version)


@each("page", PAGES)
def test_every_public_name_that_a_docs_page_imports_exists(page: Path) -> None:
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S))
    names = {
        alias.name
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom) and node.module == "penstock"
        for alias in node.names
    }
    assert names <= set(penstock.__all__)


def test_all_errors_of_the_docs_page_are_public() -> None:
    assert penstock.NoCurrentJob.__mro__[1] is penstock.PenstockError
