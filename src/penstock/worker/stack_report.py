"""The report of what a worker process does: the stacks of its running jobs, threads and tasks."""

from __future__ import annotations

import asyncio
import io
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType

from penstock.core.duration import format_ms
from penstock.core.stacks import frames_text, task_frames, thread_frames
from penstock.worker.executor.async_attempts import coroutine_of
from penstock.worker.leased_jobs import LeasedJob, LeasedJobs

__all__ = ["stack_report"]


def stack_report(leased_jobs: LeasedJobs, thread_of: Callable[[LeasedJob], int | None]) -> str:
    """The stacks of running jobs, then of the other threads and tasks of this process.

    `thread_of` returns the ident of the thread that runs a job, or None. The stack of a process task is
    missing, because it is in a child process.
    """
    text, threads = io.StringIO(), thread_frames()
    runners: set[asyncio.Task[None]] = set()
    now = time.monotonic()
    for leased in list(leased_jobs):
        if not leased.started or leased.over:
            continue
        age = format_ms(round((now - leased.started) * 1000))
        text.write(f"job {leased.job.queue}/{leased.job.id}, task {leased.job.task}, running for {age}\n")
        text.write(frames_text(_frames(leased, thread_of, threads, runners)) or "  (no Python stack here)\n")
        text.write("\n")
    for name, frames in threads.values():
        text.write(f"thread {name}\n{frames_text(frames)}\n")
    tasks = sorted(asyncio.all_tasks() - runners, key=asyncio.Task.get_name)
    for (name, stack), n in Counter((one.get_name(), frames_text(task_frames(one))) for one in tasks).items():
        text.write(f"{f'{n} tasks' if n > 1 else 'task'} {name}\n{stack}\n")
    return text.getvalue()


def _frames(
    leased: LeasedJob,
    thread_of: Callable[[LeasedJob], int | None],
    threads: dict[int, tuple[str, list[FrameType]]],
    runners: set[asyncio.Task[None]],
) -> list[FrameType]:
    """The frames of a running job. Its thread or task is not listed again."""
    ident = thread_of(leased)
    if ident is not None:
        return threads.pop(ident, ("", []))[1]
    if leased.runner is not None:
        runners.add(leased.runner)
        return task_frames(leased.runner, coroutine_of)
    return []
