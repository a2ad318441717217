"""Functions of durable steps that record when they run."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

from penstock.app.attempt import current_job
from penstock.verify.ledger.fact_base import Fact
from penstock.verify.ledger.flow_facts import StepRan

__all__ = ["recorded_step"]

P = ParamSpec("P")
R = TypeVar("R")


class _Writer(Protocol):
    def write(self, *facts: Fact) -> None: ...


def recorded_step(writer: _Writer, step: str, function: Callable[P, R]) -> Callable[P, R]:
    """A function of a step that records its begin and its return in a ledger.

    `step`: the name of the step; of an undo: `undo!` and the name of the step.
    """

    def ran(over: bool) -> StepRan:
        job = current_job().job
        now = (time.time_ns() // 1_000_000, time.monotonic_ns(), os.getpid())
        return StepRan(*now, job.queue, job.id, job.token or "", step, over)

    @functools.wraps(function)
    def record(*args: P.args, **kwargs: P.kwargs) -> R:
        writer.write(ran(over=False))
        value = function(*args, **kwargs)
        writer.write(ran(over=True))
        return value

    return record
