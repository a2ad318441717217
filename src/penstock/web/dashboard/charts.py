"""The geometry of charts: numbers become paths of an SVG element that is 100 high."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from penstock.stores.contract import Resolution

_HIGH = 100.0
T = TypeVar("T")


class _Period(Protocol):
    @property
    def at(self) -> int: ...


P = TypeVar("P", bound=_Period)

#: Room above the highest value, so that its line is not cut.
_TOP = 4.0


@dataclass(frozen=True)
class Series:
    """One series: its name, the class of its colour, and its path."""

    name: str
    colour: str
    path: str
    area: str = ""


@dataclass(frozen=True)
class Mark:
    """Where a pointer finds the values of one period: its left edge and width, and the text."""

    x: float
    width: float
    says: str


@dataclass(frozen=True)
class Chart:
    """A chart that is `width` wide and 100 high. `top`: the value at the upper edge, as text."""

    width: float
    series: list[Series]
    marks: list[Mark]
    top: str
    first: str
    last: str
    says: str
    empty: bool = False
    facts: list[tuple[str, str, str]] = field(default_factory=list)


def filled(periods: Sequence[P], by: Resolution, count: int, now: int) -> list[tuple[int, P | None]]:
    """The last `count` periods, oldest first, each with its start (ms); None where nothing happened."""
    known = {one.at // by.length: one for one in periods}
    last = max([now // by.length, *known])
    return [(n * by.length, known.get(n)) for n in range(last - count + 1, last + 1)]


def bar_chart(
    values: Sequence[tuple[int, T | None]],
    series: Sequence[tuple[str, str, Callable[[T], float | None]]],
    *,
    by: Resolution,
    shown: Callable[[float], str],
    line: tuple[str, str, Sequence[float | None]] | None = None,
) -> Chart:
    """Stacked bars: each series on the one before it. `line`: a series that is drawn over them."""
    rows = [[0.0 if one is None else read(one) or 0.0 for _, _, read in series] for _, one in values]
    over = [] if line is None else [0.0 if v is None else v for v in line[2]]
    most = max([*(sum(row) for row in rows), *over], default=0.0)
    paths = ["" for _ in series]
    for n, row in enumerate(rows):
        base = _HIGH
        for k, value in enumerate(row):
            if value:
                high = max(1.5, value / most * (_HIGH - _TOP))
                base -= high
                paths[k] += f"M{n * 10 + 1:g} {base + high:.1f}v-{high:.1f}h8v{high:.1f}z"
    made = [Series(name, colour, path) for (name, colour, _), path in zip(series, paths, strict=True)]
    says = [
        f"{_clock(at, by)} · "
        + " · ".join(f"{name} {shown(v)}" for (name, _, _), v in zip(series, row, strict=True))
        for (at, _), row in zip(values, rows, strict=True)
    ]
    sums = [sum(row[k] for row in rows) for k in range(len(series))]
    facts = [(name, colour, shown(n)) for (name, colour, _), n in zip(series, sums, strict=True)]
    if line is not None:
        name, colour, column = line
        made.append(_line(name, colour, column, most))
        says = [f"{text} · {name} {_known(v, shown)}" for text, v in zip(says, column, strict=True)]
        facts.append((name, colour, shown(sum(over))))
    return _chart(values, made, says, most, by, shown, facts, empty=not most)


def area_chart(
    values: Sequence[tuple[int, T | None]],
    series: Sequence[tuple[str, str, Callable[[T], float | None]]],
    *,
    by: Resolution,
    shown: Callable[[float], str],
) -> Chart:
    """Lines over their areas, which have gaps where nothing was measured."""
    columns = [[None if one is None else read(one) for _, one in values] for _, _, read in series]
    most = max((v for column in columns for v in column if v is not None), default=0.0)
    made = [
        _line(name, colour, column, most) for (name, colour, _), column in zip(series, columns, strict=True)
    ]
    says = []
    for n, (at, _) in enumerate(values):
        parts = [
            f"{name} {_known(column[n], shown)}" for (name, _, _), column in zip(series, columns, strict=True)
        ]
        says.append(f"{_clock(at, by)} · " + " · ".join(parts))
    facts = []
    for (name, colour, _), column in zip(series, columns, strict=True):
        latest = next((v for v in reversed(column) if v is not None), None)
        facts.append((name, colour, _known(latest, shown)))
    empty = all(v is None for column in columns for v in column)
    return _chart(values, made, says, most, by, shown, facts, empty=empty)


def spark(numbers: Sequence[float]) -> str:
    """The path of a small line, 100 wide and 20 high; "" for fewer than two numbers."""
    if len(numbers) < 2:
        return ""
    most, step = max(numbers) or 1.0, 100 / (len(numbers) - 1)
    return "M" + "L".join(f"{n * step:.1f} {19 - v / most * 18:.1f}" for n, v in enumerate(numbers))


def _known(value: float | None, shown: Callable[[float], str]) -> str:
    return "–" if value is None else shown(value)


def _line(name: str, colour: str, column: Sequence[float | None], most: float) -> Series:
    path = area = ""
    run: list[tuple[float, float]] = []
    for n, value in enumerate([*column, None]):
        if value is not None:
            run.append((n * 10 + 5, _HIGH - value / (most or 1.0) * (_HIGH - _TOP)))
        elif run:
            if len(run) == 1:  # a line of one point is not visible
                run = [(run[0][0] - 4, run[0][1]), (run[0][0] + 4, run[0][1])]
            points = "L".join(f"{x:g} {y:.1f}" for x, y in run)
            path += f"M{points}"
            area += f"M{run[0][0]:g} 100L{points}L{run[-1][0]:g} 100z"
            run = []
    return Series(name, colour, path, area)


def _chart(
    values: Sequence[tuple[int, object]],
    series: list[Series],
    says: list[str],
    most: float,
    by: Resolution,
    shown: Callable[[float], str],
    facts: list[tuple[str, str, str]],
    *,
    empty: bool,
) -> Chart:
    marks = [Mark(n * 10, 10, text) for n, text in enumerate(says)]
    summary = "; ".join(f"{name} {text}" for name, _, text in facts)
    return Chart(
        width=len(values) * 10,
        series=series,
        marks=marks,
        top=shown(most),
        first=_clock(values[0][0], by) if values else "",
        last=_clock(values[-1][0], by) if values else "",
        says=summary,
        empty=empty,
        facts=facts,
    )


def _clock(at: int, by: Resolution) -> str:
    instant = datetime.fromtimestamp(at / 1000, UTC)
    return f"{instant:%b %d}" if by is Resolution.DAY else f"{instant:%H:%M}"
