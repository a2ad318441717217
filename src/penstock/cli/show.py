"""Output of all commands: JSON for programs, aligned text for pipes, coloured tables for terminals.

All commands print with these functions, because they escape untrusted text.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click
import msgspec

from penstock.core.job import State
from penstock.core.text import block, json_escaped, one_line

__all__ = [
    "age",
    "ask",
    "brief",
    "close_streams",
    "counted",
    "emit",
    "facts",
    "labelled",
    "note",
    "prepare_streams",
    "say",
    "say_lines",
    "span",
    "status",
    "table",
]


def prepare_streams() -> None:
    """Make stdout and stderr accept all characters, and open closed streams on the null device."""
    _open_closed_ones()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _open_closed_ones() -> None:
    """Open closed standard streams, so that no other file or socket gets the number of a stream."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(nowhere, True)


def close_streams() -> None:
    """Flush stdout and stderr. After an error, discard the rest, or Python would try again at exit."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def emit(document: Any) -> None:
    """Print a JSON document on stdout, indented at a terminal."""
    try:
        text = msgspec.json.encode(document).decode()
    except UnicodeEncodeError:  # an argument of the command need not be UTF-8
        text = msgspec.json.encode(_whole(msgspec.to_builtins(document))).decode()
    if _at_terminal():
        text = msgspec.json.format(text, indent=2)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.echo(json_escaped(text, ascii=encoding.replace("-", "").lower() != "utf8"))


def say(text: str = "", *, err: bool = False, **style: Any) -> None:
    """Print one line on stdout, in a style of click."""
    click.echo(click.style(one_line(text), **style), err=err)


def labelled(label: str, text: str, **style: Any) -> None:
    """Print one line on stdout with a label; only the label is styled."""
    click.echo(f"{click.style(one_line(label), **style)}  {one_line(text)}")


def say_lines(text: str, *, err: bool = False) -> None:
    """Print text of several lines, e.g. a traceback."""
    click.echo(block(text), err=err)


def note(text: str) -> None:
    """Print a note on stderr."""
    say(text, err=True)


def status(text: str) -> None:
    """Replace the status line at a terminal, on stderr."""
    import shutil  # it imports the modules of all archive formats

    width = shutil.get_terminal_size().columns - 1
    click.echo(f"\r\x1b[2K{one_line(text)[:width]}", nl=False, err=True)


def ask(question: str) -> None:
    """Ask a question; abort the command unless the answer is yes."""
    if sys.stdin is None:  # no answer is possible
        raise click.Abort
    click.confirm(one_line(question), abort=True, err=True)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str) -> None:
    """Print a table, or `empty` if there are no rows. Numbers are right-aligned; ids are never cut."""
    if not rows:
        note(empty)
        return
    rows = [[one_line(cell) for cell in row] for row in rows]
    right = [all(_is_number(row[i]) for row in rows) for i in range(len(heads))]
    if _at_terminal():
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
    """Print names and values in two columns, without the values that are None."""
    shown = [(name, value) for name, value in pairs if value is not None]
    width = max(len(name) for name, _ in shown)
    for name, value in shown:
        labelled(name.ljust(width), value, dim=True)


def age(iso: str | None) -> str:
    """An instant relative to now: "3 s ago", "in 5 min"."""
    if iso is None:
        return ""
    try:
        seconds = time.time() - datetime.fromisoformat(iso).timestamp()
    except ValueError:
        return iso
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def counted(n: int, noun: str) -> str:
    """A number with its noun: "1 job", "2,000 jobs"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def span(seconds: float | None) -> str:
    """A duration in one unit: "250 ms", "3 s", "12 min", "5 h", "8 d"."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, size, until in (("s", 1, 100), ("min", 60, 100), ("h", 3600, 48)):
        if seconds < size * until:
            return f"{seconds / size:.2g} {unit}" if seconds < 9.5 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def brief(seconds: float | None) -> str:
    """A duration in as few characters as possible: "250µs", "3.1ms", "12s", "5h"."""
    if seconds is None:
        return "-"
    if seconds < 1e-6:
        return "0"
    for unit, size, until in (("µs", 1e-6, 1e-3), ("ms", 1e-3, 1.0), ("s", 1.0, 100.0), ("m", 60.0, 6_000.0)):
        if seconds < until:
            return f"{seconds / size:.2g}{unit}" if seconds < 9.5 * size else f"{seconds / size:.0f}{unit}"
    return f"{seconds / 3_600:.0f}h" if seconds < 172_800 else f"{seconds / 86_400:.0f}d"


# ── private ──────────────────────────────────────────────────────────────────────────────────────


def _at_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()  # None after `>&-`


def _whole(value: Any) -> Any:
    """The value with lone surrogates, which no encoding accepts, written as escapes."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {_whole(name): _whole(one) for name, one in value.items()}
        case list():
            return [_whole(one) for one in value]
    return value


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
    # only the last column may be folded: an id in pieces cannot be copied
    widths = [max(len(head), *(len(row[i]) for row in rows)) + 2 for i, head in enumerate(heads)]
    needed = sum(widths[:-1]) + min(widths[-1], 40)
    Console(width=max(Console().width, needed)).print(made, soft_wrap=True)


def _style(head: str, cell: str) -> str:
    return _STYLES.get(cell.partition(" ")[0].rstrip(","), "") if head in ("STATE", "STATUS") else ""


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
