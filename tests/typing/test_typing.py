"""Type checkers accept correct code and refuse wrong code: mypy and basedpyright check the case files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CASES = sorted((Path(__file__).parent / "cases").glob("*.py"))

pytestmark = pytest.mark.slow


def expected(case: Path) -> set[int]:
    """The lines that must be wrong."""
    lines = case.read_text("utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


def run(*command: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", *command, *map(str, CASES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    return ran.stdout


def mypy() -> Iterator[tuple[Path, int, str]]:
    said = run("mypy", "--strict", "--no-error-summary", "--hide-error-context")
    for file, line, text in re.findall(r"^(\S+?):(\d+): error: (.*)$", said, re.M):
        yield ROOT / file, int(line), text


def basedpyright() -> Iterator[tuple[Path, int, str]]:
    said = json.loads(run("basedpyright", "--level", "error", "--outputjson"))
    for one in said["generalDiagnostics"]:
        if one["severity"] == "error":
            yield Path(one["file"]), one["range"]["start"]["line"] + 1, one["message"]


@pytest.mark.parametrize("checker", [mypy, basedpyright], ids=lambda checker: checker.__name__)
def test_a_checker_finds_what_is_wrong_and_nothing_else(
    checker: Callable[[], Iterator[tuple[Path, int, str]]],
) -> None:
    """All cases in one run, because each run reads Penstock anew."""
    found: dict[Path, dict[int, str]] = {case: {} for case in CASES}
    for file, line, text in checker():
        found.setdefault(file, {})[line] = text
    assert set(found) == set(CASES), "errors elsewhere"
    complaints = []
    for case, errors in found.items():
        wanted = expected(case)
        assert wanted
        missed = sorted(wanted - errors.keys())
        complaints += [f"{case.name}:{line}: nothing wrong was found" for line in missed]
        surplus = sorted(errors.items())
        complaints += [f"{case.name}:{line}: {text}" for line, text in surplus if line not in wanted]
    assert not complaints, "\n".join(complaints)
