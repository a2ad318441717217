"""Tables as text: aligned for pipes, coloured and fitted to the width of a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from penstock.core.job import State

__all__ = ["Fit", "aligned", "cells", "coloured", "fit", "justify", "padded", "style"]

#: Columns that are never folded, because an id in pieces cannot be copied.
_IDS = frozenset({"ID", "JOB", "WORKER", "FLOW", "NODE", "CURSOR"})
#: Columns with text are folded to this width, or to that of their heading.
_NARROWEST = 10
#: The first column, a name, is at least this wide.
_NARROWEST_NAME = 16
#: The last column is at least this wide if nothing fits.
_LAST = 40


class Fit(NamedTuple):
    """The columns that are shown, by number, the width of each, and the headings of those left out."""

    columns: list[int]
    widths: list[int]
    left_out: list[str]

    @property
    def total(self) -> int:
        """The width of the table, with two spaces between its columns."""
        return sum(self.widths) + 2 * (len(self.widths) - 1)


def cells(text: str) -> int:
    """How many cells of a terminal a text takes: a Chinese character two, a combining accent none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # a table in a pipe seldom needs it

    return cell_len(text)


def padded(text: str, width: int, *, right: bool = False) -> str:
    """The text with spaces up to a width: after it, or `right`: before it."""
    spaces = " " * (width - cells(text))
    return spaces + text if right else text + spaces


def fit(heads: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str], width: int) -> Fit:
    """Choose columns and widths for a terminal of this width.

    Text is folded first; then the columns `spare` are left out, in this order. If the rest is too wide, all
    columns are chosen, and `Fit.total` is more than the width.
    """
    natural = [max([len(head), *(cells(row[n]) for row in rows)]) for n, head in enumerate(heads)]
    least = [
        wide
        if heads[n] in _IDS or _is_numeric(rows, n)
        else min(wide, max(_NARROWEST if n else _NARROWEST_NAME, len(heads[n])))
        for n, wide in enumerate(natural)
    ]
    natural = [max(less, min(wide, width)) for less, wide in zip(least, natural, strict=True)]
    left_out: list[str] = []
    for head in (None, *spare):
        if head is not None and head in heads:
            left_out.append(head)
        shown = [n for n, one in enumerate(heads) if one not in left_out]
        room = width - 2 * (len(shown) - 1)
        if sum(least[n] for n in shown) <= room:
            return Fit(shown, _shared([natural[n] for n in shown], [least[n] for n in shown], room), left_out)
    return Fit([*range(len(heads))], [*natural[:-1], min(natural[-1], _LAST)], [])


def aligned(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table without colours, for a pipe."""
    widths = [max(len(head), *(cells(row[i]) for row in rows)) for i, head in enumerate(heads)]
    right = [_is_numeric(rows, n) for n in range(len(heads))]
    return [
        "  ".join(
            padded(cell, width, right=to_right)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in (heads, *rows)
    ]


def coloured(heads: Sequence[str], rows: Sequence[Sequence[str]], fitted: Fit) -> str:
    """A table with the control sequences of the terminal on stdout."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for n, width in zip(fitted.columns, fitted.widths, strict=True):
        made.add_column(heads[n], justify=justify(rows, n), width=width, overflow="fold")
    for row in rows:
        made.add_row(*(Text(row[n], style=style(heads[n], row[n])) for n in fitted.columns))
    console = Console(width=sum(fitted.widths) + 2 * len(fitted.widths))
    with console.capture() as captured:
        console.print(made, soft_wrap=True)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def justify(rows: Sequence[Sequence[str]], column: int) -> Literal["left", "right"]:
    """How a column is aligned, for rich: numbers to the right."""
    return "right" if _is_numeric(rows, column) else "left"


def style(head: str, cell: str) -> str:
    """The style of a cell, for rich."""
    return _STYLES.get(cell.partition(" ")[0].rstrip(","), "") if head in ("STATE", "STATUS") else ""


# ── private ──────────────────────────────────────────────────────────────────────────────────────


def _shared(natural: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """The widths: what is missing is taken from the widest columns that may be folded."""
    widths = list(natural)
    while sum(widths) > room:
        widest = max((n for n in range(len(widths)) if widths[n] > least[n]), key=lambda n: widths[n])
        widths[widest] -= 1
    return widths


def _is_numeric(rows: Sequence[Sequence[str]], column: int) -> bool:
    """Whether a column has only numbers."""
    return all(_is_number(row[column]) for row in rows)


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "").isdigit() or cell in ("", "-")


_STYLES: dict[str, str] = {
    State.SCHEDULED: "blue",
    State.AVAILABLE: "blue",
    State.RUNNING: "cyan",
    State.RETRYABLE: "yellow",
    State.COMPLETED: "green",
    State.CANCELLED: "dim",
    State.DEAD: "red",
    State.PARKED: "magenta",
    State.WAITING: "magenta",
    State.COLLECTING: "magenta",
    State.SUSPENDED: "magenta",
    "paused": "yellow",
    "closed": "yellow",
}
