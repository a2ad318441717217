"""Output of all commands: JSON for programs, aligned text for pipes, coloured tables for terminals.

All commands print with these functions, because they escape untrusted text.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import click
import msgspec

from penstock.core.text import block, json_escaped, one_line

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
    return _styles().get(cell.partition(" ")[0].rstrip(","), "") if head in ("STATE", "STATUS") else ""


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


@cache
def _styles() -> dict[str, str]:
    """Styles of cells: states of jobs and of queues."""
    from penstock.core.job import State  # this module is part of every command, also of a help page

    return {
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


_NO_ANSWER = "no answer on stdin: --yes does it without a question"


def emit(document: Any, *, on_one_line: bool = False) -> None:
    """Print a JSON document on stdout, indented at a terminal unless it is one of many."""
    if not _is_plain(document):
        from penstock.inspector.as_json import as_json  # what the inspector answers has been imported with it

        document = as_json(document)
    try:
        text = msgspec.json.encode(document).decode()
    except UnicodeEncodeError:  # an argument of the command need not be UTF-8
        text = msgspec.json.encode(_whole(msgspec.to_builtins(document))).decode()
    if at_terminal() and not on_one_line:
        text = msgspec.json.format(text, indent=2)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.echo(json_escaped(text, ascii=encoding.replace("-", "").lower() != "utf8"))


def _is_plain(document: Any) -> bool:
    """Whether the document has nothing that JSON does not have."""
    match document:
        case dict():
            return all(map(_is_plain, document.values()))
        case list() | tuple():
            return all(map(_is_plain, document))
    return document is None or isinstance(document, (str, int, float, bool))


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
    # `color`: control sequences that move the cursor are no colours, and stay with NO_COLOR
    click.echo(f"\r\x1b[2K{one_line(text)[: _size().columns - 1]}", nl=False, err=True, color=True)


def repaint(frame: str, *, in_place: bool, first: bool) -> None:
    """Print lines that were printed before. `in_place`: at a terminal, over the lines before, as many as fit.

    The `first` time, what the terminal shows is scrolled away.
    """
    if not in_place:
        click.echo(frame, nl=False)
        return
    from rich.cells import cell_len

    size = _size()
    lines, left = [], size.lines - 1
    for line in frame.splitlines():
        left -= max(1, -(-cell_len(click.unstyle(line)) // size.columns))
        if left < 1:
            lines.append("…\x1b[K")
            break
        lines.append(f"{line}\x1b[K")
    away = "\n" * (size.lines - 1) if first else ""
    click.echo(f"{away}\x1b[H" + "\n".join(lines) + "\n\x1b[J", nl=False, color=True)


def ask(question: str) -> None:
    """Ask a question; abort the command unless the answer is yes. All commands that ask have --yes."""
    stdin = sys.stdin
    if stdin is None:
        raise click.ClickException(_NO_ANSWER)
    try:
        yes = click.confirm(one_line(question), err=True)
    except click.Abort:  # Ctrl-C, or the end of the input
        click.echo(err=True)
        if stdin.isatty():
            raise
        raise click.ClickException(_NO_ANSWER) from None
    if not yes:
        raise click.Abort


def at_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()  # None after `>&-`


def table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str, spare: Sequence[str] = ()
) -> None:
    """Print a table, or `empty` if there are no rows. Numbers are right-aligned; ids are never cut.

    `spare`: columns that a narrow terminal does not show, the first of these first; a note names them. If the
    others do not fit either, each row is shown in lines of a heading and a value.
    """
    if not rows:
        note(empty)
        return

    rows = [[one_line(cell) for cell in row] for row in rows]
    if not at_terminal():
        click.echo("\n".join(aligned(heads, rows)))
        return
    width = _size().columns
    fitted = fit(heads, rows, spare, width)
    if fitted.total > width:
        _rows_apart(heads, rows)
        return
    click.echo(coloured(heads, rows, fitted))
    if fitted.left_out:
        note(f"the terminal is too narrow for {', '.join(fitted.left_out)}")


def facts(pairs: Sequence[tuple[str, str | None]]) -> None:
    """Print names and values in two columns, without the values that are None."""

    shown = [(one_line(name), value) for name, value in pairs if value is not None]
    width = max(cells(name) for name, _ in shown)
    for name, value in shown:
        labelled(padded(name, width), value, dim=True)


# ── private ──────────────────────────────────────────────────────────────────────────────────────


def _rows_apart(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print the rows one below the other, without their empty cells."""
    for n, row in enumerate(rows):
        if n:
            say()
        facts([(head, cell or None) for head, cell in zip(heads, row, strict=True)])


def _size() -> os.terminal_size:
    import shutil  # it imports the modules of all archive formats

    return shutil.get_terminal_size()


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
