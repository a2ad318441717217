"""Tables of the results: for a terminal, for docs/benchmarks.md, and as JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.measures import Figure, FigureGroup
from benchmarks.rig import Setup

__all__ = ["Report"]


class Report:
    """The values of all repetitions, and the tables of their medians."""

    def __init__(self, setups: Sequence[Setup], groups: Sequence[FigureGroup], machine: str) -> None:
        self._setups = list(setups)
        self._groups = list(groups)
        self.machine = machine
        self._values: dict[tuple[str, str, str], list[float]] = {}
        self._notes: dict[str, dict[str, None]] = {}  # each note once, in order
        self.failures: list[str] = []

    def add(self, setup: Setup, group: FigureGroup, name: str, value: float | str) -> None:
        if isinstance(value, str):
            self._notes.setdefault(group.name, {})[f"{setup.name}: {value}"] = None
        else:
            self._values.setdefault((setup.name, group.name, name), []).append(value)

    def failed(self, setup: Setup, group: FigureGroup, error: BaseException) -> None:
        self.failures.append(f"{group.name} on {setup.name}: {type(error).__name__}: {error}")

    def print(self) -> None:
        """Print the tables for a terminal."""
        console = Console(width=None if Console().is_terminal else 160)
        console.print(self.machine, highlight=False)
        for group in self._groups:
            console.print(f"\n{group.title}", highlight=False, markup=False)
            table = Table(box=box.SIMPLE_HEAD)
            table.add_column("")
            for head in self._heads(group):
                table.add_column(head, justify="right")
            for title, cells in self._rows(group):
                table.add_row(title.replace("`", ""), *cells)
            console.print(table)
            for note in self._notes.get(group.name, {}):
                console.print(note, highlight=False, markup=False)
        for failure in self.failures:
            console.print(f"failed: {failure}", highlight=False, markup=False)

    def markdown(self) -> str:
        """The tables as a section of docs/benchmarks.md."""
        lines = ["## Results", "", self.machine + ".", ""]
        for group in self._groups:
            lines += [f"### {group.title}", ""]
            heads = self._heads(group)
            lines.append("| | " + " | ".join(heads) + " |")
            lines.append("| --- |" + " ---: |" * len(heads))
            for title, cells in self._rows(group):
                lines.append(f"| {title} | " + " | ".join(cells) + " |")
            lines += ["", *(f"{note}\n" for note in self._notes.get(group.name, {}))]
        lines += [f"Failed: {failure}" for failure in self.failures]
        return "\n".join(lines)

    def json(self) -> dict[str, Any]:
        """All values, for JSON."""
        return {
            "machine": self.machine,
            "setups": {
                setup.name: {
                    f"{group}.{name}": values
                    for (of, group, name), values in self._values.items()
                    if of == setup.name
                }
                for setup in self._setups
            },
            "notes": {group: list(notes) for group, notes in self._notes.items()},
            "failures": self.failures,
        }

    def _suited(self, group: FigureGroup) -> list[Setup]:
        return [setup for setup in self._setups if group.suits(setup)]

    def _heads(self, group: FigureGroup) -> list[str]:
        return [
            f"{setup.name}: {head}" if head else setup.name
            for setup in self._suited(group)
            for _, head in group.columns
        ]

    def _rows(self, group: FigureGroup) -> Iterator[tuple[str, list[str]]]:
        for figure in group.figures:
            cells = [
                self._cell(setup, group, msgspec.structs.replace(figure, name=figure.name + suffix))
                for setup in self._suited(group)
                for suffix, _ in group.columns
            ]
            if any(cells):
                yield figure.title, [cell or "–" for cell in cells]

    def _cell(self, setup: Setup, group: FigureGroup, figure: Figure) -> str:
        """The median (min–max), its share of the raw figure, and its share of the figure without a delay."""
        values = self._values.get((setup.name, group.name, figure.name))
        if not values:
            return ""
        text = _number(statistics.median(values), figure)
        if figure.unit not in ("/s", ""):
            text += f" {figure.unit}"
        if len(values) > 1:
            text += f" ({_number(min(values), figure)}–{_number(max(values), figure)})"
        for name in figure.raw:
            raw = self._values.get((setup.name, group.name, name))
            if raw and name != figure.name:
                of = "raw" if name.startswith("raw") else "the verb"
                text += f", {_share(values, raw)} of {of}"
                break
        undelayed = self._values.get((setup.undelayed.name, group.name, figure.name))
        if setup.delay_ms is not None and undelayed and figure.unit == "/s":
            text += f", {_share(values, undelayed)} of undelayed"
        return text


def _share(values: Sequence[float], of: Sequence[float]) -> str:
    whole = statistics.median(of)
    return f"{statistics.median(values) / whole * 100:.0f} %" if whole else "?"


def _number(value: float, figure: Figure) -> str:
    if math.isnan(value):
        return "?"
    return f"{value:,.{figure.digits}f}".replace(",", " ")
