"""Soak test: millions of no-ops through one worker process, a few of them failing. Does anything grow?

Jobs come in waves, so the queue stays short; with `--minutes` they come evenly over that time. Half of the
failing jobs fail once and are retried. The other half die; the store keeps few dead jobs, so a steady state
is reached early. One job in a hundred records how long after its enqueue it started. The worker is measured
after its first jobs and then repeatedly.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click

from benchmarks.machine import describe
from benchmarks.rig import Rig, Setup, worker_process
from benchmarks.soak.picture import picture
from benchmarks.soak.samples import KEEP_DEAD, Sample, faults, growth, look
from penstock import JobCall

_WAVE = 1_000
#: One in this many jobs records how long it has waited.
_STAMP = 100
#: Interval of even waves (s); short, so that the waves are small and a job does not wait for its own wave.
_BEAT = 0.02


@click.command()
@click.option("--jobs", default=1_000_000, show_default=True)
@click.option("--minutes", type=float, help="Spread them over so long.  [as fast as they are done]")
@click.option("--failing", default=0.01, show_default=True, help="The share of jobs that fail.")
@click.option("--first", default=50_000, show_default=True, help="Growth counts from there on.")
@click.option("--samples", "count", default=10, show_default=True, help="How often it is looked at.")
@click.option("--store", type=click.Choice(["sqlite", "redis"]), default="sqlite", show_default=True)
@click.option("--durability", type=click.Choice(["full", "normal", "aof"]), help="SQLite's  [full], Redis's.")
@click.option("--picture", "drawn", type=click.Path(path_type=Path, dir_okay=False), help="An SVG file.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where the file goes.  [the system's for temporary files]",
)
def main(
    jobs: int,
    minutes: float | None,
    failing: float,
    first: int,
    count: int,
    store: str,
    durability: str | None,
    drawn: Path | None,
    folder: Path | None,
) -> None:
    """Run the soak test. Exit code 1 if something grows after the first jobs.

    That is: the worker by more than 10 MB, its descriptors or threads, its store, or the delay of starts.
    """
    if first * 2 > jobs:
        raise click.UsageError(f"--jobs={jobs} is not twice as many as --first={first}")
    if (durability == "aof") != (store == "redis") and durability is not None:
        raise click.UsageError(f"{store} has no --durability={durability}")
    setup = Setup(store, durability or ("full" if store == "sqlite" else ""))
    print(describe())
    rate = None if minutes is None else jobs / (minutes * 60)
    marks = sorted({first, *(jobs * part // count for part in range(1, count + 1))})
    with Rig(setup, folder or Path(tempfile.gettempdir())) as rig:
        samples = list(_run(rig, [mark for mark in marks if mark >= first], failing, rate))
    if drawn is not None:
        drawn.write_text(picture(samples, f"{setup.name}: {jobs:,} jobs through one worker process"))
    found = faults(samples)
    print(
        "\n".join(found)
        or f"stable: the worker grew by {growth(samples):+.1f} MB after its first {first:,} jobs"
    )
    sys.exit(1 if found else 0)


def _run(rig: Rig, marks: list[int], failing: float, rate: float | None) -> Iterator[Sample]:
    """Print and yield a sample at each mark."""
    calls = _calls(rig, failing)
    knobs = {"PENSTOCK_KEEP_DEAD_COUNT": str(KEEP_DEAD), "PENSTOCK_PRUNE_EVERY": "1s"}
    log = rig.shm / "worker.log"
    print(
        f"{'jobs':>10} {'jobs/s':>8} {'worker RSS':>11} {'PSS':>7} {'all PSS':>8} {'fds':>4} {'threads':>8} "
        f"{'store':>8} {'dead':>6} {'p50':>8} {'p99':>8}"
    )
    busy, sent, waits = 0.0, 1, 0
    with worker_process(rig.url, rig.shm, log, knobs=knobs) as process:
        rig.app.enqueue_many(itertools.islice(calls, sent))
        _wait(rig, sent, process, log)  # until the worker serves
        for mark in marks:
            started, before = time.monotonic(), sent
            while sent < mark:
                wave = min(_wave(rate), mark - sent)
                rig.app.enqueue_many(itertools.islice(calls, wave))
                sent += wave
                if rate is not None:
                    time.sleep(max(0.0, started + (sent - before) / rate - time.monotonic()))
                _wait(rig, sent - max(_WAVE, 2 * wave), process, log)
            _wait(rig, sent, process, log)
            busy += time.monotonic() - started
            time.sleep(1.5)  # time for a prune, and for settling the last outcomes
            elapsed = rig.counters.elapsed()
            yield _shown(look(rig, process.pid, sent, busy, elapsed[waits:]))
            waits = len(elapsed)


def _wave(rate: float | None) -> int:
    return _WAVE if rate is None else max(1, round(rate * _BEAT))


def _calls(rig: Rig, failing: float) -> Iterator[JobCall[None]]:
    """An endless stream of no-ops, with evenly spread failing and time-stamped jobs."""
    noop, fail, stamp = rig.tasks.noop.job, rig.tasks.fail.job, rig.tasks.stamp.job
    due, failed = 0.0, 0
    for n in itertools.count(1):
        due += failing
        if n % _STAMP == 0:
            yield stamp(time.monotonic_ns())
        elif due >= 1:
            due -= 1
            failed += 1
            yield fail(failed % 2 == 0)
        else:
            yield noop()


def _wait(rig: Rig, n: int, process: subprocess.Popen[bytes], log: Path) -> None:
    total, since = -1, time.monotonic()
    while (now := rig.counters.total() + rig.counters.instants()) < n:
        if now != total:
            total, since = now, time.monotonic()
        if process.poll() is not None or time.monotonic() - since > 60:
            raise click.ClickException(f"{now:,} of {n:,} jobs ended, then none: {log.read_text()[-2000:]}")
        time.sleep(0.002)


def _shown(sample: Sample) -> Sample:
    print(
        f"{sample.jobs:>10,} {sample.jobs / sample.seconds:>8,.0f} {sample.worker_rss:>8.1f} MB "
        f"{sample.worker_pss:>7.1f} {sample.all_pss:>8.1f} {sample.descriptors:>4} {sample.threads:>8} "
        f"{sample.size:>8.1f} {sample.dead:>6,} {sample.p50:>5.1f} ms {sample.p99:>5.1f} ms",
        flush=True,
    )
    return sample


if __name__ == "__main__":
    main()
