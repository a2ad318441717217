"""Packages that some tests need: frameworks of the examples and of the pages about them, and a linter."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

__all__ = ["packages_or_skip", "program_or_skip"]


def packages_or_skip(*names: str) -> None:
    """Without one of these packages: skip the test on a laptop, fail it in CI."""
    if missing := [name for name in names if find_spec(name) is None]:
        _skip(", ".join(missing))


def program_or_skip(name: str) -> str:
    """The path of a program that a package has installed. Without it: skip on a laptop, fail in CI."""
    path = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    return path or _skip(name)


def _skip(missing: str) -> str:
    message = f"needs {missing}: pip install -e '.[dev]'"
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail(f"{message}, and CI is set", pytrace=False)
    pytest.skip(message)
