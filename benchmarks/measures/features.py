"""The cost of features in use: enqueue and drain as a share of the same jobs without a feature."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from benchmarks.feature_tasks import KEYS, FeatureTasks
from benchmarks.measures.figure import Figure, FigureGroup, Lab, Sample
from benchmarks.rig import Rig
from penstock import Task
from penstock.encryption import new_key

__all__ = ["FEATURES", "GROUP"]

#: Members of a batch; the number of jobs is a multiple, so that no batch has to wait for its last members.
_MEMBERS = 100
_PERIODIC = 100
_PLAIN = "plain"


class Feature(msgspec.Struct, frozen=True):
    """A feature: the task that uses it, and what else it needs."""

    title: str
    task: str = _PLAIN
    encrypted: bool = False
    periodic: int = 0
    prepare: Callable[[Rig], object] = lambda rig: None


def _limit_rate(rig: Rig) -> object:
    """The highest rate that a queue can have: no job has to wait for it."""
    return rig.app.queue("default").settings(rate="1000000/s", burst=1_000_000)


FEATURES = {
    "unique": Feature("unique key (`unique=True`, all different)", "unique"),
    "partition": Feature(f"concurrency key ({KEYS:,} keys)".replace(",", " "), "partition"),
    "fair": Feature(f"fair share ({KEYS:,} tenants)".replace(",", " "), "fair"),
    "rate": Feature("rate limit of the queue, never reached", prepare=_limit_rate),
    "batch": Feature(f"batches of {_MEMBERS} (members/s)", "batch"),
    "encryption": Feature("encryption (`key=`)", encrypted=True),
    "result": Feature("result kept for 10 minutes", "result"),
    "periodic": Feature(f"{_PERIODIC} periodic entries due every second", periodic=_PERIODIC),
}


def take(lab: Lab) -> Iterator[Sample]:
    """Measure plain jobs before every third feature; shares are of the median of these."""
    plain: list[dict[str, float]] = []
    found: dict[str, dict[str, float]] = {}
    for n, name in enumerate(lab.sizes.features or FEATURES):
        if n % 3 == 0:
            plain.append(_rates(lab, Feature(_PLAIN)))
        found[name] = _rates(lab, FEATURES[name])
    for act in plain[0]:
        whole = statistics.median(rates[act] for rates in plain)
        yield f"{_PLAIN}_{act}", whole
        for name, rates in found.items():
            if act in rates:
                yield f"{name}_{act}", rates[act] / whole * 100


def _rates(lab: Lab, feature: Feature) -> dict[str, float]:
    """Jobs per second, one process."""
    key = new_key() if feature.encrypted else None
    knobs = {"BENCH_PERIODIC": str(feature.periodic)} | ({"PENSTOCK_KEY": key} if key else {})
    rig = Rig(
        lab.setup,
        lab.folder,
        lab.concurrency,
        tasks=partial(FeatureTasks, key=key, periodic=feature.periodic),
        served="benchmarks.served_features:app",
        knobs=knobs,
    )
    with rig:
        assert isinstance(rig.tasks, FeatureTasks)
        feature.prepare(rig)
        jobs, rates = _enqueued(lab, rig, rig.tasks.of_features[feature.task])
        with rig.workers():
            rig.wait(jobs)
            rates["drain"] = rig.counters.rate()
    if feature.periodic:  # nothing that concerns an enqueue
        return {"drain": rates["drain"]}
    return rates


def _enqueued(lab: Lab, rig: Rig, task: Task[[int], object]) -> tuple[int, dict[str, float]]:
    """The number of jobs, and the rates of enqueuing them one by one and in bulk."""
    arguments, sizes = itertools.count(), lab.sizes
    enqueue, job = task.enqueue, task.job
    enqueue(next(arguments))
    started, n = time.perf_counter(), 1
    while (spent := time.perf_counter() - started) < sizes.seconds:
        enqueue(next(arguments))
        n += 1
    rates = {"one": (n - 1) / spent}
    rig.app.enqueue_many([job(next(arguments)) for _ in range(-n % _MEMBERS)])
    started = time.perf_counter()
    for _ in range(sizes.jobs // sizes.chunk):
        rig.app.enqueue_many([job(next(arguments)) for _ in range(sizes.chunk)])
    bulk = sizes.jobs // sizes.chunk * sizes.chunk
    rates["bulk"] = bulk / (time.perf_counter() - started)
    return n + -n % _MEMBERS + bulk, rates


GROUP = FigureGroup(
    "features",
    "Features in use, one process: enqueue and drain as a share of the same jobs without a feature",
    (
        Figure(_PLAIN, "plain (jobs/s)", "/s"),
        *(Figure(name, feature.title, "%") for name, feature in FEATURES.items()),
    ),
    take,
    stores=("sqlite", "redis"),
    columns=(("_one", "one by one"), ("_bulk", "`enqueue_many`"), ("_drain", "drain")),
)
