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
from penstock.core.ids import mint
from penstock.stores.contract import Capability
from penstock.verify.ledger.facts import INVOICE

#: What flows and durable steps need of the store.
OF_FLOWS = (
    *(Capability.FLOW, Capability.STEPS, Capability.CHECKPOINTS, Capability.FOLLOW),
    *(Capability.UNIQUE, Capability.RETENTION, Capability.CHANGE),
)
#: Seconds between two bursts. The jobs of a burst become due together.
_BURST_EVERY = 2.0
#: New invoices per second.
_INVOICES = 2


@dataclass(frozen=True)
class PlannedJob:
    """A job to enqueue, and the operation (cancel or reschedule) that follows `after` this many seconds."""

    call: JobCall[Any]
    verb: str = ""
    after: float = 0.0


@dataclass(frozen=True)
class JobShape:
    """A kind of job: its share in percent, and what draws one; it is given the module of the tasks.

    - `verb`: an operation that follows `within` this many seconds, before, during or after the run.
    - `needs`: what the store must be able to do, besides the core.
    """

    share: int
    call: Callable[[random.Random, Any], JobCall[Any]]
    verb: str = ""
    within: float = 0.0
    needs: tuple[Capability, ...] = ()

    def draw(self, rng: random.Random, tasks: Any) -> PlannedJob:
        call = self.call(rng, tasks)
        return PlannedJob(call, self.verb, rng.uniform(0.0, self.within)) if self.verb else PlannedJob(call)


def draw(rng: random.Random, tasks: Any, process_share: float | None = None) -> PlannedJob:
    """Draw the next job of a producer; `tasks` is the module of the tasks."""
    shapes = SHAPES
    if process_share is not None:
        shapes = PROCESS_SHAPES if rng.random() < process_share else _OTHER_SHAPES
    can = tasks.app.store.can
    possible = [one for one in shapes.values() if all(map(can, one.needs))]
    (shape,) = rng.choices(possible, [one.share for one in possible])
    return shape.draw(rng, tasks)


def _plain(rng: random.Random, tasks: Any) -> Any:
    priority = rng.randint(-100, 100)
    task = tasks.quick.using(priority=priority) if tasks.app.store.can(Capability.PRIORITIES) else tasks.quick
    return task.job(rng.randrange(1_000))


def _long(rng: random.Random, tasks: Any) -> Any:
    task = rng.choice([tasks.slow, tasks.slow_in_thread])
    return task.job(round(rng.uniform(0.5, 3.0), 3))


def _cancelled(rng: random.Random, tasks: Any) -> Any:
    task = rng.choice([tasks.slow.using(delay="2s"), tasks.slow, tasks.quick])
    return task.job(1) if task is tasks.quick else task.job(2.0)


def _paid(rng: random.Random, tasks: Any) -> Any:
    """A call that all producers make at about the same time, also one of another release."""
    invoice = int(time.monotonic()) * _INVOICES + rng.randrange(_INVOICES)
    return tasks.pay.using(id=f"{INVOICE}{invoice}.{mint()}").job(invoice)


def _burst_in_process(rng: random.Random, tasks: Any) -> Any:
    """A short job that is due with all others of its kind, so that many lie ready in the children."""
    delay = _BURST_EVERY - time.time() % _BURST_EVERY
    return tasks.short_in_process.using(delay=round(delay, 3)).job(rng.randrange(1_000))


def _delay(rng: random.Random) -> float:
    return round(rng.uniform(0.1, 4.0), 3)


_FOLLOWED, _CHANGED = (Capability.FOLLOW,), (Capability.CHANGE,)
_UNIQUE, _PARTITIONED, _BATCHED = (Capability.UNIQUE,), (Capability.PARTITIONS,), (Capability.BATCHES,)

SHAPES: dict[str, JobShape] = {
    "plain": JobShape(27, _plain),
    "in thread": JobShape(10, lambda rng, t: t.in_thread.job(rng.randrange(1_000))),
    "in process": JobShape(3, lambda rng, t: t.in_process.job(rng.randrange(40))),
    "delayed": JobShape(12, lambda rng, t: t.quick.using(delay=_delay(rng)).job(1)),
    "retried": JobShape(8, lambda rng, t: t.fails_at_first.job(rng.randint(1, 3))),
    "snoozed": JobShape(2, lambda rng, t: t.snoozes.job(time.monotonic() + rng.uniform(0.2, 1.0))),
    "long": JobShape(2, _long),
    "cancelled": JobShape(4, _cancelled, "cancel", 2.5, _FOLLOWED),
    "rescheduled": JobShape(2, lambda _, t: t.quick.using(delay="2s").job(2), "reschedule", 1.5, _CHANGED),
    "at most once": JobShape(6, lambda rng, t: t.once.job(rng.randrange(1_000))),
    "unique": JobShape(5, lambda rng, t: t.deduplicated.job(rng.randrange(20)), needs=_UNIQUE),
    "paid": JobShape(3, _paid, needs=_UNIQUE),
    "debounced": JobShape(
        2,
        lambda rng, t: t.debounced.using(delay="500ms").job(rng.randrange(10), rng.randrange(1_000)),
        needs=_UNIQUE,
    ),
    "in order": JobShape(
        7, lambda rng, t: t.in_order.job(rng.randrange(8), rng.randrange(1_000)), needs=_PARTITIONED
    ),
    "two at once": JobShape(3, lambda rng, t: t.two_at_once.job(rng.randrange(4)), needs=_PARTITIONED),
    "collected": JobShape(4, lambda rng, t: t.together.job(rng.randrange(1_000)), needs=_BATCHED),
}
_OTHER_SHAPES = {name: shape for name, shape in SHAPES.items() if name != "in process"}

#: Shapes of jobs that run in a process of their own.
PROCESS_SHAPES: dict[str, JobShape] = {
    "in process": JobShape(10, SHAPES["in process"].call),
    "short in process": JobShape(15, lambda rng, t: t.short_in_process.job(rng.randrange(1_000))),
    "burst in process": JobShape(35, _burst_in_process),
    "delayed in process": JobShape(
        12, lambda rng, t: t.in_process.using(delay=_delay(rng)).job(rng.randrange(5))
    ),
    "retried in process": JobShape(10, lambda rng, t: t.fails_at_first_in_process.job(rng.randint(1, 3))),
    "long in process": JobShape(1, lambda rng, t: t.slow_in_process.job(round(rng.uniform(0.3, 1.0), 3))),
    "cancelled in process": JobShape(2, lambda _, t: t.slow_in_process.job(1.0), "cancel", 1.2, _FOLLOWED),
    "at most once in process": JobShape(8, lambda rng, t: t.once_in_process.job(rng.randrange(1_000))),
    "in order in process": JobShape(
        7,
        lambda rng, t: t.in_order_in_process.job(rng.randrange(8), rng.randrange(1_000)),
        needs=_PARTITIONED,
    ),
}
