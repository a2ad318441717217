"""Flows beside Celery's canvas on Redis and DBOS on SQLite: `python -m benchmarks.canvas`.

Each repetition runs all programs, one after the other. A chord of no-ops that return a number; Celery
stores it before its worker (two processes) starts, and DBOS enqueues the members of a queue from a workflow
that sums their results. Steps are those of one job or workflow.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

from benchmarks.flow_tasks import FlowTasks
from benchmarks.machine import describe
from benchmarks.rig import Rig, Setup
from benchmarks.server import Server
from benchmarks.venvs import DEFAULT_FOLDER, create_venv, install
from penstock.workflows import chord

_PROGRAMS = Path(__file__).parent / "foreign" / "canvas"
_PINS = ("celery==5.7.0", "redis==8.1.0", "packaging==26.3", "dbos==3.4.0")


@click.command()
@click.option("--members", default=1_000, show_default=True)
@click.option("--steps", default=1_000, show_default=True)
@click.option("--reps", default=3, show_default=True)
@click.option("--venvs", type=click.Path(path_type=Path), default=DEFAULT_FOLDER, show_default=True)
def main(members: int, steps: int, reps: int, venvs: Path) -> None:
    """Print members and steps per second, medians of the repetitions with minimum and maximum."""
    python = create_venv(sys.executable, venvs / "canvas")
    install(python, _PINS)
    found: dict[str, list[float]] = {}
    for _ in range(reps):
        for name, rate in _rates(python, members, steps):
            found.setdefault(name, []).append(rate)
    print(describe())
    for name, rates in found.items():
        print(f"{name}: {statistics.median(rates):,.0f}/s ({min(rates):,.0f}-{max(rates):,.0f})")


def _rates(python: Path, members: int, steps: int) -> list[tuple[str, float]]:
    with tempfile.TemporaryDirectory(prefix="penstock-canvas-") as folder:
        rates = []
        for store in ("redis", "sqlite"):
            took = _penstock(Setup(store), Path(folder), members, steps)
            rates += [(f"penstock on {store}, chord", members / took["group"])]
            rates += [(f"penstock on {store}, steps", steps / took["steps"])]
        server = Server(Path(folder))
        try:
            took = _run(python, "celery_program.py", "run", server.url, members)
        finally:
            server.close()
        rates.append(("celery on redis, chord", members / (took["submit"] + took["run"])))
        took = _run(python, "dbos_program.py", f"{folder}/dbos.db", steps, members)
        return [
            *rates,
            ("dbos on sqlite, children of a workflow", members / took["group"]),
            ("dbos on sqlite, steps", steps / took["steps"]),
        ]


def _penstock(setup: Setup, folder: Path, members: int, steps: int) -> dict[str, float]:
    with Rig(setup, folder, tasks=FlowTasks, served="benchmarks.served_flows:app") as rig:
        tasks = rig.tasks
        assert isinstance(tasks, FlowTasks)
        with rig.workers():
            rig.warm()
            canvas = chord(tasks.number.map(range(members)), then=tasks.total)
            group = _timed(lambda: canvas.enqueue().result(timeout=100))
            return {
                "group": group,
                "steps": _timed(lambda: tasks.stepping.enqueue(steps).result(timeout=100)),
            }


def _timed(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def _run(python: Path, program: str, *arguments: object) -> dict[str, float]:
    command = [str(python), str(_PROGRAMS / program), *map(str, arguments)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True).stdout
    seconds: dict[str, float] = json.loads(said.splitlines()[-1])
    return seconds


if __name__ == "__main__":
    main()
