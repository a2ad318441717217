"""Penstock beside programs in Go and Ruby and other Python libraries: `python -m benchmarks.foreign`."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import click

from benchmarks.foreign.measure import Amounts, measure, version
from benchmarks.foreign.programs import PROGRAMS, Commands, Missing, Place
from benchmarks.machine import describe
from benchmarks.server import Server, describe_redis, redis_program
from benchmarks.venvs import DEFAULT_FOLDER

_USUAL, _QUICK = Amounts(jobs=20_000, calls=100, idle=1.0), Amounts(jobs=300, calls=5, idle=0.1)

#: The program whose rates are compared with the others', and the one that is left out of that.
_OURS, _OURS_TOO = "penstock", "penstock-threads"


class Column(NamedTuple):
    """A figure's name, its head in the table, and its number of decimals."""

    name: str
    head: str
    digits: int = 0


_COLUMNS = (
    Column("one", "enqueue one by one/s"),
    Column("callers", "many callers/s"),
    Column("drain", "drain/s"),
    Column("cpu", "worker, µs of CPU per job", 1),
    Column("redis_cpu", "Redis, µs of CPU per job", 1),
    Column("p50", "idle, p50 (ms)", 2),
    Column("p99", "p99 (ms)", 2),
)


def _chosen(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str]:
    names = value.split(",") if value else list(PROGRAMS)
    for name in names:
        if name not in PROGRAMS:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(PROGRAMS)}", ctx, param)
    return names


@click.command()
@click.option("--programs", "names", callback=_chosen, metavar="A,B", help=f"{', '.join(PROGRAMS)}.  [all]")
@click.option(
    "--reps", default=3, show_default=True, help="Repetitions; the table shows the median (min–max)."
)
@click.option(
    "--jobs", type=int, help="No-ops to enqueue and drain; Penstock drains ten times as many.  [20000]"
)
@click.option("--calls", type=int, help="Jobs whose latency is measured.  [100]")
@click.option("--enqueue-only", is_flag=True, help="Run no worker: measure enqueues alone, which is quick.")
@click.option("--quick", is_flag=True, help="Tiny sizes, one repetition: a test run without useful figures.")
@click.option("--python313", metavar="PATH", help="Python 3.13 or newer, for mayu and ardiq.  [from PATH]")
@click.option(
    "--venvs",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_FOLDER,
    show_default=True,
    help="Folder of the environments and built programs; they are kept for the next run.",
)
@click.option(
    "--json", "out", type=click.Path(path_type=Path, dir_okay=False), help="Also write all values to a file."
)
def main(
    names: list[str],
    reps: int,
    jobs: int | None,
    calls: int | None,
    enqueue_only: bool,
    quick: bool,
    python313: str | None,
    venvs: Path,
    out: Path | None,
) -> None:
    """Measure all programs in turn on one Redis server, and print a table in Markdown.

    A program that cannot run here is left out, with a line on stderr that says what is missing.
    """
    if redis_program() is None:
        raise click.ClickException("redis-server is not installed (try: make servers)")
    usual = _QUICK if quick else _USUAL
    amounts = Amounts(jobs or usual.jobs, calls or usual.calls, usual.idle, not enqueue_only)
    names = [name for name in names if PROGRAMS[name].enqueues or not enqueue_only]
    ready = _prepared(names, Place(venvs.resolve(), python313))
    versions = {name: version(commands) for name, commands in ready.items()}
    values: dict[str, dict[str, list[float]]] = {name: {} for name in ready}
    failures = []
    with tempfile.TemporaryDirectory(prefix="penstock-foreign-") as folder:
        server = Server(Path(folder))
        try:
            for rep in range(1 if quick else reps):
                for name, commands in ready.items():
                    if failed := _take(rep + 1, name, commands, server, amounts, values[name]):
                        failures.append(failed)
        finally:
            server.close()
    print(_markdown(values, versions, quick))
    for failed in failures:
        print(f"Failed: {failed}")
    if out:
        out.write_text(
            json.dumps({"machine": describe(), "versions": versions, "values": values}, indent=1) + "\n"
        )
    sys.exit(1 if any(failed.startswith("penstock") for failed in failures) else 0)


def _prepared(names: list[str], place: Place) -> dict[str, Commands]:
    """The programs that can run here."""
    ready = {}
    for name in names:
        try:
            ready[name] = PROGRAMS[name].prepare(place)
        except Missing as missing:
            print(f"{name} is left out: {missing}", file=sys.stderr)
    return ready


def _take(
    rep: int, name: str, commands: Commands, server: Server, amounts: Amounts, values: dict[str, list[float]]
) -> str | None:
    """Add the figures of one repetition. Returns what went wrong."""
    started = time.monotonic()
    print(f"{rep}: {name} ...", end="", file=sys.stderr, flush=True)
    try:
        figures = measure(PROGRAMS[name], commands, server, amounts)
    except Exception as error:
        print(f" failed: {error}", file=sys.stderr)
        return f"{name}: {error}"
    for figure, value in figures.items():
        values.setdefault(figure, []).append(value)
    print(f" {time.monotonic() - started:.1f} s", file=sys.stderr)
    return None


def _markdown(values: dict[str, dict[str, list[float]]], versions: dict[str, str], quick: bool) -> str:
    note = " QUICK: tiny sizes, the figures mean nothing." if quick else ""
    lines = [f"{describe()}, {describe_redis()}.{note}", ""]
    columns = [column for column in _COLUMNS if any(column.name in figures for figures in values.values())]
    lines.append("| | version | " + " | ".join(column.head for column in columns) + " |")
    lines.append("| --- | --- |" + " ---: |" * len(columns))
    for name, figures in values.items():
        cells = [_cell(figures.get(column.name, []), column.digits) for column in columns]
        lines.append(f"| {PROGRAMS[name].title} | {versions[name]} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *_ratios(values)])


def _ratios(values: dict[str, dict[str, list[float]]]) -> list[str]:
    """Penstock's rates as multiples of the others', of medians."""
    acts = {"drain": "drain", "one": "enqueue one by one", "callers": "enqueue from many callers"}
    lines = []
    for name, what in acts.items():
        medians = {of: statistics.median(figures[name]) for of, figures in values.items() if name in figures}
        medians.pop(_OURS_TOO, None)
        ours = medians.pop(_OURS, None)
        if ours and medians:
            shown = [f"{ours / median:.2f} × {of}" for of, median in medians.items()]
            lines.append(f"* Penstock's {what}: {', '.join(shown)}.")
    return lines


def _cell(values: list[float], digits: int) -> str:
    """The median (min–max)."""
    if not values:
        return "–"
    median, least, most = (
        f"{value:,.{digits}f}".replace(",", " ")
        for value in (statistics.median(values), min(values), max(values))
    )
    return f"{median} ({least}–{most})" if len(values) > 1 else median


if __name__ == "__main__":
    main()
