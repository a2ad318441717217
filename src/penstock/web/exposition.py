"""Counters and histograms with labels, and the text format in which Prometheus reads them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

__all__ = ["EXPOSITION", "LabelledCounter", "LabelledHistogram", "exposed"]

#: The content type of the text format.
EXPOSITION = b"text/plain; version=0.0.4; charset=utf-8"
#: The most sets of labels of one metric; further ones are counted together, with "other" for each label.
_MOST_SERIES = 2_000

Labels = tuple[str, ...]


def exposed(
    name: str, kind: str, help: str, names: Sequence[str], samples: Iterable[tuple[Labels, float]]
) -> str:
    """One metric with its samples; "" if it has none. `kind`: counter or gauge."""
    lines = [f"{name}{_labels(names, values)} {_number(value)}" for values, value in samples]
    return _family(name, kind, help, lines)


class LabelledCounter:
    """A number per set of labels."""

    def __init__(self, name: str, help: str, names: Sequence[str]) -> None:
        self._name = name
        self._help = help
        self._names = tuple(names)
        self._values: dict[Labels, int] = {}

    def add(self, labels: Labels, number: int = 1) -> None:
        """Add to the number of these labels."""
        known = self._values.get(labels)
        if known is None and len(self._values) >= _MOST_SERIES:
            labels = ("other",) * len(self._names)
            known = self._values.get(labels)
        self._values[labels] = (known or 0) + number

    def exposed(self) -> str:
        """The text of this metric."""
        return exposed(self._name, "counter", self._help, self._names, self._values.items())


class LabelledHistogram:
    """Numbers of observations by size, per set of labels. `bounds`: the largest value of each bucket."""

    def __init__(self, name: str, help: str, names: Sequence[str], bounds: Sequence[float]) -> None:
        self._name = name
        self._help = help
        self._names = tuple(names)
        self._bounds = tuple(bounds)
        self._buckets: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def observe(self, labels: Labels, value: float) -> None:
        """Count one observation."""
        buckets = self._buckets.get(labels)
        if buckets is None:
            if len(self._buckets) >= _MOST_SERIES:
                labels = ("other",) * len(self._names)
            buckets = self._buckets.setdefault(labels, [0] * (len(self._bounds) + 1))
        buckets[bisect_left(self._bounds, value)] += 1
        self._sums[labels] = self._sums.get(labels, 0.0) + value

    def exposed(self) -> str:
        """The text of this metric."""
        lines: list[str] = []
        names = (*self._names, "le")
        for labels, buckets in self._buckets.items():
            total = 0
            for bound, number in zip((*self._bounds, None), buckets, strict=True):
                total += number
                shown = "+Inf" if bound is None else _number(bound)
                lines.append(f"{self._name}_bucket{_labels(names, (*labels, shown))} {total}")
            given = _labels(self._names, labels)
            lines.append(f"{self._name}_sum{given} {_number(self._sums[labels])}")
            lines.append(f"{self._name}_count{given} {total}")
        return _family(self._name, "histogram", self._help, lines)


def _family(name: str, kind: str, help: str, lines: list[str]) -> str:
    if not lines:
        return ""
    return "\n".join([f"# HELP {name} {help}", f"# TYPE {name} {kind}", *lines, ""])


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    if not names:
        return ""
    return (
        "{" + ",".join(f'{one}="{_escaped(value)}"' for one, value in zip(names, values, strict=True)) + "}"
    )


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
