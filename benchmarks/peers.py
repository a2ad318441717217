"""Penstock beside other libraries on a SQLite file, in the harness that measures them all:
`python -m benchmarks.peers`.

The harness is copied to a folder of its own (it may be read-only), our adapter is put among the others,
each library gets a virtual environment, and the harness runs. What it wrote is shown at the end.
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
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe
from benchmarks.rig import ROOT

_OURS = ("penstock-sqlite", "penstock-sqlite-normal", "penstock-sqlite-threads")
_THEIRS = ("huey-sqlite", "flexiq-sqlite")
_HERE = Path(__file__).resolve().parent

#: Column, scenario, key, scale.
_COLUMNS = (
    ("enqueue/s", "S1", "rate"),
    ("bulk/s", "S1bulk", "rate"),
    ("drain/s", "S2", "rate"),
    ("2 workers/s", "S2x2", "rate_steady"),
    ("CPU µs/job", "S2", "cpu_us_per_task"),
    ("idle p50 ms", "S3", "p50"),
    ("idle p99 ms", "S3", "p99"),
    ("result p50 ms", "S5", "p50"),
    ("delay min ms", "S6", "min"),
    ("delay p99 ms", "S6", "p99"),
    ("B/job", "S7", "bytes_per_task"),
    ("PSS MB", "S7", "pss_mb"),
)


@click.command()
@click.argument("scenarios", default="S1S2,S3,S5,S6,S7")
@click.option(
    "--harness",
    type=click.Path(path_type=Path),
    default=ROOT.parent / "shared" / "bench",
    help="The folder with bench.py.  [../shared/bench]",
)
@click.option("--variants", default=",".join((*_OURS, *_THEIRS)), show_default=True)
@click.option("--reps", default=3, show_default=True)
@click.option("--python", default=sys.executable, help="What the environments are made with.  [this one]")
@click.option(
    "--venvs",
    type=click.Path(path_type=Path),
    default=Path(tempfile.gettempdir()) / "penstock-peers",
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
    scenarios: str,
    harness: Path,
    variants: str,
    reps: int,
    python: str,
    venvs: Path,
    out: Path | None,
    markdown: bool,
) -> None:
    """Run SCENARIOS of the harness [S1S2,S3,S5,S6,S7]."""
    if not (harness / "bench.py").is_file():
        raise click.ClickException(f"there is no bench.py in {harness}: say where with --harness")
    wanted = variants.split(",")
    libraries = sorted({name.partition("-")[0] for name in wanted})
    with tempfile.TemporaryDirectory(prefix="penstock-peers-") as folder:
        bench = _copied(harness, Path(folder) / "bench")
        env = {**os.environ, "BENCH_VENVS": str(venvs), "CHECKOUT": str(ROOT)}
        _install(bench, env, libraries, python, venvs)
        command = [sys.executable, "bench.py", "run", scenarios, "--variants", variants, "--reps", str(reps)]
        subprocess.run(command, cwd=bench, env=env, check=True, stdout=sys.stderr)
        raw = bench / "results" / "raw.jsonl"
        results = [json.loads(line) for line in raw.read_text().splitlines()]
        if out:
            shutil.copyfile(raw, out)
    _show(results, wanted, markdown)
    sys.exit(1 if any(row.get("error") for row in results if row["variant"].startswith("penstock")) else 0)


def _copied(harness: Path, to: Path) -> Path:
    """Without its old results; writable, whatever the original is."""
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
        folder = venvs / library
        if not (folder / "bin" / "python").exists():
            made = subprocess.run([python, "-m", "venv", str(folder)], capture_output=True, check=False)
            if made.returncode:  # some systems have no ensurepip
                shutil.rmtree(folder, ignore_errors=True)
                subprocess.run([python, "-m", "virtualenv", "--quiet", str(folder)], check=True)
    command = [sys.executable, "bench.py", "install", *libraries, "--python", python]
    subprocess.run(command, cwd=bench, env=env, check=True, stdout=sys.stderr)


# ── what came out ────────────────────────────────────────────────────────────────────────────────


def _show(results: list[dict[str, Any]], variants: Sequence[str], markdown: bool) -> None:
    columns = [column for column in _COLUMNS if any(_values(results, v, *column[1:]) for v in variants)]
    rows = [[variant, *(_cell(_values(results, variant, *c[1:])) for c in columns)] for variant in variants]
    heads = ["", *(column[0] for column in columns)]
    if markdown:
        print(f"## Beside other libraries\n\n{describe()}.\n")
        print("| " + " | ".join(heads) + " |\n| --- |" + " ---: |" * len(columns))
        for row in rows:
            print("| " + " | ".join(row) + " |")
    else:
        table = Table(box=box.SIMPLE_HEAD)
        for head in heads:
            table.add_column(head, justify="left" if not head else "right")
        for row in rows:
            table.add_row(*row)
        Console(width=None if sys.stdout.isatty() else 220).print(describe(), table, highlight=False)
    print()
    for line in _ratios(results):
        print(("* " if markdown else "") + line)
    for result in results:
        if result.get("error"):
            print(f"failed: {result['variant']} {result['scenario']}: {result['error'][-300:]}")


def _values(results: list[dict[str, Any]], variant: str, scenario: str, key: str) -> list[float]:
    return [
        row[key]
        for row in results
        if row["variant"] == variant
        and row["scenario"] == scenario
        and not row.get("error")
        and row.get(key) is not None
    ]


def _cell(values: list[float]) -> str:
    if not values:
        return "–"
    text = _number(statistics.median(values))
    return f"{text} ({_number(min(values))}–{_number(max(values))})" if len(values) > 1 else text


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}".replace(",", " ")


def _ratios(results: list[dict[str, Any]]) -> list[str]:
    """What we must show, in figures of this run."""

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
    return [f"{title}: {value:.2f} {unit}" for title, value, unit in shown if value == value]


if __name__ == "__main__":
    main()
