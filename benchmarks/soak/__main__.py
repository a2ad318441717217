"""A million no-ops through one worker process, a few of them failing: does anything grow?

Jobs come in waves, so that the queue stays short. Half of those that fail do so once and are tried again;
half fail for good and are kept as dead, of which the store is told to keep few, so that a steady state is
reached early. The worker is measured after its first 50 000 jobs and at the end; its file from the time
on when as many dead jobs are kept as ever will be.
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
import msgspec

from benchmarks.machine import describe, memory, session
from benchmarks.rig import Rig, Setup, worker_process
from penstock import Draft, State

_WAVE = 1_000
_KEEP_DEAD = 500
_LIMIT_MB = 10.0
_FILE_SLACK = 1.10, 4e6


class Sample(msgspec.Struct):
    """What the worker and its file were like after so many jobs. MB; `size` has the log with it."""

    jobs: int
    seconds: float
    worker_rss: float
    worker_pss: float
    all_pss: float
    size: float
    dead: int


@click.command()
@click.option("--jobs", default=1_000_000, show_default=True)
@click.option("--failing", default=0.01, show_default=True, help="The share of jobs that fail.")
@click.option("--first", default=50_000, show_default=True, help="Growth counts from there on.")
@click.option("--durability", type=click.Choice(["full", "normal"]), default="full", show_default=True)
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where the file goes.  [the system's for temporary files]",
)
def main(jobs: int, failing: float, first: int, durability: str, folder: Path | None) -> None:
    """Exit code 1: the worker grew by more than 10 MB after its first 50 000 jobs, or its file grew on."""
    if first * 2 > jobs:
        raise click.UsageError(f"--jobs={jobs} is not twice as many as --first={first}")
    print(describe())
    with Rig(Setup("sqlite", durability), folder or Path(tempfile.gettempdir())) as rig:
        samples = list(_run(rig, jobs, failing, first))
    faults = _faults(samples, first)
    print(
        "\n".join(faults)
        or f"stable: the worker grew by {_growth(samples):+.1f} MB after its first {first:,} jobs"
    )
    sys.exit(1 if faults else 0)


def _run(rig: Rig, jobs: int, failing: float, first: int) -> Iterator[Sample]:
    """Show and give a sample after the first jobs, and after every tenth of all."""
    marks = sorted({first, *(jobs * tenth // 10 for tenth in range(1, 11))})
    marks = [mark for mark in marks if mark >= first]
    drafts = _drafts(rig, failing)
    knobs = {"PENSTOCK_KEEP_DEAD_COUNT": str(_KEEP_DEAD), "PENSTOCK_PRUNE_EVERY": "1s"}
    log = rig.shm / "worker.log"
    print(f"{'jobs':>10} {'jobs/s':>8} {'worker RSS':>11} {'PSS':>7} {'all PSS':>8} {'file':>8} {'dead':>6}")
    busy, sent = 0.0, 0
    with worker_process(rig.url, rig.shm, log, knobs=knobs) as process:
        for mark in marks:
            started = time.monotonic()
            while sent < mark:
                wave = min(_WAVE, mark - sent)
                rig.app.enqueue_many(itertools.islice(drafts, wave))
                sent += wave
                _wait(rig, sent - _WAVE, process, log)
            _wait(rig, sent, process, log)
            busy += time.monotonic() - started
            yield _shown(_sample(rig, process.pid, sent, busy))


def _drafts(rig: Rig, failing: float) -> Iterator[Draft[None]]:
    """No-ops without end; among them, evenly, the failing ones."""
    noop, fail = rig.tasks.noop.job, rig.tasks.fail.job
    due, failed = 0.0, 0
    while True:
        due += failing
        if due >= 1:
            due -= 1
            failed += 1
            yield fail(failed % 2 == 0)
        else:
            yield noop()


def _wait(rig: Rig, n: int, process: subprocess.Popen[bytes], log: Path) -> None:
    total, since = -1, time.monotonic()
    while (now := rig.counters.total()) < n:
        if now != total:
            total, since = now, time.monotonic()
        if process.poll() is not None or time.monotonic() - since > 60:
            raise click.ClickException(f"{now:,} of {n:,} jobs ended, then none: {log.read_text()[-2000:]}")
        time.sleep(0.002)


def _sample(rig: Rig, supervisor: int, jobs: int, seconds: float) -> Sample:
    time.sleep(1.5)  # a prune, and the settling of the last outcomes
    pids = session(supervisor)
    worker_rss, worker_pss = memory([pid for pid in pids if pid != supervisor])
    files = [path for path in (rig.file, Path(f"{rig.file}-wal")) if path.exists()]
    dead = sum(queue.counts.get(State.DEAD, 0) for queue in rig.app.store.sync.queues())
    return Sample(
        jobs,
        seconds,
        worker_rss,
        worker_pss,
        memory(pids)[1],
        sum(path.stat().st_size for path in files) / 1e6,
        dead,
    )


def _shown(sample: Sample) -> Sample:
    print(
        f"{sample.jobs:>10,} {sample.jobs / sample.seconds:>8,.0f} {sample.worker_rss:>8.1f} MB "
        f"{sample.worker_pss:>7.1f} {sample.all_pss:>8.1f} {sample.size:>8.1f} {sample.dead:>6,}",
        flush=True,
    )
    return sample


def _growth(samples: list[Sample]) -> float:
    return samples[-1].worker_pss - samples[0].worker_pss


def _faults(samples: list[Sample], first: int) -> list[str]:
    faults = []
    if _growth(samples) > _LIMIT_MB:
        faults.append(
            f"GREW: the worker by {_growth(samples):.1f} MB after its first {first:,} jobs "
            f"(limit {_LIMIT_MB:.0f})"
        )
    # until as many dead jobs are kept as ever will be, the file may grow
    settled = [sample for sample in samples[:-1] if sample.dead >= _KEEP_DEAD] or samples[-2:-1]
    factor, slack = _FILE_SLACK
    allowed = settled[0].size * factor + slack / 1e6
    if samples[-1].size > allowed:
        faults.append(
            f"GREW: the file from {settled[0].size:.1f} MB after {settled[0].jobs:,} jobs "
            f"to {samples[-1].size:.1f} MB at the end"
        )
    return faults


if __name__ == "__main__":
    main()
