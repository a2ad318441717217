"""Runs the demo: starts two workers, enqueues, kills a worker, waits, and checks all results."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from penstock.client.handle import Handle
from penstock.core.job import State
from penstock.demo.children import children_in
from penstock.demo.demo_folder import DemoFailed, DemoFolder, DemoProgress
from penstock.demo.survey import Survey, Totals, files_under, total
from penstock.demo.workers import Killer, wait_for, workers
from penstock.stores.contract import Store
from penstock.verify.ledger import Verdict, check

__all__ = ["Results", "conduct"]

_CHUNK = 1_000


@dataclass(frozen=True)
class Results:
    """The results of the demo. Without a ledger there is no `verdict`.

    `seconds`: from the first enqueue to the last end. `parse_seconds`: from the first start of a parse job to
    the last end. `direct_seconds`: of the same computation by plain processes.
    """

    root: Path
    found: Totals
    direct: Totals
    differing: list[str]  # differences between Penstock's results and the direct computation
    verdict: Verdict | None
    enqueued: int
    completed: int
    delayed: int
    seconds: float
    parse_seconds: float
    direct_seconds: float

    @property
    def rate(self) -> float:
        """Jobs per second, from the first enqueue to the last end."""
        return self.completed / self.seconds

    @property
    def good(self) -> bool:
        """Whether no job was lost, no result differs, and every guarantee was kept."""
        kept = self.verdict is None or self.verdict.ok
        return kept and not self.differing and self.completed == self.enqueued


@dataclass
class _Jobs:
    """The enqueued jobs: a parse and a hash for each file, a sum for each directory."""

    parse: dict[str, Handle[Survey]] = field(default_factory=dict)
    hash: dict[str, Handle[str]] = field(default_factory=dict)
    sums: dict[str, Handle[Totals]] = field(default_factory=dict)
    delayed: int = 0

    def counts(self) -> dict[str, int]:
        return {"parse": len(self.parse), "read": len(self.hash), "sum": len(self.sums)}


def conduct(root: Path, folder: DemoFolder, *, kill: bool, tell: Callable[[DemoProgress], None]) -> Results:
    """Run the demo on the files below `root`. Calls `tell` with the progress. Raises DemoFailed.

    Two worker processes do the work, so that one goes on while the other is killed; without a kill, one.
    """
    files = [str(path) for path in files_under(root)]
    if not files:
        raise DemoFailed(f"there is no .py file below {root}: give another directory with --path")
    tasks = _load(folder)
    store = tasks.app.store
    began = time.monotonic()
    with workers(folder, 2 if kill else 1) as supervisor:
        jobs = _enqueue_parses(tasks, files)
        killer = Killer(folder) if kill else None
        wait_for(("parse",), jobs.counts(), store, supervisor, folder, tell, killer)
        _enqueue_others(tasks, files, jobs)
        wait_for(("read", "sum"), jobs.counts(), store, supervisor, folder, tell, None)
        seconds = time.monotonic() - began
    tell(DemoProgress(news="computing the same without Penstock"))
    began = time.monotonic()
    direct = _directly(root)
    direct_seconds = time.monotonic() - began
    found = _results(store, jobs.parse)
    verdict = check(folder.ledger, store) if folder.with_ledger else None
    results = Results(
        root=root,
        found=total(one for one in _in_order(found) if one is not None),
        direct=total(_in_order(direct)),
        differing=[*_differences(found, direct), *_other_differences(store, jobs, direct)],
        verdict=verdict,
        enqueued=sum(jobs.counts().values()),
        completed=_completed(store, jobs) if verdict is None else verdict.completed,
        delayed=jobs.delayed,
        seconds=seconds,
        parse_seconds=_span(folder),
        direct_seconds=direct_seconds,
    )
    tasks.app.close()
    return results


# ── the jobs ─────────────────────────────────────────────────────────────────────────────────────


def _load(folder: DemoFolder) -> Any:
    """Import the tasks, on the store of this folder; their module reads the environment on import."""
    folder.announce()
    from penstock.demo import tasks

    return tasks


def _enqueue_parses(tasks: Any, files: Sequence[str]) -> _Jobs:
    """Enqueue a job per file. A few fail in their first attempt; a few are delayed by 1 or 2 seconds."""
    jobs = _Jobs()
    every = max(3, len(files) // 6)
    punctual = []
    for i, path in enumerate(files):
        if i % every == every - 1:
            # a high priority, so that its lateness does not depend on the length of the queue
            later = tasks.parse_file.using(delay=1 + i // every % 2, priority=10)
            jobs.parse[path] = later.enqueue(path)
        else:
            punctual.append(path)
    jobs.delayed = len(jobs.parse)
    unlucky = set(files[::every])
    calls = [tasks.parse_file.job(path, path in unlucky) for path in punctual]
    jobs.parse.update(zip(punctual, tasks.app.enqueue_many(calls), strict=True))
    return jobs


def _enqueue_others(tasks: Any, files: Sequence[str], jobs: _Jobs) -> None:
    """Enqueue a job per file that hashes it, and one per directory, once its files are parsed.

    Some fail in their first attempt.
    """
    unlucky = set(files[1 :: max(3, len(files) // 6)])
    ids: dict[str, list[str]] = defaultdict(list)
    for path in sorted(jobs.parse):
        ids[os.path.dirname(path)].append(jobs.parse[path].id)
    sums = [tasks.sum_directory.job(mine, i == 0) for i, mine in enumerate(ids.values())]
    calls = [tasks.hash_file.job(path, path in unlucky) for path in files]
    handles = tasks.app.enqueue_many([*sums, *calls])
    jobs.sums.update(zip(ids, handles[: len(sums)], strict=True))
    jobs.hash.update(zip(files, handles[len(sums) :], strict=True))


def _results(store: Store, handles: Mapping[str, Handle[Any]]) -> dict[str, Any]:
    """The results of the jobs; None for a job without a result."""
    names = list(handles)
    found: dict[str, Any] = {}
    for start in range(0, len(names), _CHUNK):
        some = names[start : start + _CHUNK]
        for name, job in zip(some, store.sync.get([handles[name].ref for name in some]), strict=True):
            there = job is not None and job.result is not None
            found[name] = handles[name].result(timeout=0) if there else None
    return found


def _completed(store: Store, jobs: _Jobs) -> int:
    counts = {info.name: info.counts for info in store.sync.queues()}
    return sum(counts.get(name, {}).get(State.COMPLETED, 0) for name in jobs.counts())


def _span(folder: DemoFolder) -> float:
    """Seconds from the first start of a parse job to the last end."""
    children = children_in(folder.children)
    return max(child.last for child in children) - min(child.first for child in children) if children else 0.0


# ── the direct computation ───────────────────────────────────────────────────────────────────────


def _directly(root: Path) -> dict[str, Survey]:
    """Compute the same surveys without Penstock, with one plain process per processor."""
    parts = os.cpu_count() or 1
    running = [
        subprocess.Popen(  # noqa: S603 (a program of ours, in words of ours)
            [sys.executable, "-m", "penstock.demo.survey", str(root), f"{part}/{parts}"],
            stdout=subprocess.PIPE,
        )
        for part in range(parts)
    ]
    surveys: dict[str, Survey] = {}
    for process in running:
        out, _ = process.communicate()
        if process.returncode:
            raise DemoFailed(f"the computation without Penstock failed (exit code {process.returncode})")
        surveys.update(msgspec.json.decode(out, type=dict[str, Survey]))
    return surveys


def _differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*found, *expected}):
        if found.get(name) != expected.get(name):
            yield f"{name}: {found.get(name)} instead of {expected.get(name)}"


def _other_differences(store: Store, jobs: _Jobs, direct: Mapping[str, Survey]) -> Iterator[str]:
    """Compare the hashes and the sums with the directly computed surveys."""
    yield from _differences(_results(store, jobs.hash), {path: one.sha256 for path, one in direct.items()})
    of: dict[str, list[Survey]] = defaultdict(list)
    for path in sorted(direct):
        of[os.path.dirname(path)].append(direct[path])
    yield from _differences(_results(store, jobs.sums), {name: total(mine) for name, mine in of.items()})


def _in_order(surveys: Mapping[str, Any]) -> list[Any]:
    return [surveys[path] for path in sorted(surveys)]
