"""Adds the metrics of other processes of the same server to those of one process."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["with_others"]


def with_others(text: str, others: Iterable[str]) -> str:
    """The exposition `text`, with the samples of `others` added to the samples of the same name and labels.

    Series and metrics that only the others have are added, too.
    """
    families = _families(text)
    for other in others:
        for name, (head, samples) in _families(other).items():
            _, known = families.setdefault(name, (head, {}))
            for series, value in samples.items():
                known[series] = known.get(series, 0) + value
    lines: list[str] = []
    for head, samples in families.values():
        lines += head
        lines += [f"{series} {_shown(value)}" for series, value in samples.items()]
    return "\n".join([*lines, ""]) if lines else ""


_Family = tuple[list[str], dict[str, float]]  # its comment lines, and its samples by name and labels


def _families(text: str) -> dict[str, _Family]:
    found: dict[str, _Family] = {}
    family: _Family = ([], {})
    for line in text.splitlines():
        if line.startswith("#"):
            family = found.setdefault(line.split(" ", 3)[2], ([], {}))
            family[0].append(line)
        elif line:
            series, _, value = line.rpartition(" ")
            family[1][series] = float(value)
    return found


def _shown(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
