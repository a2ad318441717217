"""Output of all commands: JSON for programs, aligned text for pipes, coloured tables for terminals.

All commands print with these functions, because they escape untrusted text.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from penstock.core.text import block, json_escaped, one_line

__all__ = [
    "ask",
    "at_terminal",
    "emit",
    "facts",
    "labelled",
    "note",
    "repaint",
    "say",
    "say_lines",
    "status",
    "table",
]

_NO_ANSWER = "no answer on stdin: --yes does it without a question"


def emit(document: Any, *, on_one_line: bool = False) -> None:
    """Print a JSON document on stdout, indented at a terminal unless it is one of many."""
    try:
        text = msgspec.json.encode(document).decode()
    except UnicodeEncodeError:  # an argument of the command need not be UTF-8
        text = msgspec.json.encode(_whole(msgspec.to_builtins(document))).decode()
    if at_terminal() and not on_one_line:
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
    from penstock.cli.tables import aligned, coloured, fit

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
    from penstock.cli.tables import cells, padded

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
