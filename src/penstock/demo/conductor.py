"""Runs the demo: starts two workers, enqueues, kills a worker, waits, and checks all results."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from penstock.client.handle import Handle
from penstock.core.job import State
from penstock.demo.demo_folder import DemoFailed, DemoFolder, DemoProgress, children_in
from penstock.demo.survey import Survey, Totals, files_under, total
from penstock.stores.contract import Store
from penstock.verify.ledger import Ledger, Verdict, check

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


# ── the workers ──────────────────────────────────────────────────────────────────────────────────


QUEUES = ("parse", "read", "sum")
#: Timeout without any completed job (s).
_PATIENCE = 60.0
_LOOK = 0.1
_UNDONE = (State.SCHEDULED, State.AVAILABLE, State.RUNNING, State.RETRYABLE, State.PARKED)


@contextlib.contextmanager
def workers(
    folder: DemoFolder,
    processes: int,
    *,
    app: str = "penstock.demo.tasks:app",
    queues: Sequence[str] = QUEUES,
    drain: str = "30s",
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `penstock worker` with this many processes during the block; they share the cores."""
    command = [sys.executable, "-m", "penstock", "worker", app, "--drain-timeout", drain]
    options = ["--queues", ",".join(queues), "--processes", str(processes), "--concurrency", "20"]
    slots = max(1, (os.cpu_count() or 1) // processes)
    environment = {"PENSTOCK_PROCESS_SLOTS": str(slots), **os.environ}
    with folder.log.open("ab") as log:
        supervisor = subprocess.Popen(  # noqa: S603 (a program of ours, in words of ours)
            [*command, *options], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield supervisor
    finally:
        _end(supervisor)


def _end(supervisor: subprocess.Popen[bytes]) -> None:
    """Stop the workers: drain, then stop at once, then kill.

    After Ctrl-C at a terminal they have already got one signal, so the first one here stops them at once.
    """
    for number, patience in ((signal.SIGTERM, 15.0), (signal.SIGTERM, 15.0), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            supervisor.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            supervisor.wait(patience)
            return


def wait_for(
    queues: Sequence[str],
    of: dict[str, int],
    store: Store,
    supervisor: subprocess.Popen[bytes],
    folder: DemoFolder,
    tell: Callable[[DemoProgress], None],
    killer: Killer | None,
) -> None:
    """Wait until no unfinished job is left in these queues, and let the killer act meanwhile."""
    seen, changed = -1, time.monotonic()
    while True:
        counts = {info.name: info.counts for info in store.sync.queues()}
        done = {name: counts.get(name, {}).get(State.COMPLETED, 0) for name in of}
        news = killer.look(done, of) if killer is not None else ""
        tell(DemoProgress(done, of, news, children_in(folder.children)))
        if not any(counts.get(name, {}).get(state) for name in queues for state in _UNDONE):
            return
        if sum(done.values()) != seen:
            seen, changed = sum(done.values()), time.monotonic()
        if supervisor.poll() is not None:
            raise DemoFailed(
                f"the workers ended too soon (exit code {supervisor.returncode}): see {folder.log}"
            )
        if time.monotonic() - changed > _PATIENCE:
            raise DemoFailed(f"nothing was completed for {_PATIENCE:.0f} s: see {folder.log}")
        time.sleep(_LOOK)


class Killer:
    """Kills one worker process with SIGKILL once 40 % of the parse jobs are done, while its children run.

    The worker and its children are stopped with SIGSTOP first, to know exactly what they run.
    """

    def __init__(self, folder: DemoFolder, share: float = 0.4) -> None:
        self._folder = folder
        self._ledger = Ledger(folder.ledger, note="the demo's killer") if folder.with_ledger else None
        self._share = share
        self._done = False

    def look(self, done: dict[str, int], of: dict[str, int]) -> str:
        """Kill a process if it is time. Returns a message about the kill, or an empty text."""
        if self._done or done["parse"] < self._share * of["parse"]:
            return ""
        for pid, _ in self._busy().most_common():
            if held := self._kill(pid):
                self._done = True
                return f"worker process {pid} was killed by SIGKILL while it ran {held} job(s)"
        return ""

    def _busy(self) -> Counter[int]:
        """Number of jobs that the children run now, per worker process."""
        return Counter(child.worker for child in children_in(self._folder.children) if child.since)

    def _kill(self, pid: int) -> int:
        children = [child.pid for child in children_in(self._folder.children) if child.worker == pid]
        stopped = [one for one in (pid, *children) if _signal(one, signal.SIGSTOP)]
        held = self._busy()[pid] if pid in stopped else 0
        if held:
            if self._ledger is None:
                os.kill(pid, signal.SIGKILL)
            else:
                self._ledger.kill(pid)
        if not held:  # else the children die stopped: awake, one could start a job after the recorded kill
            for one in stopped:
                _signal(one, signal.SIGCONT)
        return held


def _signal(pid: int, number: int) -> bool:
    """Send this signal; False if the process has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
