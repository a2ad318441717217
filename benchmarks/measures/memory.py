"""The memory of an idle worker, and of each child process, connection, leased job and running attempt."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from benchmarks.machine import memory_of
from benchmarks.measures.figure import Figure, FigureGroup, Lab, Sample
from benchmarks.rig import ROOT, Rig, Running
from benchmarks.served_processes import ProcessTasks
from penstock.core.ids import mint_token
from penstock.stores.contract import Share
from penstock.verify import processes

__all__ = ["GROUP"]

_PROCESS_APP = "benchmarks.served_processes"


def take(lab: Lab) -> Iterator[Sample]:
    with lab.rig() as rig:
        with rig.workers():  # compiles the modules, unless they are
            rig.warm()
        with rig.workers() as running:
            rig.warm()
            time.sleep(lab.sizes.quiet_seconds)
            yield from _idle(running)
    yield from _children(lab)
    yield "async_attempt", _attempt(lab, "nap", lab.sizes.naps)
    yield "thread_attempt", _attempt(lab, "nap_thread", lab.sizes.nap_threads)
    with lab.rig() as rig:
        yield "leased", _leased(rig, lab.sizes.window)
        yield "connection", _connection(rig, lab.sizes.connections)


def _idle(running: Running) -> Iterator[Sample]:
    supervisor = memory_of(running.leader or 0)
    workers = [memory_of(pid) for pid in running.pids if pid != running.leader]
    yield "pss", supervisor.pss + sum(worker.pss for worker in workers)
    yield "supervisor_pss", supervisor.pss
    yield "supervisor_uss", supervisor.uss
    yield "worker_pss", workers[0].pss
    yield "worker_uss", workers[0].uss
    yield "rss", supervisor.rss + sum(worker.rss for worker in workers)


def _children(lab: Lab) -> Iterator[Sample]:
    """PSS of a child that runs process tasks, and of a plain interpreter that has imported the same app.

    The interpreter runs beside the child, so that both share the pages of the program's files alike.
    """
    knobs = {"PENSTOCK_PROCESS_SLOTS": "2"}
    command = [sys.executable, "-c", f"import {_PROCESS_APP}; print(); input()"]
    with (
        Rig(lab.setup, lab.folder, tasks=ProcessTasks, served=f"{_PROCESS_APP}:app", knobs=knobs) as rig,
        rig.workers() as running,
    ):
        nap = cast(ProcessTasks, rig.tasks).process["nap"]
        rig.app.enqueue_many([nap.job(lab.sizes.quiet_seconds) for _ in range(2)])
        while rig.queued():
            time.sleep(0.05)
        with subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as plain:
            assert plain.stdout is not None
            plain.stdout.readline()
            children = [memory_of(pid).pss for pid in running.pids if _is_child(pid)]
            own = memory_of(plain.pid).pss
            plain.communicate("\n")
    yield "child_pss", sum(children) / len(children)
    yield "child_beyond_app", sum(children) / len(children) - own


def _is_child(pid: int) -> bool:
    """Whether a process runs process tasks; the process that it was forked from has the same command line."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    return b"penstock.worker.pools" in command and not processes.children(pid)


def _attempt(lab: Lab, task: str, n: int) -> float:
    """What each of `n` attempts of this task that run at the same time adds to the worker (kB)."""
    with Rig(lab.setup, lab.folder, n) as rig, rig.workers() as running:
        rig.warm(n)
        time.sleep(lab.sizes.quiet_seconds)
        before = _worker(running)
        job = getattr(rig.tasks, task).job
        rig.app.enqueue_many([job(lab.sizes.nap_seconds) for _ in range(n)])
        rig.wait(n)
        grown = _worker(running) - before
        rig.settled()
        return grown * 1000 / n


def _worker(running: Running) -> float:
    return sum(memory_of(pid).uss for pid in running.pids if pid != running.leader)


def _leased(rig: Rig, n: int) -> float:
    """What each job that is leased and has not started takes in the worker's process (kB)."""
    store = rig.app.store

    async def fetch(limit: int) -> object:
        share, token = Share("default", limit, limit), mint_token()
        return await store.fetch([share], limit=limit, lease=60_000, worker="bench", token=token)

    async def fetched() -> float:
        await fetch(1)  # opens the connection
        gc.collect()
        tracemalloc.start()
        held = await fetch(n)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0]
        del held
        return grown / 1000 / n

    rig.fill(n + 1)
    try:
        return asyncio.run(fetched())
    finally:
        tracemalloc.stop()


#: Opens apps in a process of its own, whose memory has no holes yet, and prints what each of them takes (kB).
_APPS = """
import gc, os, sys
from benchmarks.machine import memory_of
from penstock import App
url, n = sys.argv[1], int(sys.argv[2])
apps = [App(url) for _ in range(n + 5)]
for app in apps[:5]:
    app.store.sync.queues()
gc.collect()
before = memory_of(os.getpid()).uss
for app in apps[5:]:
    app.store.sync.queues()
print((memory_of(os.getpid()).uss - before) * 1000 / n)
"""


def _connection(rig: Rig, n: int) -> float:
    """What each further idle connection takes in a process that enqueues (kB)."""
    command = [sys.executable, "-c", _APPS, rig.url, str(n)]
    return float(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


GROUP = FigureGroup(
    "memory",
    "Memory of an idle worker with one process that has run 100 jobs, and what jobs and connections add",
    (
        Figure("pss", "worker and supervisor, PSS", "MB", digits=1),
        Figure("supervisor_pss", "of that the supervisor", "MB", digits=1),
        Figure("worker_pss", "of that the worker process", "MB", digits=1),
        Figure("supervisor_uss", "not shared (USS): supervisor", "MB", digits=1),
        Figure("worker_uss", "not shared (USS): worker process", "MB", digits=1),
        Figure("rss", "worker and supervisor, RSS", "MB", digits=1),
        Figure("child_pss", "each child for process tasks, PSS", "MB", digits=1),
        Figure("child_beyond_app", "of that beyond an interpreter with the app", "MB", digits=1),
        Figure("async_attempt", "each running async attempt", "kB", digits=1),
        Figure("thread_attempt", "each running thread attempt", "kB", digits=1),
        Figure("leased", "each job leased ahead", "kB", digits=2),
        Figure("connection", "each further idle connection", "kB", digits=0),
    ),
    take,
    stores=("sqlite", "redis"),
)
