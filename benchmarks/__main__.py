"""`python -m benchmarks`: measure every store, and print tables with ratios to its raw limit."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from benchmarks.machine import describe
from benchmarks.measures import GROUPS, FigureGroup, Lab
from benchmarks.measures.features import FEATURES
from benchmarks.measures.figure import QUICK, Sizes
from benchmarks.measures.flows import FLOWS
from benchmarks.report import Report
from benchmarks.rig import Setup
from benchmarks.server import describe_redis, redis_program

SETUPS = {
    "sqlite": (Setup("sqlite", "full"), Setup("sqlite", "normal")),
    "redis": (Setup("redis"), Setup("redis", "aof")),
    "memory": (Setup("memory"),),
}
#: Measured on request only.
_ON_DEMAND = Setup("redis", "aof")


def _setups(stores: Sequence[str], durability: str | None, delays: Sequence[float]) -> list[Setup]:
    """The setups of these stores with this durability, or those without a choice of durability."""
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
    """Parse known names joined by commas."""
    known: Sequence[str] = list(
        {"stores": SETUPS, "groups": GROUPS, "features": FEATURES, "flows": FLOWS}[param.name or ""]
    )
    if value is None:
        if param.name == "stores" and redis_program() is None:
            print("redis-server is not installed: Redis is left out", file=sys.stderr)
            return [name for name in known if name != "redis"]
        return list(known)
    names = value.split(",")
    if param.name == "stores" and "redis" in names and redis_program() is None:
        raise click.BadParameter("redis-server is not installed (try: make servers)", ctx, param)
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
    help="SQLite: full or normal.  [both]  Redis: aof, an append-only file synced every second.  [no file]",
)
@click.option(
    "--delay-ms",
    "delays",
    callback=_milliseconds,
    metavar="A,B",
    help="Also measure Redis with these extra milliseconds per round trip (0: the proxy alone).",
)
@click.option("--only", "groups", callback=_chosen, metavar="A,B", help=f"{', '.join(GROUPS)}.  [all]")
@click.option(
    "--features",
    callback=_chosen,
    metavar="A,B",
    help=f"Of the group features: {', '.join(FEATURES)}.  [all]",
)
@click.option(
    "--flows", callback=_chosen, metavar="A,B", help=f"Of the group flows: {', '.join(FLOWS)}.  [all]"
)
@click.option("--reps", default=3, show_default=True, help="Repetitions; tables show the median (min–max).")
@click.option("--quick", is_flag=True, help="Tiny sizes, one repetition: a test run without useful figures.")
@click.option("--jobs", type=int, help="Number of jobs of a bulk enqueue, a drain, and the size measurement.")
@click.option("--scheduled", type=int, help="Number of jobs due at one instant.  [1000000]")
@click.option("--deep", type=int, help="Number of jobs in a deep queue.  [1000000; Redis 5000000]")
@click.option("--concurrency", type=int, help="Slots of each worker.  [Penstock's default, 20]")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder for the files, on the disk to be measured.  [the system's temporary folder]",
)
@click.option("--markdown", is_flag=True, help="Print the tables in the format of docs/benchmarks.md.")
@click.option(
    "--json", "out", type=click.Path(path_type=Path, dir_okay=False), help="Also write all values to a file."
)
def main(
    stores: list[str],
    durability: str | None,
    delays: list[float],
    groups: list[str],
    features: list[str],
    flows: list[str],
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
    """Measure Penstock on this machine.

    Each repetition measures all stores, so that a slow phase of the machine affects all of them.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the workers end with the measurement
    setups = _setups(stores, durability, delays)
    chosen = [GROUPS[name] for name in groups if any(GROUPS[name].suits(setup) for setup in setups)]
    given = {
        "jobs": jobs,
        "scheduled": scheduled,
        "deep": deep,
        "deep_redis": deep,
        "features": tuple(features),
        "flows": tuple(flows),
    }
    sizes = msgspec.structs.replace(
        QUICK if quick else Sizes(), **{name: value for name, value in given.items() if value is not None}
    )
    machine = describe() + (f", {describe_redis()}" if "redis" in stores else "")
    note = ". QUICK: tiny sizes, the figures mean nothing" if quick else ""
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


def _take(report: Report, group: FigureGroup, lab: Lab, rep: int) -> None:
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
