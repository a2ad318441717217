"""Tables of what was measured: for a terminal, for docs/benchmarks.md, and as JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.measures import Figure, Group
from benchmarks.rig import Setup

__all__ = ["Report"]


class Report:
    """The values of all repetitions, and the tables of their medians."""

    def __init__(self, setups: Sequence[Setup], groups: Sequence[Group], machine: str) -> None:
        self._setups = list(setups)
        self._groups = list(groups)
        self.machine = machine
        self._values: dict[tuple[str, str], list[float]] = {}
        self.failures: list[str] = []

    def add(self, setup: Setup, name: str, value: float) -> None:
        self._values.setdefault((setup.name, name), []).append(value)

    def failed(self, setup: Setup, group: Group, error: BaseException) -> None:
        self.failures.append(f"{group.name} on {setup.name}: {type(error).__name__}: {error}")

    def print(self) -> None:
        """For a terminal."""
        console = Console(width=None if Console().is_terminal else 160)
        console.print(self.machine, highlight=False)
        for group in self._groups:
            console.print(f"\n{group.title}", highlight=False, markup=False)
            table = Table(box=box.SIMPLE_HEAD)
            table.add_column("")
            for setup in self._setups:
                table.add_column(setup.name, justify="right")
            for title, cells in self._rows(group):
                table.add_row(title.replace("`", ""), *cells)
            console.print(table)
        for failure in self.failures:
            console.print(f"failed: {failure}", highlight=False, markup=False)

    def markdown(self) -> str:
        """A section of docs/benchmarks.md."""
        lines = ["## Results", "", self.machine + ".", ""]
        for group in self._groups:
            lines += [f"### {group.title}", ""]
            lines.append("| | " + " | ".join(setup.name for setup in self._setups) + " |")
            lines.append("| --- |" + " ---: |" * len(self._setups))
            for title, cells in self._rows(group):
                lines.append(f"| {title} | " + " | ".join(cells) + " |")
            lines.append("")
        lines += [f"Failed: {failure}" for failure in self.failures]
        return "\n".join(lines)

    def json(self) -> dict[str, Any]:
        """Every single value."""
        return {
            "machine": self.machine,
            "setups": {
                setup.name: {name: values for (of, name), values in self._values.items() if of == setup.name}
                for setup in self._setups
            },
            "failures": self.failures,
        }

    def _rows(self, group: Group) -> Iterator[tuple[str, list[str]]]:
        for figure in group.figures:
            cells = [self._cell(setup, figure) for setup in self._setups]
            if any(cells):
                yield figure.title, [cell or "–" for cell in cells]

    def _cell(self, setup: Setup, figure: Figure) -> str:
        """The median, the least and the most of several, and its share of the raw figure."""
        values = self._values.get((setup.name, figure.name))
        if not values:
            return ""
        text = _number(statistics.median(values), figure)
        if figure.unit != "/s":
            text += f" {figure.unit}"
        if len(values) > 1:
            text += f" ({_number(min(values), figure)}–{_number(max(values), figure)})"
        for name in figure.raw:
            raw = self._values.get((setup.name, name))
            if raw and name != figure.name:
                share = statistics.median(values) / statistics.median(raw) * 100
                of = "raw" if name.startswith("raw") else "the verb"
                return f"{text}, {share:.0f} % of {of}"
        return text


def _number(value: float, figure: Figure) -> str:
    if math.isnan(value):
        return "?"
    return f"{value:,.{figure.digits}f}".replace(",", " ")
