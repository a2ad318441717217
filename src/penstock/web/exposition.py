"""Counters and histograms with labels, the text format in which Prometheus reads them, and how the texts of
several processes become one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

#: The content type of the text format.
EXPOSITION = b"text/plain; version=0.0.4; charset=utf-8"
#: The most sets of labels of one metric; further ones are counted together, with "other" for each label.
_MOST_SERIES = 2_000

#: The buckets (s) of calls of a store.
CALL_BOUNDS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

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

    def exposed(self, name: str = "") -> str:
        """The text of this metric, under another name if one is given."""
        return exposed(name or self._name, "counter", self._help, self._names, self._values.items())


class LabelledHistogram:
    """Numbers of observations by size, per set of labels. `bounds`: the largest value of each bucket."""

    def __init__(self, name: str, help: str, names: Sequence[str], bounds: Sequence[float]) -> None:
        self._name = name
        self._help = help
        self._names = tuple(names)
        self._bounds = tuple(bounds)
        self._series: dict[Labels, _Series] = {}

    def observe(self, labels: Labels, value: float) -> None:
        """Count one observation."""
        series = self._series.get(labels)
        if series is None:
            if len(self._series) >= _MOST_SERIES:
                labels = ("other",) * len(self._names)
            series = self._series.setdefault(labels, _Series(len(self._bounds) + 1))
        series.buckets[bisect_left(self._bounds, value)] += 1
        series.total += value

    def exposed(self) -> str:
        """The text of this metric."""
        samples = [(labels, series.buckets, series.total) for labels, series in self._series.items()]
        return exposed_histogram(self._name, self._help, self._names, self._bounds, samples)


class _Series:
    """The observations of one set of labels: their number in each bucket, and their sum."""

    __slots__ = ("buckets", "total")

    def __init__(self, buckets: int) -> None:
        self.buckets = [0] * buckets
        self.total = 0.0


def exposed_histogram(
    name: str,
    help: str,
    names: Sequence[str],
    bounds: Sequence[float],
    samples: Iterable[tuple[Labels, Sequence[int], float]],
) -> str:
    """One histogram: per set of labels the number of observations in each bucket, and their sum."""
    lines: list[str] = []
    for labels, buckets, total in samples:
        number = 0
        for bound, more in zip((*bounds, None), buckets, strict=True):
            number += more
            shown = "+Inf" if bound is None else _number(bound)
            lines.append(f"{name}_bucket{_labels((*names, 'le'), (*labels, shown))} {number}")
        given = _labels(names, labels)
        lines.append(f"{name}_sum{given} {_number(total)}")
        lines.append(f"{name}_count{given} {number}")
    return _family(name, "histogram", help, lines)


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


# ── metrics of other processes of the same server ────────────────────────────────────────────────


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
        lines += [f"{series} {_number(value)}" for series, value in samples.items()]
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
