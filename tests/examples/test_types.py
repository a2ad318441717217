"""The examples are typed: mypy strict and basedpyright find nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.conftest import EXAMPLES, SRC
from tests.packages import packages_or_skip

NEEDS = {
    "fastapi_shop": ("fastapi", "httpx2", "sqlalchemy"),
    "django_site": ("django", "mypy_django_plugin"),
}


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("example", NEEDS)
@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
def test_a_type_checker_finds_nothing(checker: str, example: str, tmp_path: Path) -> None:
    packages_or_skip(checker, *NEEDS[example])
    options = {
        "mypy": ["--cache-dir", str(tmp_path)],
        "basedpyright": ["--pythonpath", sys.executable],
    }
    found = subprocess.run(
        [sys.executable, "-m", checker, *options[checker]],
        cwd=EXAMPLES / example,
        env={**os.environ, "MYPYPATH": str(SRC), "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert found.returncode == 0, found.stdout + found.stderr
