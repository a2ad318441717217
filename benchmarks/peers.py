"""Penstock compared with other libraries on Redis or on a SQLite file: `python -m benchmarks.peers`.

The harness is copied to its own folder (the original may be read-only), Penstock's adapter is added, each
library gets a virtual environment, and the harness runs. The results are printed at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe
from benchmarks.rig import ROOT
from benchmarks.server import describe_redis, redis_program
from benchmarks.venvs import DEFAULT_FOLDER, create_venv

#: The libraries that are measured on each store; Penstock first.
_VARIANTS = {
    "sqlite": (
        "penstock-sqlite",
        "penstock-sqlite-normal",
        "penstock-sqlite-threads",
        "huey-sqlite",
        "flexiq-sqlite",
    ),
    "redis": (
        "penstock-redis",
        "penstock-redis-threads",
        "dramatiq",
        "huey-redis",
        "taskiq-list",
        "celery-prefork",
    ),
}
_SCENARIOS = {"sqlite": "S1S2,S3,S5,S6,S7", "redis": "S1S2,S3,S4,S5,S6,S7,S8,S9,S10"}
_HERE = Path(__file__).resolve().parent


class Column(NamedTuple):
    """A column: its head, and the value and results that it shows."""

    head: str
    scenario: str
    key: str
    only: tuple[str, Any] | None = None


_COLUMNS = (
    Column("enqueue/s", "S1", "rate"),
    Column("bulk/s", "S1bulk", "rate"),
    Column("drain/s", "S2", "rate"),
    Column("2 workers/s", "S2x2", "rate_steady"),
    Column("CPU µs/job", "S2", "cpu_us_per_task"),
    Column("idle p50 ms", "S3", "p50"),
    Column("idle p99 ms", "S3", "p99"),
    Column("500/s p50 ms", "S4", "p50"),
    Column("500/s p99 ms", "S4", "p99"),
    Column("result p50 ms", "S5", "p50"),
    Column("delay min ms", "S6", "min"),
    Column("delay p99 ms", "S6", "p99"),
    Column("B/job", "S7", "bytes_per_task"),
    Column("PSS MB", "S7", "pss_mb"),
    Column("one ETA: enqueue/s", "S8", "enqueue_rate"),
    Column("one ETA: B/job", "S8", "bytes_per_task"),
    Column("one ETA: drain/s", "S8", "drain_rate"),
    Column("kill -9: lost", "S9", "lost"),
    Column("finished twice", "S9", "ran_twice"),
    Column("started twice", "S9", "started_twice"),
    Column("all done after s", "S9", "finish_s"),
    Column("10 000 deep/s", "S10", "rate", ("depth", 10_000)),
    Column("1 000 000 deep/s", "S10", "rate", ("depth", 1_000_000)),
)
_WIDTH = 12  # columns of a table


@click.command()
@click.argument("scenarios", required=False)
@click.option(
    "--store", type=click.Choice(["sqlite", "redis"]), help="Whose variants and scenarios.  [sqlite]"
)
@click.option(
    "--harness",
    type=click.Path(path_type=Path),
    default=ROOT.parent / "shared" / "bench",
    help="The folder with bench.py.  [../shared/bench]",
)
@click.option("--variants", metavar="A,B", help="Names as the harness has them.  [those of the store]")
@click.option("--modes", default="default", show_default=True, help="Of S9: default, safe, default+traffic …")
@click.option("--aof", is_flag=True, help="Redis with an append-only file, synced every second.")
@click.option("--jobs", type=int, help="N of S1S2, S7, S8.  [the harness' own]")
@click.option("--reps", default=3, show_default=True)
@click.option("--python", default=sys.executable, help="What the environments are made with.  [this one]")
@click.option(
    "--venvs",
    type=click.Path(path_type=Path),
    default=DEFAULT_FOLDER,
    show_default=True,
    help="Where the environments are; they are kept for the next time.",
)
@click.option(
    "--json",
    "out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to keep the harness' raw results.",
)
@click.option("--markdown", is_flag=True)
def main(
    scenarios: str | None,
    store: str | None,
    harness: Path,
    variants: str | None,
    modes: str,
    aof: bool,
    jobs: int | None,
    reps: int,
    python: str,
    venvs: Path,
    out: Path | None,
    markdown: bool,
) -> None:
    """Run SCENARIOS of the harness, joined by commas [all that suit the store]."""
    if not (harness / "bench.py").is_file():
        raise click.ClickException(f"there is no bench.py in {harness}: say where with --harness")
    wanted = variants.split(",") if variants else list(_VARIANTS[store or "sqlite"])
    store = store or ("redis" if any("sqlite" not in name for name in wanted) else "sqlite")
    scenarios = scenarios or _SCENARIOS[store]
    libraries = sorted({name.partition("-")[0] for name in wanted})
    with tempfile.TemporaryDirectory(prefix="penstock-peers-") as folder:
        bench = _copied(harness, Path(folder) / "bench")
        env = {**os.environ, "BENCH_VENVS": str(venvs), "CHECKOUT": str(ROOT)}
        _install(bench, env, libraries, python, venvs)
        command = [sys.executable, "bench.py", "run", scenarios, "--variants", ",".join(wanted)]
        command += ["--reps", str(reps), "--modes", modes]
        command += ["--store", "redis-aof"] if aof else []
        command += ["--n", str(jobs)] if jobs else []
        subprocess.run(command, cwd=bench, env=env, check=True, stdout=sys.stderr)
        raw = bench / "results" / "raw.jsonl"
        results = [json.loads(line) for line in raw.read_text().splitlines()]
        if out:
            shutil.copyfile(raw, out)
    machine = describe() + (f", {describe_redis()}" if store == "redis" and redis_program() else "")
    _show(results, wanted, machine, markdown)
    sys.exit(1 if any(row.get("error") for row in results if row["variant"].startswith("penstock")) else 0)


def _copied(harness: Path, to: Path) -> Path:
    """Copy the harness without its old results, and make the copy writable."""
    shutil.copytree(
        harness,
        to,
        copy_function=shutil.copyfile,
        ignore=lambda folder, names: [name for name in names if name in ("results", "__pycache__")],
    )
    for path in (to, *to.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    shutil.copyfile(_HERE / "penstock_peer.py", to / "peers" / "penstock_peer.py")
    shutil.copyfile(_HERE / "requirements-penstock.txt", to / "peers" / "requirements-penstock.txt")
    return to


def _install(bench: Path, env: dict[str, str], libraries: Sequence[str], python: str, venvs: Path) -> None:
    for library in libraries:
        create_venv(python, venvs / library)
    command = [sys.executable, "bench.py", "install", *libraries, "--python", python]
    subprocess.run(command, cwd=bench, env=env, check=True, stdout=sys.stderr)


# ── results ──────────────────────────────────────────────────────────────────────────────────────


def _show(results: list[dict[str, Any]], variants: Sequence[str], machine: str, markdown: bool) -> None:
    results = [_by_mode(row) for row in results]
    variants = list(dict.fromkeys([*variants, *(row["variant"] for row in results)]))
    columns = [column for column in _COLUMNS if any(_values(results, v, *column[1:]) for v in variants)]
    print(f"## Beside other libraries\n\n{machine}.\n" if markdown else machine)
    for start in range(0, len(columns), _WIDTH):
        _table(results, variants, columns[start : start + _WIDTH], markdown)
    for line in _ratios(results):
        print(("* " if markdown else "") + line)
    for result in results:
        if result.get("error"):
            print(f"failed: {result['variant']} {result['scenario']}: {result['error'][-300:]}")


def _by_mode(row: dict[str, Any]) -> dict[str, Any]:
    """A result in another mode than the library's default gets its own line."""
    if row.get("mode", "default") in ("default", "tuned"):
        return row
    return {**row, "variant": f"{row['variant']}, {row['mode']}"}


