"""Compare process tasks with a `ProcessPoolExecutor`: `python -m benchmarks.process_tasks`.

Both make the same calls in two processes, which are started before. Each call counts itself in shared memory,
so both sides are measured alike: calls per second from the first to the last. The executor's calls are
submitted together and their results are awaited; the jobs are queued while their queue is paused.

An executor has its arguments in memory. So calls with large arguments are also compared with an executor
that is fed from the same kind of store (see `fed_executor`).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import click
import msgspec

from benchmarks import served_processes
from benchmarks.counters import Counters, leave_in
from benchmarks.fed_executor import fed_rate
from benchmarks.machine import describe
from benchmarks.rig import Rig, Setup
from benchmarks.served_processes import ProcessTasks
from penstock.demo.survey import files_under, standard_library

_PROCESSES = 2
#: Both processes are started by calls that sleep for this long (s).
_WARM = 0.5
_SERVED = "benchmarks.served_processes:app"


class Load(msgspec.Struct, frozen=True):
    """Calls of one kind: the task's name, and the arguments of each call."""

    title: str
    task: str
    arguments: Sequence[tuple[Any, ...]]

    @property
    def calls(self) -> int:
        return len(self.arguments)


def loads(scale: float) -> list[Load]:
    """The measured calls; `scale` multiplies their number."""
    files = [(str(path),) for path in files_under(standard_library())]
    return [
        Load("no-op", "noop", [()] * max(20, int(12_000 * scale))),
        Load("1 ms of CPU", "busy", [(1_000,)] * max(20, int(3_000 * scale))),
        Load("1 MB argument", "blob", [("x" * 999_900,)] * max(8, int(240 * scale))),
        Load("parse a file", "parse", files[: max(20, int(len(files) * scale))]),
    ]


@click.command()
@click.option("--store", "stores", default="redis,sqlite", show_default=True, help="Joined by commas.")
@click.option("--only", default="", help="Tasks, joined by commas: noop, busy, blob, parse.  [all]")
@click.option("--reps", default=3, show_default=True, help="Number of repetitions; the median is printed.")
@click.option("--scale", default=1.0, show_default=True, help="Multiplies the number of calls.")
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="Directory of the stores' files.")
def main(stores: str, only: str, reps: int, scale: float, folder: Path | None) -> None:
    """Print calls per second of the executor and of a worker on each store, and their ratio."""
    print(describe())
    chosen = [load for load in loads(scale) if not only or load.task in only.split(",")]
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=folder) as place:
        for load in chosen:
            _compare(load, stores.split(","), reps, Path(place))


def _compare(load: Load, stores: list[str], reps: int, folder: Path) -> None:
    sides: dict[str, Callable[[], float]] = {"executor": lambda: executor_rate(load)}
    for store in stores:
        sides[store] = lambda store=store: worker_rate(
            load, Setup(store, "full" if store == "sqlite" else ""), folder
        )
        if load.task == "blob":
            sides[f"fed by {store}"] = lambda store=store: _fed_rate(load, store, folder)
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(reps):
        for name, side in sides.items():
            taken[name].append(side())
    base = statistics.median(taken["executor"])
    for name, rates in taken.items():
        median = statistics.median(rates)
        spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
        print(f"{load.title:14} {name:13} {median:10,.0f}/s  {median / base:5.2f} x  ({spread})", flush=True)


def executor_rate(load: Load) -> float:
    """Calls per second of a ProcessPoolExecutor."""
    with _shared_folder() as shm:
        leave_in(shm)
        context = multiprocessing.get_context("fork")
        with concurrent.futures.ProcessPoolExecutor(_PROCESSES, mp_context=context) as pool:
            list(pool.map(time.sleep, [_WARM] * _PROCESSES))
            for future in [pool.submit(_call, load.task, one) for one in load.arguments]:
                future.result()
        return Counters(shm).rate()


def _fed_rate(load: Load, store: str, folder: Path) -> float:
    """Calls per second of an executor that reads its arguments from a store."""
    with tempfile.TemporaryDirectory(dir=folder) as disk, _shared_folder() as shm:
        return fed_rate(store, Path(disk), shm, load.task, load.arguments, _PROCESSES)


def _call(task: str, arguments: tuple[Any, ...]) -> None:
    getattr(served_processes, task)(*arguments)


def worker_rate(load: Load, setup: Setup, folder: Path) -> float:
    """Calls per second of `penstock worker` with queued jobs."""
    knobs = {"PENSTOCK_PROCESS_SLOTS": str(_PROCESSES)}
    with Rig(setup, folder, tasks=ProcessTasks, served=_SERVED, knobs=knobs) as rig:
        tasks = cast(ProcessTasks, rig.tasks).process
        job, chunk = tasks[load.task].job, 20 if load.task == "blob" else 10_000
        with rig.workers():
            rig.app.enqueue_many([tasks["nap"].job(_WARM) for _ in range(_PROCESSES)])
            while rig.queued():
                time.sleep(0.05)
            rig.pause()
            for start in range(0, load.calls, chunk):
                rig.app.enqueue_many([job(*one) for one in load.arguments[start : start + chunk]])
            rig.pause(False)
            rig.wait(load.calls)
            return rig.counters.rate()


@contextlib.contextmanager
def _shared_folder() -> Iterator[Path]:
    """A folder in shared memory for the counters."""
    shm = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=shm) as folder:
        yield Path(folder)


if __name__ == "__main__":
    main()
