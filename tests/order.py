"""The order of the tests where several processes share them (pytest-xdist): long ones first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import pytest

__all__ = ["dealt", "processes_of"]

#: Folders and files of tests that run real processes for seconds.
LONG = {"crash", "examples", "interop", "model", "system", "verify", "test_benchmarks.py"}

_TESTS = Path(__file__).resolve().parent


def processes_of(config: pytest.Config) -> int:
    """The number of processes that share the tests of this run."""
    shared: dict[str, int] = getattr(config, "workerinput", {})
    return shared.get("workercount", 1)


def dealt(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """The same tests, in an order in which the last test to start is a short one.

    At first, xdist gives each process one part of the list. So each part begins with some of the long tests,
    first those with the longest timeouts. A file of tests stays together, because it may have fixtures of its
    own.
    """
    files = [list(tests) for _, tests in groupby(items, key=_file)]
    long = sorted(filter(_is_long, files), key=_timeout, reverse=True)
    short = iter([item for tests in files if not _is_long(tests) for item in tests])
    found: list[pytest.Item] = []
    for n in range(processes):
        part = [item for tests in long[n::processes] for item in tests]
        room = (len(items) - len(found)) // (processes - n) - len(part)
        found += [*part, *(item for _, item in zip(range(room), short, strict=False))]
    return [*found, *short]


def _file(item: pytest.Item) -> Path:
    """The folder counts as one file if its tests wait for the same program to be built."""
    return item.path.parent if item.path.parent.name == "interop" else item.path


def _is_long(tests: Sequence[pytest.Item]) -> bool:
    return tests[0].path.is_relative_to(_TESTS) and tests[0].path.relative_to(_TESTS).parts[0] in LONG


def _timeout(tests: Sequence[pytest.Item]) -> float:
    marks = [mark for item in tests for mark in item.iter_markers("timeout")]
    return max((mark.args[0] for mark in marks if mark.args), default=0.0)
