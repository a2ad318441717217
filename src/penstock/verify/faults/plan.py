"""The plan of a run: fault types and pauses, drawn from the seed; the same seed gives the same plan."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.verify.faults.act_faults import ACTS
from penstock.verify.faults.types import FAULT_TYPES

__all__ = ["AREAS", "PlannedFault", "RunRequest", "plan"]

#: Areas, each with its own injector thread: shortest and longest pause between two of its faults (s).
AREAS: dict[str, tuple[float, float]] = {
    "processes": (0.5, 4.0),
    "store": (1.0, 4.0),
    "tasks": (0.2, 1.0),
    "acts": (0.2, 1.0),
}
#: Relative frequency of types whose recovery times are reported, and of acts on jobs (others: 1).
_OFTEN = {"kill-worker": 4, "restart-store": 2, **dict.fromkeys(ACTS, 4), "act-edit": 4, "act-bulk": 4}


@dataclass(frozen=True)
class RunRequest:
    """The parameters of a run.

    `process_share`: the share of jobs in processes of their own; `flow_share`: the share of orders that are
    flows (0 to 1).
    """

    seconds: float
    asked: Sequence[str]  # fault types
    seed: int
    workers: int = 2
    rate: float = 100.0
    process_share: float | None = None
    flow_share: float = 0.02


@dataclass(frozen=True)
class PlannedFault:
    """A fault to inject after a pause (s).

    `random_values` (0 to 1) choose its target and its details.
    """

    pause: float
    kind: str
    random_values: tuple[float, float, float]
    first: bool  # the first of its type


def plan(seed: int, area: str, asked: Sequence[str]) -> Iterator[PlannedFault]:
    """The endless plan of one area: each type once, then random types. Empty if no type is of this area."""
    kinds = [name for name in asked if FAULT_TYPES[name].area == area]
    rng = random.Random(f"{seed}/{area}")  # noqa: S311 (chaos by lot, no secret)
    round_of_all = rng.sample(kinds, len(kinds))
    for kind in round_of_all:
        yield _step(rng, area, kind, first=True)
    while kinds:
        (kind,) = rng.choices(kinds, [_OFTEN.get(kind, 1) for kind in kinds])
        yield _step(rng, area, kind, first=False)


def _step(rng: random.Random, area: str, kind: str, *, first: bool) -> PlannedFault:
    pause = rng.uniform(*AREAS[area])
    return PlannedFault(pause, kind, (rng.random(), rng.random(), rng.random()), first)
