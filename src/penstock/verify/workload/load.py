"""The load of a run, drawn from the seed: the jobs to enqueue, cancel and reschedule.

Without a share of process jobs, 3 of 100 jobs run in a process of their own. With one, each job is drawn from
the process shapes with that probability, else from the others.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.client.job_call import JobCall

__all__ = ["PROCESS_SHAPES", "SHAPES", "PlannedJob", "Shape", "draw"]


@dataclass(frozen=True)
class PlannedJob:
    """A job to enqueue, and the operation (cancel or reschedule) that follows `after` this many seconds."""

    call: JobCall[Any]
    verb: str = ""
    after: float = 0.0


#: Jobs of a burst become due together, every so many seconds.
_BURST_EVERY = 2.0

#: Draws one job of a shape; `tasks` is the module of the tasks.
Shape = Callable[[random.Random, Any], PlannedJob]


def draw(rng: random.Random, tasks: Any, process_share: float | None = None) -> PlannedJob:
    """Draw the next job of a producer."""
    shapes = SHAPES
    if process_share is not None:
        shapes = PROCESS_SHAPES if rng.random() < process_share else _OTHER_SHAPES
    (shape,) = rng.choices(list(shapes), list(shapes.values()))
    return shape(rng, tasks)


def _plain(rng: random.Random, tasks: Any) -> PlannedJob:
    return PlannedJob(tasks.quick.using(priority=rng.randint(-100, 100)).job(rng.randrange(1_000)))


def _in_thread(rng: random.Random, tasks: Any) -> PlannedJob:
    return PlannedJob(tasks.in_thread.job(rng.randrange(1_000)))


def _in_process(rng: random.Random, tasks: Any) -> PlannedJob:
    return PlannedJob(tasks.in_process.job(rng.randrange(40)))


def _delayed(rng: random.Random, tasks: Any) -> PlannedJob:
    return PlannedJob(tasks.quick.using(delay=round(rng.uniform(0.1, 4.0), 3)).job(1))


def _retried(rng: random.Random, tasks: Any) -> PlannedJob:
    return PlannedJob(tasks.fails_at_first.job(rng.randint(1, 3)))


def _snoozed(rng: random.Random, tasks: Any) -> PlannedJob:
    return PlannedJob(tasks.snoozes.job(time.monotonic() + rng.uniform(0.2, 1.0)))


def _long(rng: random.Random, tasks: Any) -> PlannedJob:
    task = rng.choice([tasks.slow, tasks.slow_in_thread])
    return PlannedJob(task.job(round(rng.uniform(0.5, 3.0), 3)))


def _cancelled(rng: random.Random, tasks: Any) -> PlannedJob:
    """A job that is cancelled while it waits, while it runs, or after its end."""
    task = rng.choice([tasks.slow.using(delay="2s"), tasks.slow, tasks.quick])
    call = task.job(1) if task is tasks.quick else task.job(2.0)
    return PlannedJob(call, "cancel", rng.uniform(0.0, 2.5))


def _rescheduled(rng: random.Random, tasks: Any) -> PlannedJob:
    return PlannedJob(tasks.quick.using(delay="2s").job(2), "reschedule", rng.uniform(0.0, 1.5))


def _at_most_once(rng: random.Random, tasks: Any) -> PlannedJob:
    return PlannedJob(tasks.once.job(rng.randrange(1_000)))


def _unique(rng: random.Random, tasks: Any) -> PlannedJob:
    return PlannedJob(tasks.alone.job(rng.randrange(20)))


def _debounced(rng: random.Random, tasks: Any) -> PlannedJob:
    return PlannedJob(tasks.debounced.using(delay="500ms").job(rng.randrange(10), rng.randrange(1_000)))


def _in_order(rng: random.Random, tasks: Any) -> PlannedJob:
    return PlannedJob(tasks.in_order.job(rng.randrange(8), rng.randrange(1_000)))


def _two_at_once(rng: random.Random, tasks: Any) -> PlannedJob:
    return PlannedJob(tasks.two_at_once.job(rng.randrange(4)))


def _collected(rng: random.Random, tasks: Any) -> PlannedJob:
    return PlannedJob(tasks.together.job(rng.randrange(1_000)))


#: Shapes, with their share in percent.
SHAPES: dict[Shape, int] = {
    _plain: 30,
    _in_thread: 10,
    _in_process: 3,
    _delayed: 12,
    _retried: 8,
    _snoozed: 2,
    _long: 2,
    _cancelled: 4,
    _rescheduled: 2,
    _at_most_once: 6,
    _unique: 5,
    _debounced: 2,
    _in_order: 7,
    _two_at_once: 3,
    _collected: 4,
}
_OTHER_SHAPES = {shape: share for shape, share in SHAPES.items() if shape is not _in_process}


def _short_in_process(rng: random.Random, tasks: Any) -> PlannedJob:
    return PlannedJob(tasks.short_in_process.job(rng.randrange(1_000)))


def _burst_in_process(rng: random.Random, tasks: Any) -> PlannedJob:
    """A short job that is due with all others of its kind, so that many lie ready in the children."""
    delay = _BURST_EVERY - time.time() % _BURST_EVERY
    return PlannedJob(tasks.short_in_process.using(delay=round(delay, 3)).job(rng.randrange(1_000)))


def _delayed_in_process(rng: random.Random, tasks: Any) -> PlannedJob:
    delay = round(rng.uniform(0.1, 4.0), 3)
    return PlannedJob(tasks.in_process.using(delay=delay).job(rng.randrange(5)))


def _retried_in_process(rng: random.Random, tasks: Any) -> PlannedJob:
    return PlannedJob(tasks.fails_at_first_in_process.job(rng.randint(1, 3)))


def _long_in_process(rng: random.Random, tasks: Any) -> PlannedJob:
    return PlannedJob(tasks.slow_in_process.job(round(rng.uniform(0.3, 1.0), 3)))


def _cancelled_in_process(rng: random.Random, tasks: Any) -> PlannedJob:
    return PlannedJob(tasks.slow_in_process.job(1.0), "cancel", rng.uniform(0.0, 1.2))


def _at_most_once_in_process(rng: random.Random, tasks: Any) -> PlannedJob:
    return PlannedJob(tasks.once_in_process.job(rng.randrange(1_000)))


def _in_order_in_process(rng: random.Random, tasks: Any) -> PlannedJob:
    return PlannedJob(tasks.in_order_in_process.job(rng.randrange(8), rng.randrange(1_000)))


#: Shapes of jobs that run in a process of their own, with their share in percent.
PROCESS_SHAPES: dict[Shape, int] = {
    _in_process: 10,
    _short_in_process: 15,
    _burst_in_process: 35,
    _delayed_in_process: 12,
    _retried_in_process: 10,
    _long_in_process: 1,
    _cancelled_in_process: 2,
    _at_most_once_in_process: 8,
    _in_order_in_process: 7,
}
