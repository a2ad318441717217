"""`python -m benchmarks`: measure every store, and print tables with ratios to its raw limit."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from benchmarks.machine import describe
from benchmarks.measures import GROUPS, BatchTerms, Lab
from benchmarks.measures.figure import QUICK, Sizes
from benchmarks.report import Report
from benchmarks.rig import Setup
from benchmarks.server import describe_redis, redis_program

SETUPS = {
    "sqlite": (Setup("sqlite", "full"), Setup("sqlite", "normal")),
    "redis": (Setup("redis"), Setup("redis", "aof")),
    "memory": (Setup("memory"),),
}
#: What is left out unless it is asked for.
_ON_DEMAND = Setup("redis", "aof")


def _setups(stores: Sequence[str], durability: str | None, delays: Sequence[float]) -> list[Setup]:
    """Of each store those of this durability, or those that have no choice of it."""
    found = []
    for store in stores:
        named = [setup for setup in SETUPS[store] if setup.durability == durability]
        usual = [setup for setup in SETUPS[store] if setup != _ON_DEMAND]
        if durability is None:
            found += usual
        else:
            found += named or [setup for setup in usual if not setup.durability]
    return found + [
        Setup(s.store, s.durability, delay) for s in found if s.store == "redis" for delay in delays
    ]


def _chosen(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str]:
    """Names joined by commas, of those that there are."""
    known: Sequence[str] = list(SETUPS) if param.name == "stores" else list(GROUPS)
    if value is None:
        if param.name == "stores" and redis_program() is None:
            print("no redis-server here: Redis is left out", file=sys.stderr)
            return [name for name in known if name != "redis"]
        return list(known)
    names = value.split(",")
    if param.name == "stores" and "redis" in names and redis_program() is None:
        raise click.BadParameter("there is no redis-server here (try: make servers)", ctx, param)
    for name in names:
        if name not in known:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(known)}", ctx, param)
    return names


def _milliseconds(ctx: click.Context, param: click.Parameter, value: str | None) -> list[float]:
    try:
        return [float(part) for part in value.split(",")] if value else []
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers", ctx, param) from None


@click.command()
@click.option("--store", "stores", callback=_chosen, metavar="A,B", help="sqlite, redis, memory.  [all]")
@click.option(
    "--durability",
    type=click.Choice(["full", "normal", "aof"]),
    help="full, normal: SQLite's  [both]; aof: Redis with an append-only file, synced every second  [none]",
)
@click.option(
    "--delay-ms",
    "delays",
    callback=_milliseconds,
    metavar="A,B",
    help="Also with Redis behind a wire that makes each round trip so much longer (0: the proxy alone).",
)
@click.option("--only", "groups", callback=_chosen, metavar="A,B", help=f"{', '.join(GROUPS)}.  [all]")
@click.option("--reps", default=3, show_default=True, help="Repetitions; tables show the median (min–max).")
@click.option("--quick", is_flag=True, help="Tiny amounts, once: does it work? The figures mean nothing.")
@click.option("--jobs", type=int, help="Jobs of a bulk enqueue, a drain, and of those whose room is taken.")
@click.option("--scheduled", type=int, help="Jobs that are due at one instant.  [1000000]")
@click.option("--deep", type=int, help="Jobs in a deep queue.  [1000000; Redis 5000000]")
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
    delays: list[float],
    groups: list[str],
    reps: int,
    quick: bool,
    jobs: int | None,
    scheduled: int | None,
    deep: int | None,
    concurrency: int | None,
    folder: Path | None,
    markdown: bool,
    out: Path | None,
) -> None:
    """Measure Penstock on this machine. Repetitions go round all stores before the next one begins, so that
    a slow phase of the machine hits all alike."""
    setups = _setups(stores, durability, delays)
    chosen = [GROUPS[name] for name in groups if any(GROUPS[name].suits(setup) for setup in setups)]
    given = {"jobs": jobs, "scheduled": scheduled, "deep": deep, "deep_redis": deep}
    sizes = msgspec.structs.replace(
        QUICK if quick else Sizes(), **{name: value for name, value in given.items() if value is not None}
    )
    machine = describe() + (f", {describe_redis()}" if "redis" in stores else "")
    note = ". QUICK: tiny amounts, the figures mean nothing" if quick else ""
    report = Report(setups, chosen, machine + note)
    for rep in range(1 if quick else reps):
        for group in chosen:
            for setup in filter(group.suits, setups):
                lab = Lab(setup, folder or Path(tempfile.gettempdir()), sizes, concurrency)
                _take(report, group, lab, rep + 1)
    if markdown:
        print(report.markdown())
    else:
        report.print()
    if out:
        out.write_text(json.dumps(report.json(), indent=1) + "\n")
    sys.exit(1 if report.failures else 0)


def _take(report: Report, group: BatchTerms, lab: Lab, rep: int) -> None:
    started = time.monotonic()
    print(f"{rep}: {group.name} on {lab.setup.name} ...", end="", file=sys.stderr, flush=True)
    try:
        for name, value in group.take(lab):
            report.add(lab.setup, group, name, value)
    except Exception as error:
        report.failed(lab.setup, group, error)
        print(f" failed: {error}", file=sys.stderr)
    else:
        print(f" {time.monotonic() - started:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
