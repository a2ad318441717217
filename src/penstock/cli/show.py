"""How things are shown: JSON for machines, aligned text for pipes, tables for people at a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click
import msgspec

__all__ = ["age", "emit", "facts", "note", "span", "table"]


def emit(document: Any) -> None:
    """One JSON document on stdout; indented for a terminal."""
    text = msgspec.json.encode(document)
    if sys.stdout.isatty():
        text = msgspec.json.format(text, indent=2)
    click.echo(text.decode())


def note(text: str) -> None:
    """Something for people, beside the output."""
    click.echo(text, err=True)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str) -> None:
    """Rows under heads. Columns of numbers stand to the right; no id is ever cut."""
    if not rows:
        note(empty)
        return
    right = [all(_is_number(row[i]) for row in rows) for i in range(len(heads))]
    if sys.stdout.isatty():
        _rich_table(heads, rows, right)
        return
    widths = [max(len(head), *(len(row[i]) for row in rows)) for i, head in enumerate(heads)]
    for line in (heads, *rows):
        cells = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def facts(pairs: Sequence[tuple[str, str | None]]) -> None:
    """Names and values in two columns; what is None is left out."""
    shown = [(name, value) for name, value in pairs if value is not None]
    width = max(len(name) for name, _ in shown)
    for name, value in shown:
        click.echo(f"{click.style(name.ljust(width), dim=True)}  {value}")


def age(iso: str | None) -> str:
    """An instant as people say it: "3 s ago", "in 5 min"."""
    if iso is None:
        return ""
    try:
        seconds = time.time() - datetime.fromisoformat(iso).timestamp()
    except ValueError:
        return iso
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def span(seconds: float | None) -> str:
    """A length of time in one unit: "250 ms", "3 s", "12 min", "5 h", "8 d"."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, size, until in (("s", 1, 100), ("min", 60, 100), ("h", 3600, 48)):
        if seconds < size * until:
            return f"{seconds / size:.2g} {unit}" if seconds < 9.5 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


# ── private ──────────────────────────────────────────────────────────────────────────────────────


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "").isdigit() or cell in ("", "-")


def _rich_table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, header_style="bold", pad_edge=False)
    for head, to_right in zip(heads, right, strict=True):
        made.add_column(head, justify="right" if to_right else "left", no_wrap=head != heads[-1])
    for row in rows:
        made.add_row(*(Text(cell, style=_style(head, cell)) for head, cell in zip(heads, row, strict=True)))
    # only the last column may be folded: an id in pieces cannot be copied, so rather let the terminal wrap
    widths = [max(len(head), *(len(row[i]) for row in rows)) + 2 for i, head in enumerate(heads)]
    needed = sum(widths[:-1]) + min(widths[-1], 40)
    Console(width=max(Console().width, needed)).print(made, soft_wrap=True)


def _style(head: str, cell: str) -> str:
    return _STYLES.get(cell.partition(" ")[0], "") if head in ("STATE", "SWITCHES") else ""


_STYLES = {
    "running": "cyan",
    "completed": "green",
    "available": "blue",
    "retryable": "yellow",
    "dead": "red",
    "parked": "magenta",
    "waiting": "magenta",
    "cancelled": "dim",
    "paused": "yellow",
    "closed": "yellow",
}
