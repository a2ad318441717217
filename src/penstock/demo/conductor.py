"""Runs the demo: enqueues, starts two workers, kills one, waits, and checks everything against a second source."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from penstock.demo.survey import Survey, Totals, files_under, total
from penstock.draft import Draft
from penstock.errors import PenstockError
from penstock.handle import Handle
from penstock.job import Ref, State
from penstock.testing.ledger import Ledger, Verdict, acheck
from penstock.testing.ledger.history import read

__all__ = ["DemoFailed", "Place", "Progress", "Results", "conduct"]

#: Nothing ended for that long: something is wrong, and the log will tell (s).
_PATIENCE = 60.0
_LOOK = 0.02
_UNDONE = (State.SCHEDULED, State.AVAILABLE, State.RUNNING, State.RETRYABLE, State.PARKED)
_CHUNK = 1_000


class DemoFailed(PenstockError):
    """The demo could not be run to its end; the message says why, and where the workers' log is."""


@dataclass
class Place:
    """Where a run of the demo keeps its things."""

    workdir: Path
    url: str
    namespace: str = ""

    @property
    def ledger(self) -> Path:
        return self.workdir / "ledger"

    @property
    def log(self) -> Path:
        return self.workdir / "worker.log"


@dataclass
class Progress:
    """How far it is: jobs completed of jobs enqueued, per queue; and what happened."""

    done: dict[str, int] = field(default_factory=dict)
    of: dict[str, int] = field(default_factory=dict)
    news: str = ""


@dataclass
class Results:
    """What came of it."""

    root: Path
    files: int
    found: Totals
    direct: Totals
    differing: list[str]
    verdict: Verdict
    enqueued: int
    seconds: float
    direct_seconds: float
    delayed: int
    workers: int

    @property
    def rate(self) -> float:
        return self.verdict.completed / self.seconds if self.seconds else 0.0

    @property
    def good(self) -> bool:
        """Nothing lost, nothing different, every promise kept."""
        return not self.differing and self.verdict.ok and self.verdict.completed == self.enqueued


@dataclass
class _Jobs:
    """What was enqueued, by what it is about."""

    parse: dict[str, Handle[Survey]] = field(default_factory=dict)
    hash: dict[str, Handle[str]] = field(default_factory=dict)
    sums: dict[str, Handle[Totals]] = field(default_factory=dict)
    delayed: int = 0

    @property
    def total(self) -> int:
        return len(self.parse) + len(self.hash) + len(self.sums)


async def conduct(
    root: Path, place: Place, *, kill: bool, processes: int = 2, tell: Callable[[Progress], None]
) -> Results:
    """The whole demo on the files below `root`; `tell` hears of its progress. Raises DemoFailed."""
    files = [str(path) for path in files_under(root)]
    if not files:
        raise DemoFailed(f"there is no .py file below {root}")
    with _environment(place):
        from penstock.demo import tasks  # it reads the environment

    app = tasks.app
    began = time.monotonic()
    with _workers(place, processes) as supervisor:
        jobs = _enqueue_files(files)
        watch = _Watch(place, supervisor, tell, jobs)
        kills = _Killer(Ledger(place.ledger, note="the demo's killer"), supervisor) if kill else None
        await watch.until_done(("parse", "read"), kills)
        _enqueue_sums(jobs)
        await watch.until_done(("parse", "read", "sum"), None)
        seconds = time.monotonic() - began
    direct_began = time.monotonic()
    direct = await asyncio.to_thread(_directly, root)
    direct_seconds = time.monotonic() - direct_began
    verdict = await acheck(place.ledger, app.store)
    found, differing = await _compare(jobs, direct)
    app.close()
    return Results(
        root=root,
        files=len(files),
        found=found,
        direct=total(direct[path] for path in sorted(direct)),
        differing=differing,
        verdict=verdict,
        enqueued=jobs.total,
        seconds=seconds,
        direct_seconds=direct_seconds,
        delayed=jobs.delayed,
        workers=processes,
    )


# ── producing ────────────────────────────────────────────────────────────────────────────────────


def _enqueue_files(files: Sequence[str]) -> _Jobs:
    """Two jobs per file. A few are unlucky, a few are delayed, spread evenly."""
    from penstock.demo.tasks import app, hash_file, parse_file

    jobs = _Jobs()
    late: dict[str, Handle[Survey]] = {}
    drafts: list[Draft[Survey] | Draft[str]] = []
    some = max(3, len(files) // 5)
    for i, path in enumerate(files):
        if i % some == some - 1:
            late[path] = parse_file.using(delay=1 + (i // some) % 2).enqueue(path)
        else:
            drafts.append(parse_file.job(path, unlucky=i % some == 0))
        drafts.append(hash_file.job(path, unlucky=i % some == 1))
    handles = iter(app.enqueue_many(drafts))
    for path in files:
        jobs.parse[path] = late.get(path) or next(handles)
        jobs.hash[path] = next(handles)
    jobs.delayed = len(late)
    return jobs


def _enqueue_sums(jobs: _Jobs) -> None:
    """One job per directory, once its files are parsed."""
    from penstock.demo.tasks import app, sum_directory

    ids: dict[str, list[str]] = defaultdict(list)
    for path, handle in jobs.parse.items():
        ids[os.path.dirname(path)].append(handle.id)
    drafts = [sum_directory.job(mine, unlucky=i % 50 == 1) for i, mine in enumerate(ids.values())]
    jobs.sums = dict(zip(ids, app.enqueue_many(drafts), strict=True))


# ── the workers ──────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _environment(place: Place) -> Iterator[None]:
    """What tells this process and the workers where the jobs are; restored at the end of the block."""
    from penstock.demo import variables

    given = {variables.URL: place.url, variables.NAMESPACE: place.namespace, variables.LEDGER: str(place.ledger)}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
