"""Shows the demo while it runs: bars and a line per child process at a terminal, else a few plain lines."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from penstock.cli.show import note
from penstock.core.text import one_line

if TYPE_CHECKING:  # not imported for `penstock --help`
    from rich.table import Table

    from penstock.demo.children import ParsingChild
    from penstock.demo.demo_folder import DemoProgress

__all__ = ["display"]

_NAMES = {"parse": "files parsed (processes)", "read": "files hashed (threads)", "sum": "directories (async)"}
#: How often a terminal is redrawn per second: more would take CPU from the children.
_REDRAWS = 5
#: At most this many children are shown; characters of a file's path.
_SHOWN, _PATH = 16, 48
#: A child that ended its last job this long ago (s) and does nothing is not shown any more.
_GONE = 3.0


@contextlib.contextmanager
def display(*, quiet: bool) -> Iterator[Callable[[DemoProgress], None]]:
    """A function that shows the progress."""
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        with _live() as show:
            yield show
    else:
        yield _lines()


@contextlib.contextmanager
def _live() -> Iterator[Callable[[DemoProgress], None]]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bars = Progress(*columns, console=Console(stderr=True))
    rows = {queue: bars.add_task(name, total=None, visible=False) for queue, name in _NAMES.items()}
    children: Sequence[ParsingChild] = ()

    def picture() -> Any:
        return Group(bars, _table(children, time.monotonic()))

    with Live(console=bars.console, refresh_per_second=_REDRAWS, get_renderable=picture) as live:

        def show(progress: DemoProgress) -> None:
            nonlocal children
            children = progress.children
            for queue, n in progress.of.items():
                if n:
                    bars.update(rows[queue], total=n, completed=progress.done[queue], visible=True)
            if progress.news:
                live.console.print(Text(one_line(progress.news), style="bold"))

        yield show


def _table(children: Sequence[ParsingChild], now: float) -> Table:
    """A line per child: its worker, its jobs, how busy it is, and the file that it parses."""
    from rich.table import Table
    from rich.text import Text

    table = Table("child", "worker", "files", "busy", "parses", box=None, pad_edge=False)
    for child in [one for one in children if one.since or now - one.last < _GONE][:_SHOWN]:
        path = child.name if len(child.name) <= _PATH else "…" + child.name[1 - _PATH :]
        took = f"{path}  {(now - child.since) * 1000:.0f} ms" if child.since else "-"
        numbers = (child.pid, child.worker, child.jobs, f"{child.load(now):.0%}")
        table.add_row(*map(str, numbers), Text(one_line(took)))
    return table


def _lines() -> Callable[[DemoProgress], None]:
    """Print a line for every tenth of the work."""
    last_tenth = -1

    def show(progress: DemoProgress) -> None:
        nonlocal last_tenth
        done, of = sum(progress.done.values()), sum(progress.of.values())
        if of and done * 10 // of > last_tenth:
            last_tenth = done * 10 // of
            note(f"{done} of {of} jobs done{_parsed(progress.children)}")
        if progress.news:
            note(progress.news)

    return show


def _parsed(children: Sequence[ParsingChild]) -> str:
    """The files that each child has parsed."""
    now = time.monotonic()
    counts = [f"child {one.pid}: {one.jobs} ({one.load(now):.0%} busy)" for one in children[-_SHOWN:]]
    return "; parsed by " + ", ".join(counts) if counts else ""
