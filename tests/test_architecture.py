"""docs/architecture.md is correct: every path and name exists, and its diagram shows the actual imports."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from penstock.core.errors import did_you_mean
from tests.test_house import (
    FLOOR_OF,
    FLOORS,
    NEIGHBOURS,
    SRC,
    all_imports,
    claim,
    modules_under,
    room,
)

ROOT = SRC.parent
PACKAGE = SRC / "penstock"
PAGE = ROOT / "docs" / "architecture.md"

#: The index of the page has an answer to each of these, among others: text in its first column.
QUESTIONS = """
    again or dead
    lease is extended
    unique key is freed
    learns of a pause
    cron instant
    limits of a queue on Redis
    SIGTERM
    result reaches a waiting handle
    fields are encrypted
    pause is stored
    durable step
    progress is stored
"""


# --- paths and names ----------------------------------------------------------------------------


def named_paths(text: str) -> Iterator[tuple[str, str]]:
    """Each path in backticks, and the name behind `::`, if there is one: (`core/job.py`, `Job.ended`)."""
    for path, name in re.findall(r"`([\w./*-]+)(?:::([\w.]+))?`", text):
        if name or "/" in path.strip("/") or path.endswith(("/", ".py", ".lua", ".sql", ".md", ".toml")):
            yield path, name


def found(path: str) -> list[Path]:
    """What a path of the page leads to: it starts in `src/penstock`, or else where the repository does."""
    return [there for start in (PACKAGE, ROOT) for there in start.glob(path.strip("/"))]


def names_in(file: Path) -> set[str]:
    """What a file defines: classes, functions, methods (`Class.method`) and values of a module."""
    text = file.read_text("utf-8")
    if file.suffix != ".py":
        return set(re.findall(r"^\s*(?:local )?function ([\w.]+)", text, re.M))
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, DEFINITIONS)}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def lost_paths(text: str) -> list[str]:
    lost = []
    for path, name in named_paths(text):
        files = found(path)
        if not files:
            lost.append(f"{path}: no such path{moved_to(path)}")
        elif name and not any(name in names_in(file) for file in files if file.is_file()):
            lost.append(f"{path}::{name}: no such name there{did_you_mean(name, names_in(files[0]))}")
    return lost


def moved_to(path: str) -> str:
    there = sorted(str(one.relative_to(PACKAGE)) for one in PACKAGE.rglob(Path(path).name))
    return f"; it may be {' or '.join(there)}" if there else ""


def test_each_path_and_name_on_the_page_exists() -> None:
    claim(lost_paths(PAGE.read_text("utf-8")), "docs/architecture.md leads nowhere:")


def test_a_path_or_a_name_that_is_gone_is_found() -> None:
    assert not lost_paths(
        "`core/job.py::Job`, `core/lifecycle.py::decide`, `stores/*/store.py`, `tests/store/`"
    )
    (path, name) = lost_paths("`core/gone.py` and `core/lifecycle.py::decides`")
    assert path == "core/gone.py: no such path"
    assert name == "core/lifecycle.py::decides: no such name there (did you mean 'decide'?)"


# --- the picture --------------------------------------------------------------------------------


def picture(text: str) -> tuple[dict[str, int], set[tuple[str, str]]]:
    """The packages with their floors, and the arrows between them, of the Mermaid flowchart."""
    (chart,) = re.findall(r"^```mermaid\nflowchart \w+\n(.*?)^```", text, re.M | re.S)
    label: dict[str, str] = {}
    floors: dict[str, int] = {}
    floor = 0
    for line in chart.splitlines():
        if opened := re.match(r"\s*subgraph \w+\[\"(\d+)", line):
            floor = int(opened[1])
        elif node := re.match(r"\s*(\w+)\[\"([\w./]+)/?\"\]$", line):
            label[node[1]] = node[2].rstrip("/").replace("/", ".")
            floors[label[node[1]]] = floor
    arrows = {
        (label[one], label[other])
        for one, others in re.findall(r"^\s*(\w+) --> ([\w& ]+)$", chart, re.M)
        for other in others.split(" & ")
    }
    return floors, arrows


def reached(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The arrows, and those that follow from them: who may import a package may import what it stands on."""
    below: dict[str, set[str]] = defaultdict(set)
    for one, other in arrows:
        below[one].add(other)
    pairs = set()
    for start in list(below):
        seen: set[str] = set()
        ways = [start]
        while ways:
            new = below[ways.pop()] - seen
            seen |= new
            ways.extend(new)
        pairs |= {(start, end) for end in seen}
    return pairs


def packages() -> set[str]:
    """The rooms of the house that are packages."""
    return {room(module) for module, path in modules_under(SRC).items() if path.name == "__init__.py"} - {
        "__init__"
    }


def imports_between_packages() -> dict[tuple[str, str], str]:
    """Who imports whom, and one line where."""
    there = packages()
    pairs = {
        (room(arrow.importer), room(arrow.target)): arrow.where for arrow in all_imports(SRC) if arrow.target
    }
    return {
        (one, other): where for (one, other), where in pairs.items() if one != other and {one, other} <= there
    }


def test_the_picture_has_every_package_on_its_floor() -> None:
    drawn, _ = picture(PAGE.read_text("utf-8"))
    there = packages()
    assert drawn == {name: floor for name, floor in FLOOR_OF.items() if name in there}
    assert list(drawn.values()) == sorted(drawn.values(), reverse=True), "the highest floor is drawn first"
    assert set(FLOORS) == set(drawn.values())


def test_no_arrow_of_the_picture_runs_up() -> None:
    _, arrows = picture(PAGE.read_text("utf-8"))
    up = [
        f"{one} → {other}"
        for one, other in sorted(arrows)
        if FLOOR_OF[other] >= FLOOR_OF[one] and other not in NEIGHBOURS.get(one, ())
    ]
    claim(up, "An arrow runs up, or to a neighbour that tests/test_house.py does not allow:")


def test_every_import_between_packages_goes_along_the_arrows_of_the_picture() -> None:
    _, arrows = picture(PAGE.read_text("utf-8"))
    real = imports_between_packages()
    ways = reached(arrows)
    undrawn = [
        f"{one} → {other}: {where}"
        for (one, other), where in sorted(real.items())
        if (one, other) not in ways
    ]
    claim(undrawn, "These imports are in no arrow of the picture; draw one:")
    unused = [f"{one} → {other}" for one, other in sorted(arrows - real.keys())]
    claim(unused, "These arrows are drawn, and no import goes there any more:")


# --- the index ----------------------------------------------------------------------------------


def index_of(text: str) -> list[tuple[str, str]]:
    """The rows of the table under "Where is …?": the question, and where its answer is."""
    (part,) = re.findall(r"^## Where is .*?\n(.*?)(?=^## )", text, re.M | re.S)
    return re.findall(r"^\| (?!question|-)(.+?) \| (.+) \|$", part, re.M)


def test_the_index_answers_thirty_questions_with_at_most_two_files_each() -> None:
    rows = index_of(PAGE.read_text("utf-8"))
    assert len(rows) >= 30
    asked = [line.strip() for line in QUESTIONS.strip().splitlines()]
    assert [one for one in asked if not any(one in question.replace("*", "") for question, _ in rows)] == []
    for question, answer in rows:
        files = {path for path, _ in named_paths(answer)}
        assert 1 <= len(files) <= 2, question
        assert all(file.is_file() for path in files for file in found(path)), question
