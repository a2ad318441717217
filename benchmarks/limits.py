"""Several processes work on one limited queue: `python -m benchmarks.limits --store redis`.

Each job writes a line at its begin and at its end. At the end the benchmark checks three things: no more jobs
ran at once than allowed; no window of length t had more starts than rate * t + burst; and the average rate
was reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from benchmarks.machine import describe
from benchmarks.rig import new_runner
from benchmarks.server import Server
from penstock import App, Rate, Worker, current_job

_QUEUE = "limited"
#: Tolerance of the average rate.
_OFF = 0.02


@click.command()
@click.option("--store", type=click.Choice(["redis", "sqlite"]), default="sqlite", show_default=True)
@click.option("--seconds", default=20.0, show_default=True)
@click.option("--processes", default=4, show_default=True)
@click.option("--max-running", default=7, show_default=True)
@click.option("--rate", default="200/s", show_default=True)
@click.option("--burst", default=1, show_default=True)
@click.option("--job-ms", default=5.0, show_default=True, help="How long a job takes.")
@click.option("--judge/--no-judge", default=True, help="Whether a missed average is a fault.")
def main(
    store: str,
    seconds: float,
    processes: int,
    max_running: int,
    rate: str,
    burst: int,
    job_ms: float,
    judge: bool,
) -> None:
    """Run the benchmark.

    Exit code 1: too many ran at once, too many started in a window, or too few in all.
    """
    print(describe())
    wanted = Rate.of(rate, burst=burst)
    with tempfile.TemporaryDirectory(prefix="penstock-limits-") as folder, _store(store, Path(folder)) as url:
        faults = _run(url, Path(folder), seconds, processes, max_running, wanted, job_ms, judge)
    print("\n".join(f"FAULT: {fault}" for fault in faults) or "never more than allowed, and never less")
    sys.exit(1 if faults else 0)


@contextlib.contextmanager
def _store(store: str, folder: Path) -> Iterator[str]:
    if store == "sqlite":
        yield f"sqlite:///{folder}/jobs.db"
        return
    server = Server(folder)
    try:
        yield server.url
    finally:
        server.close()


def _run(
    url: str,
    folder: Path,
    seconds: float,
    processes: int,
    max_running: int,
    rate: Rate,
    job_ms: float,
    judge: bool,
) -> list[str]:
    app, work = _app(url, folder / "nobody", job_ms)
    app.queue(_QUEUE).settings(max_running=max_running, rate=rate, paused=True)
    enough = int(seconds * 1000 / rate.step * 1.2) + 100
    app.enqueue_many([work.job() for _ in range(enough)])
    spawn = multiprocessing.get_context("spawn")
    over = spawn.Event()
    children = [
        spawn.Process(target=_work, args=(url, str(folder / f"ran.{n}"), job_ms, over))
        for n in range(processes)
    ]
    for child in children:
        child.start()
    _wait_for_workers(app, processes)
    app.queue(_QUEUE).settings(paused=False)
    time.sleep(seconds)
    over.set()
    for child in children:
        child.join(30)
    app.close()
    faults = [f"process {n} ended with {c.exitcode}" for n, c in enumerate(children) if c.exitcode != 0]
    lines = [
        line.split() for n in range(processes) for line in (folder / f"ran.{n}").read_text().splitlines()
    ]
    return faults + _judge(lines, seconds, max_running, rate, judge)


def _app(url: str, path: Path, job_ms: float) -> tuple[App, Any]:
    app = App(url)
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    @app.task(name="work", queue=_QUEUE, retention=None)
    async def work() -> None:
        granted = current_job().job.fetched_at
        os.write(out, f"1 {time.time() * 1000:.3f} {granted}\n".encode())
        await asyncio.sleep(job_ms / 1000)
        os.write(out, f"-1 {time.time() * 1000:.3f} {granted}\n".encode())

    return app, work


def _work(url: str, path: str, job_ms: float, over: Any) -> None:
    app, _ = _app(url, Path(path), job_ms)

    async def serve() -> None:
        worker = Worker(app, [_QUEUE], concurrency=20)
        running = asyncio.create_task(worker.run())
        await asyncio.to_thread(over.wait)
        worker.stop()
        await running

    with new_runner() as runner:
        runner.run(serve())
    app.close()


def _wait_for_workers(app: App, processes: int) -> None:
    ends = time.monotonic() + 60
    while len(asyncio.run(app.store.workers())) < processes:
        if time.monotonic() > ends:
            raise click.ClickException("the processes did not get ready")
        time.sleep(0.1)


def _judge(lines: list[list[str]], seconds: float, max_running: int, rate: Rate, judge: bool) -> list[str]:
    steps = sorted((float(at), int(step)) for step, at, _ in lines)
    now = most = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    began = sorted(float(at) for step, at, _ in lines if step == "1")
    granted = sorted(int(at) for step, _, at in lines if step == "1")
    early = sum(float(at) < int(granted_at) for step, at, granted_at in lines if step == "1")
    after = [at for at in granted if granted[0] + 1_000 <= at < granted[0] + seconds * 1000 - 500]
    average = (len(after) - 1) / (after[-1] - after[0]) * 1000 if len(after) > 1 else 0.0
    wanted = 1000 / rate.step
    worst = _worst(granted, rate)
    print(f"{len(began):,} jobs; most at once {most} of {max_running}; begun before their instant: {early}")
    print(f"after the first second {average:.2f}/s of {wanted:.2f}/s ({average / wanted - 1:+.2%})")
    print(f"worst window: {worst:+.2f} starts beyond rate * t + burst (by the store's grants)")
    faults = []
    if most > max_running:
        faults.append(f"{most} ran at once")
    if worst > 1e-6:
        faults.append(f"{worst:.2f} starts too many in a window")
    if early:
        faults.append(f"{early} jobs began before their instant")
    if judge and abs(average / wanted - 1) > _OFF:
        faults.append(f"the average is off by {average / wanted - 1:+.2%}")
    return faults


def _worst(granted: list[int], rate: Rate) -> float:
    """By how many starts any window exceeds rate * t + burst.

    One pass is enough: the worst window begins at the start that is furthest behind the even pace.
    """
    worst, best = float("-inf"), float("inf")
    for number, at in enumerate(granted):
        best = min(best, number - at / rate.step)
        worst = max(worst, number - at / rate.step - best + 1 - rate.burst)
    return worst


if __name__ == "__main__":
    main()