def _table(
    results: list[dict[str, Any]], variants: Sequence[str], columns: Sequence[Column], markdown: bool
) -> None:
    rows = [[variant, *(_cell(_values(results, variant, *c[1:])) for c in columns)] for variant in variants]
    rows = [row for row in rows if set(row[1:]) != {"–"}]
    heads = ["", *(column.head for column in columns)]
    if markdown:
        print("| " + " | ".join(heads) + " |\n| --- |" + " ---: |" * len(columns))
        for row in rows:
            print("| " + " | ".join(row) + " |")
        print()
        return
    table = Table(box=box.SIMPLE_HEAD)
    for head in heads:
        table.add_column(head, justify="left" if not head else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 220).print(table, highlight=False)


def _values(
    results: list[dict[str, Any]],
    variant: str,
    scenario: str,
    key: str,
    only: tuple[str, Any] | None = None,
) -> list[float]:
    return [
        row[key]
        for row in results
        if row["variant"] == variant
        and row["scenario"] == scenario
        and (only is None or row.get(only[0]) == only[1])
        and not row.get("error")
        and row.get(key) is not None
    ]


def _cell(values: list[float]) -> str:
    if not values:
        return "–"
    if len(values) > 1 and min(values) == max(values):
        return f"{_number(values[0])} ({len(values)} times)"
    text = _number(statistics.median(values))
    return f"{text} ({_number(min(values))}–{_number(max(values))})" if len(values) > 1 else text


