"""What the producers of a run enqueue, and what they take back: drawn from the seed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.client.job_call import JobCall

__all__ = ["SHAPES", "Order", "Shape", "draw"]


@dataclass(frozen=True)
class Order:
    """One job, and what its producer does to it `after` so many seconds: cancel, reschedule or nothing."""

    call: JobCall[Any]
    verb: str = ""
    after: float = 0.0


#: Draws one order of its shape; `tasks` is the module.
Shape = Callable[[random.Random, Any], Order]


def draw(dice: random.Random, tasks: Any) -> Order:
    """The next order of a producer."""
    (shape,) = dice.choices(_SHAPES, _WEIGHTS)
    return shape(dice, tasks)


def _plain(dice: random.Random, tasks: Any) -> Order:
    return Order(tasks.quick.using(priority=dice.randint(-100, 100)).job(dice.randrange(1_000)))


def _in_thread(dice: random.Random, tasks: Any) -> Order:
    return Order(tasks.in_thread.job(dice.randrange(1_000)))


def _in_process(dice: random.Random, tasks: Any) -> Order:
    return Order(tasks.in_process.job(dice.randrange(40)))


def _delayed(dice: random.Random, tasks: Any) -> Order:
    return Order(tasks.quick.using(delay=round(dice.uniform(0.1, 4.0), 3)).job(1))


def _retried(dice: random.Random, tasks: Any) -> Order:
    return Order(tasks.fails_at_first.job(dice.randint(1, 3)))


def _snoozed(dice: random.Random, tasks: Any) -> Order:
    return Order(tasks.snoozes.job(time.monotonic() + dice.uniform(0.2, 1.0)))


def _long(dice: random.Random, tasks: Any) -> Order:
    task = dice.choice([tasks.slow, tasks.slow_in_thread])
    return Order(task.job(round(dice.uniform(0.5, 3.0), 3)))


def _called_off(dice: random.Random, tasks: Any) -> Order:
    """While it waits, while it runs, or when it is over already."""
    task = dice.choice([tasks.slow.using(delay="2s"), tasks.slow, tasks.quick])
    call = task.job(1) if task is tasks.quick else task.job(2.0)
    return Order(call, "cancel", dice.uniform(0.0, 2.5))


def _put_off(dice: random.Random, tasks: Any) -> Order:
    return Order(tasks.quick.using(delay="2s").job(2), "reschedule", dice.uniform(0.0, 1.5))


def _at_most_once(dice: random.Random, tasks: Any) -> Order:
    return Order(tasks.once.job(dice.randrange(1_000)))


def _unique(dice: random.Random, tasks: Any) -> Order:
    return Order(tasks.alone.job(dice.randrange(20)))


def _debounced(dice: random.Random, tasks: Any) -> Order:
    return Order(tasks.debounced.using(delay="500ms").job(dice.randrange(10), dice.randrange(1_000)))


def _in_order(dice: random.Random, tasks: Any) -> Order:
    return Order(tasks.in_order.job(dice.randrange(8), dice.randrange(1_000)))


def _two_at_once(dice: random.Random, tasks: Any) -> Order:
    return Order(tasks.two_at_once.job(dice.randrange(4)))


def _collected(dice: random.Random, tasks: Any) -> Order:
    return Order(tasks.together.job(dice.randrange(1_000)))


#: Shapes and how often of a hundred.
SHAPES: dict[Shape, int] = {
    _plain: 30,
    _in_thread: 10,
    _in_process: 3,
    _delayed: 12,
    _retried: 8,
    _snoozed: 2,
    _long: 2,
    _called_off: 4,
    _put_off: 2,
    _at_most_once: 6,
    _unique: 5,
    _debounced: 2,
    _in_order: 7,
    _two_at_once: 3,
    _collected: 4,
}
_SHAPES, _WEIGHTS = list(SHAPES), list(SHAPES.values())
