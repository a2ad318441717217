"""`python -m benchmarks`: measure every store, and print tables with ratios to its raw limit."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.machine import describe
from benchmarks.measures import GROUPS, Group, Lab
from benchmarks.measures.figure import QUICK, Sizes
from benchmarks.report import Report
from benchmarks.rig import Setup

SETUPS = {
    "sqlite": (Setup("sqlite", "full"), Setup("sqlite", "normal")),
    "memory": (Setup("memory"),),
}


def _chosen(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str]:
    """Names joined by commas, of those that there are."""
    known: Sequence[str] = list(SETUPS) if param.name == "stores" else list(GROUPS)
    names = list(known) if value is None else value.split(",")
    for name in names:
        if name not in known:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(known)}", ctx, param)
    return names


@click.command()
@click.option("--store", "stores", callback=_chosen, metavar="A,B", help="sqlite, memory.  [all]")
@click.option("--durability", type=click.Choice(["full", "normal"]), help="Of SQLite.  [both]")
@click.option("--only", "groups", callback=_chosen, metavar="A,B", help=f"{', '.join(GROUPS)}.  [all]")
@click.option("--reps", default=3, show_default=True, help="Repetitions; tables show the median (min–max).")
@click.option("--quick", is_flag=True, help="Tiny amounts, once: does it work? The figures mean nothing.")
@click.option("--concurrency", type=int, help="Slots of the workers.  [Penstock's default, 20]")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where the files go: a folder on the disk to be measured.  [the system's for temporary files]",
)
@click.option("--markdown", is_flag=True, help="Print the tables as docs/benchmarks.md has them.")
@click.option(
    "--json", "out", type=click.Path(path_type=Path, dir_okay=False), help="Also write every value there."
)
def main(
    stores: list[str],
    durability: str | None,
    groups: list[str],
    reps: int,
    quick: bool,
    concurrency: int | None,
    folder: Path | None,
    markdown: bool,
    out: Path | None,
) -> None:
    """Measure Penstock on this machine. Repetitions go round all stores before the next one begins, so that
    a slow phase of the machine hits all alike."""
    setups = [
        s for store in stores for s in SETUPS[store] if s.durability in ("", durability or s.durability)
    ]
    chosen = [GROUPS[name] for name in groups]
    sizes = QUICK if quick else Sizes()
    note = ". QUICK: tiny amounts, the figures mean nothing" if quick else ""
    report = Report(setups, chosen, describe() + note)
    for rep in range(1 if quick else reps):
        for group in chosen:
            for setup in setups:
                lab = Lab(setup, folder or Path(tempfile.gettempdir()), sizes, concurrency)
                _take(report, group, lab, rep + 1)
    if markdown:
        print(report.markdown())
    else:
        report.print()
    if out:
        out.write_text(json.dumps(report.json(), indent=1) + "\n")
    sys.exit(1 if report.failures else 0)


def _take(report: Report, group: Group, lab: Lab, rep: int) -> None:
    started = time.monotonic()
    print(f"{rep}: {group.name} on {lab.setup.name} ...", end="", file=sys.stderr, flush=True)
    try:
        for name, value in group.take(lab):
            report.add(lab.setup, name, value)
    except Exception as error:
        report.failed(lab.setup, group, error)
        print(f" failed: {error}", file=sys.stderr)
    else:
        print(f" {time.monotonic() - started:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
