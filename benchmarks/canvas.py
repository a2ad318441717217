"""Flows beside Celery's canvas on Redis and DBOS on SQLite: `python -m benchmarks.canvas`.

Each repetition runs all programs, one after the other. A worker serves first and has run a chord of ten; then
the time counts from the enqueue until the client has the result. All jobs return a number. `--keep FILE` adds
what it measures to the file and prints all that is in it, so that a measurement can be taken in short pieces.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.flow_tasks import FlowTasks
from benchmarks.machine import describe
from benchmarks.rig import Rig, Setup
from benchmarks.server import Server, describe_redis
from benchmarks.venvs import DEFAULT_FOLDER, create_venv, install
from penstock.workflows import chain, chord

_PROGRAMS = Path(__file__).parent / "foreign" / "canvas"
_PINS = ("celery==5.7.0", "redis==8.1.0", "hiredis==3.5.0", "packaging==26.3", "dbos==3.4.0")
_PATIENCE = 80
#: Each shape with its number of jobs, or of steps. `chords` are of 20 members.
SHAPES = {"chord": 10_000, "chain": 1_000, "chords": 200, "steps": 1_000}
PROGRAMS = ("penstock-redis", "celery-redis", "penstock-sqlite", "dbos-sqlite")


@click.command()
@click.option("--shape", "shapes", multiple=True, type=click.Choice(list(SHAPES)), help="[all]")
@click.option("--program", "programs", multiple=True, type=click.Choice(PROGRAMS), help="[all]")
@click.option("--size", type=int, help="Jobs or steps of a shape.  [10,000, 1,000, 200 chords, 1,000]")
@click.option("--reps", default=3, show_default=True)
@click.option("--keep", type=click.Path(path_type=Path), help="File of measurements to add to.")
@click.option("--venvs", type=click.Path(path_type=Path), default=DEFAULT_FOLDER, show_default=True)
def main(
    shapes: Sequence[str],
    programs: Sequence[str],
    size: int | None,
    reps: int,
    keep: Path | None,
    venvs: Path,
) -> None:
    """Print jobs or steps per second, medians of the repetitions with minimum and maximum."""
    python = create_venv(sys.executable, venvs / "canvas")
    install(python, _PINS)
    found: dict[str, list[float]] = json.loads(keep.read_text()) if keep and keep.exists() else {}
    for _ in range(reps):
        for shape in shapes or SHAPES:
            for program in programs or PROGRAMS:
                if (program, shape) == ("celery-redis", "steps"):  # it has none
                    continue
                n = size or SHAPES[shape]
                rate = _jobs(shape, n) / _seconds(python, program, shape, n)
                found.setdefault(f"{shape} of {n:,}: {program}", []).append(rate)
                if keep is not None:
                    keep.write_text(json.dumps(found))
    print(describe(), "\n" + describe_redis() + ",", ", ".join(_PINS))
    for name, rates in sorted(found.items()):
        middle, least, most = statistics.median(rates), min(rates), max(rates)
        print(f"{name}: {middle:,.0f}/s ({least:,.0f}-{most:,.0f}), {len(rates)} times")


def _jobs(shape: str, n: int) -> int:
    """The number of jobs with their bodies, or of steps."""
    return {"chord": n + 1, "chain": n, "chords": n * 21, "steps": n}[shape]


def _seconds(python: Path, program: str, shape: str, n: int) -> float:
    with tempfile.TemporaryDirectory(prefix="penstock-canvas-") as folder:
        name, _, store = program.partition("-")
        if name == "penstock":
            return _penstock(Setup(store), Path(folder), shape, n)
        if name == "dbos":
            return _foreign(python, "dbos_program.py", f"{folder}/dbos.db", shape, n)
        server = Server(Path(folder))
        try:
            return _foreign(python, "celery_program.py", server.url, shape, n)
        finally:
            server.close()


def _penstock(setup: Setup, folder: Path, shape: str, n: int) -> float:
    with Rig(setup, folder, tasks=FlowTasks, served="benchmarks.served_flows:app") as rig:
        tasks = rig.tasks
        assert isinstance(tasks, FlowTasks)
        with rig.workers():
            assert chord(tasks.number.map(range(10)), then=tasks.total).enqueue().result(_PATIENCE) == 45
            started = time.perf_counter()
            _run(tasks, shape, n)
            return time.perf_counter() - started


def _run(tasks: FlowTasks, shape: str, n: int) -> None:
    if shape == "chord":
        group = chord(tasks.number.map(range(n)), then=tasks.total).enqueue()
        assert group.result(_PATIENCE) == n * (n - 1) // 2
    elif shape == "chain":
        assert chain(tasks.number.job(7), *[tasks.number] * (n - 1)).enqueue().result(_PATIENCE) == 7
    elif shape == "chords":
        handles = [chord(tasks.number.map(range(20)), then=tasks.total).enqueue() for _ in range(n)]
        assert all(handle.result(_PATIENCE) == 190 for handle in handles)
    else:
        tasks.stepping.enqueue(n).result(_PATIENCE)


def _foreign(python: Path, program: str, where: str, shape: str, n: int) -> float:
    command = [str(python), str(_PROGRAMS / program), "run", where, shape, str(n)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * _PATIENCE, check=False)
    if done.returncode:
        raise RuntimeError(f"{program}: {done.stderr[-2000:]}")
    return float(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