def _number(value: float) -> str:
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.2f}"


def _ratios(results: list[dict[str, Any]]) -> list[str]:
    """The required comparisons, with the figures of this run."""

    def median(variant: str, scenario: str, key: str = "rate") -> float:
        values = _values(results, variant, scenario, key)
        return statistics.median(values) if values else float("nan")

    lines: list[tuple[str, Callable[[], float], str]] = [
        (
            "drain, durability full, of huey-sqlite",
            lambda: median("penstock-sqlite", "S2") / median("huey-sqlite", "S2"),
            "× (at least 8, goal 15)",
        ),
        (
            "drain, durability normal, of huey-sqlite",
            lambda: median("penstock-sqlite-normal", "S2") / median("huey-sqlite", "S2"),
            "×",
        ),
        (
            "enqueue one by one, durability normal, of flexiq-sqlite",
            lambda: median("penstock-sqlite-normal", "S1") / median("flexiq-sqlite", "S1"),
            "× (at least 1)",
        ),
        (
            "bulk enqueue, durability normal, of flexiq-sqlite",
            lambda: median("penstock-sqlite-normal", "S1bulk") / median("flexiq-sqlite", "S1bulk"),
            "×",
        ),
    ]
    shown = [(title, ratio(), unit) for title, ratio, unit in lines]
    lines_of_redis = [line for title in _AGAINST_BEST for line in _against_best(results, *title)]
    return [f"{title}: {value:.2f} {unit}" for title, value, unit in shown if value == value] + lines_of_redis


#: Name, variant, scenario, key, whether more is better, and the target.
_AGAINST_BEST = (
    ("drain", "penstock-redis", "S2", "rate", True, "at least 10, goal 15"),
    ("drain, threads", "penstock-redis-threads", "S2", "rate", True, "at least 7"),
    ("enqueue one by one", "penstock-redis", "S1", "rate", True, ""),
    ("bulk enqueue", "penstock-redis", "S1bulk", "rate", True, ""),
    ("idle latency p50", "penstock-redis", "S3", "p50", False, "at most 1.2"),
    ("idle latency p99", "penstock-redis", "S3", "p99", False, "at most 1.2"),
    ("latency at 500/s p50", "penstock-redis", "S4", "p50", False, "at most 1.2"),
    ("latency at 500/s p99", "penstock-redis", "S4", "p99", False, "at most 1.2"),
    ("result round trip p50", "penstock-redis", "S5", "p50", False, "at most 1.2"),
    ("delay p99", "penstock-redis", "S6", "p99", False, "and itself at most 5 ms"),
    (
        "bytes per queued job",
        "penstock-redis",
        "S7",
        "bytes_per_task",
        False,
        "below 1, and itself at most 230",
    ),
)


def _against_best(
    results: list[dict[str, Any]],
    what: str,
    ours: str,
    scenario: str,
    key: str,
    more: bool,
    wanted: str,
) -> list[str]:
    """Penstock's figure as a multiple of the best of the other libraries on Redis."""
    others = {row["variant"] for row in results if not row["variant"].startswith(("penstock", "raw"))}
    medians = {
        variant: statistics.median(values)
        for variant in others
        if "sqlite" not in variant and (values := _values(results, variant, scenario, key))
    }
    mine = _values(results, ours, scenario, key)
    if not mine or not medians:
        return []
    best = (max if more else min)(medians, key=lambda variant: medians[variant])
    ratio = statistics.median(mine) / medians[best]
    return [f"{what}, of {best}: {ratio:.2f} ×" + (f" ({wanted})" if wanted else "")]


if __name__ == "__main__":
    main()
