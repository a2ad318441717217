"""Type checkers accept correct code and refuse wrong code: mypy and basedpyright check each case file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
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
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    return ran.stdout


def mypy(case: Path) -> dict[int, str]:
    said = run("mypy", "--strict", "--no-error-summary", "--hide-error-context", str(case))
    found = re.findall(rf"^{re.escape(str(case.relative_to(ROOT)))}:(\d+): error: (.*)$", said, re.M)
    return {int(line): text for line, text in found}


def basedpyright(case: Path) -> dict[int, str]:
    said = json.loads(run("basedpyright", "--level", "error", "--outputjson", str(case)))
    return {
        one["range"]["start"]["line"] + 1: one["message"]
        for one in said["generalDiagnostics"]
        if one["severity"] == "error"
    }


@pytest.mark.parametrize("checker", [mypy, basedpyright], ids=lambda checker: checker.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_a_checker_finds_what_is_wrong_and_nothing_else(checker, case: Path) -> None:
    found, wanted = checker(case), expected(case)
    missed = sorted(wanted - found.keys())
    surplus = {line: text for line, text in sorted(found.items()) if line not in wanted}
    assert wanted
    assert not missed, f"{case.name}: nothing wrong was found in the lines {missed}"
    assert not surplus, f"{case.name}: " + "\n".join(f"{line}: {text}" for line, text in surplus.items())
