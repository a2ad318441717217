"""The cost of a change: CPU time per no-op job of a worker, in this tree and in another one, alternately.

    git worktree add /tmp/before COMMIT
    python -m benchmarks.compare /tmp/before [--url redis://localhost/9] [--jobs 20000] [--rounds 6]
    python -m benchmarks.compare --metrics          # this tree without and with a worker's metrics
    python -m benchmarks.compare /tmp/before --instructions     # by valgrind

A shared machine sometimes runs the same code at half its speed, so jobs per second cannot show differences of
a few percent. The median CPU time of many short drains can; use 15 rounds or more. Instructions, counted by
valgrind, hardly differ from run to run; but a process is some fifty times slower under it, so that what a
worker does once per second weighs fifty times as much as it should.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock import App, Worker

_HERE = Path(__file__).parents[1]
_BATCH = 5_000
_DRAINS = 4


async def _drains(app: App, how: str, jobs: int, options: Callable[[], dict[str, Any]]) -> list[float]:
    """µs of CPU per job, of some drains by an embedded worker."""

    async def wait_for_nothing() -> None: ...

    def do_nothing() -> None: ...

    task = app.task(name="noop", retention=None)(wait_for_nothing if how == "async" else do_nothing)
    taken = []
    for _ in range(_DRAINS):
        for start in range(0, jobs, _BATCH):
            await app.aenqueue_many([task.job() for _ in range(min(_BATCH, jobs - start))])
        given = options()
        gc.collect()
        gc.freeze()
        began = time.process_time()
        await Worker(app, burst=True, **given).run()
        taken.append((time.process_time() - began) / jobs * 1e6)
    return taken


def _with_metrics() -> dict[str, Any]:
    from penstock.worker.metrics_page import MetricsPage

    return {"metrics": MetricsPage.create()}


def _count_instructions(tree: Path, how: str, url: str, jobs: int, *, metrics: bool) -> float:
    """Instructions per job: those of a process that runs all jobs without those of one that runs a fifth."""
    few, all_jobs = (_instructions(tree, how, url, n, metrics=metrics) for n in (jobs // 5, jobs))
    return (all_jobs - few) / (_DRAINS * (jobs - jobs // 5))


def _instructions(tree: Path, how: str, url: str, jobs: int, *, metrics: bool) -> int:
    valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command, env = _command(tree, how, url, jobs, metrics=metrics)
    env["PYTHONHASHSEED"] = "0"
    said = subprocess.run(
        [*valgrind, *command], env=env, cwd=tree, check=True, capture_output=True, text=True
    )
    return int(said.stderr.rpartition("Collected : ")[2].split()[0])


def _measure(url: str, how: str, jobs: int, *, metrics: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        app = App(url or f"sqlite:///{folder}/jobs.db", namespace=f"compare-{os.getpid()}")
        print(*asyncio.run(_drains(app, how, jobs, _with_metrics if metrics else dict)))
        app.close()


def _ask(tree: Path, how: str, url: str, jobs: int, *, metrics: bool) -> list[float]:
    """As above, in a process that imports Penstock from this tree."""
    command, env = _command(tree, how, url, jobs, metrics=metrics)
    said = subprocess.run(command, env=env, cwd=tree, check=True, stdout=subprocess.PIPE, text=True)
    return [float(word) for word in said.stdout.split()]


def _command(tree: Path, how: str, url: str, jobs: int, *, metrics: bool) -> tuple[list[str], dict[str, str]]:
    command = [sys.executable, "-W", "ignore", str(Path(__file__)), "--measure", how]
    command += ["--url", url, "--jobs", str(jobs), *(["--metrics"] if metrics else [])]
    return command, {**os.environ, "PYTHONPATH": str(tree / "src")}


def _ratios(there: list[float], here: list[float]) -> list[float]:
    """The ratio of this tree to the other one, for each pair of runs."""

    def runs(taken: list[float]) -> list[float]:
        return [statistics.median(taken[n : n + _DRAINS]) for n in range(0, len(taken), _DRAINS)]

    return [b / a for a, b in zip(runs(there), runs(here), strict=True)]


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """The median, and its 95 % interval by resampling the pairs (percentile bootstrap, fixed seed)."""
    dice = random.Random(1)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(10_000))
    return medians[250], statistics.median(ratios), medians[9_750]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tree", nargs="?", type=Path, help="the other tree: a worktree of the commit before")
    parser.add_argument("--url", default="", help="a store that nobody else uses now  [a new SQLite file]")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--how", choices=["async", "thread"], help="only this kind of task  [both]")
    parser.add_argument("--metrics", action="store_true", help="compare this tree without and with metrics")
    parser.add_argument("--instructions", action="store_true", help="count them by valgrind, once per tree")
    parser.add_argument("--measure", choices=["async", "thread"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        _measure(given.url, given.measure, given.jobs, metrics=given.metrics)
        return
    if given.tree is None and not given.metrics:
        parser.error("name the other tree")
    trees = {"there": (given.tree or _HERE).resolve(), "here": _HERE}
    for how in [given.how] if given.how else ["async", "thread"]:
        if given.instructions:
            there, here = (
                _count_instructions(
                    tree, how, given.url, given.jobs, metrics=given.metrics and name == "here"
                )
                for name, tree in trees.items()
            )
            print(f"{how}: {there:,.0f} instructions per job there, {here:,.0f} here: {here / there:.3f}")
            continue
        taken: dict[str, list[float]] = {name: [] for name in trees}
        for n in range(given.rounds):
            for name in sorted(trees, reverse=n % 2 == 0):
                taken[name] += _ask(
                    trees[name], how, given.url, given.jobs, metrics=given.metrics and name == "here"
                )
        there, here = (statistics.median(taken[name]) for name in trees)
        low, ratio, high = interval(_ratios(taken["there"], taken["here"]))
        print(
            f"{how}: {there:.2f} µs of CPU per job there, {here:.2f} here; "
            f"median ratio of {given.rounds} pairs {ratio:.3f}, 95 % interval {low:.3f} to {high:.3f}"
        )


if __name__ == "__main__":
    main()
