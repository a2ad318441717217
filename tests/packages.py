"""Packages that some tests need: frameworks of the examples and of the pages about them."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

__all__ = ["packages_or_skip"]


def packages_or_skip(*names: str) -> None:
    """Without one of these packages: skip the test on a laptop, fail it in CI."""
    missing = [name for name in names if find_spec(name) is None]
    if not missing:
        return
    message = f"needs {', '.join(missing)}: pip install -e '.[dev]'"
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail(f"{message}, and CI is set", pytrace=False)
    pytest.skip(message)
