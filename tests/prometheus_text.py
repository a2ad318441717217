"""Reads Prometheus' text format, and checks each line of it."""

from __future__ import annotations

import re

__all__ = ["metric_names", "samples"]

_SAMPLE = re.compile(r'([a-z_]+)(\{(?:[a-z_]+="(?:[^"\\]|\\.)*",?)*\})? (-?[0-9.e+-]+)')


def samples(text: str) -> dict[str, float]:
    """The samples by name and labels. Each line must be one, or a comment of the metric that follows."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            assert line.startswith(("# HELP ", "# TYPE "))
            continue
        match = _SAMPLE.fullmatch(line)
        assert match, line
        name = f"{match[1]}{match[2] or ''}"
        assert name not in found
        found[name] = float(match[3])
    return found


def metric_names(text: str) -> set[str]:
    """The names of the metrics."""
    return set(re.findall(r"^# TYPE ([a-z_]+) ", text, re.M))
