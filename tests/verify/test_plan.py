"""The plan of faults depends on the seed; each type happens once before any happens twice."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from penstock import App
from penstock.errors import ConfigError
from penstock.verify.environment import Capabilities, environment_on
from penstock.verify.faults.chaos_run import ChaosRun, InjectedFault
from penstock.verify.faults.plan import (
    AREAS,
    FAULT_TYPES,
    FaultInjector,
    PlannedFault,
    choose,
    plan,
    possible,
)
from penstock.verify.fleet import Fleet
from penstock.verify.ledger import Ledger, Verdict
from penstock.verify.ledger.history import History, read
from penstock.verify.report.report import Account, Report, Spread, report_of
from penstock.verify.run_folder import RunFolder, RunRequest
from penstock.verify.workload import tasks
from penstock.verify.workload.load import SHAPES, draw


@pytest.mark.parametrize("area", AREAS)
def test_the_same_seed_draws_the_same_schedule(area: str) -> None:
    def first(seed: int) -> list[object]:
        return list(islice(plan(seed, area, list(FAULT_TYPES)), 40))

    assert first(7) == first(7)
    assert first(7) != first(8)


@pytest.mark.parametrize("area", AREAS)
def test_each_kind_has_its_turn_before_any_has_a_second_one(area: str) -> None:
    mine = [name for name, kind in FAULT_TYPES.items() if kind.area == area]
    steps = list(islice(plan(7, area, list(FAULT_TYPES)), len(mine) + 20))
    assert sorted(step.kind for step in steps if step.first) == sorted(mine)
    assert all(step.first for step in steps[: len(mine)])
    assert {step.kind for step in steps} <= set(mine)


def test_a_partition_without_kinds_does_nothing() -> None:
    assert list(plan(7, "store", ["kill-worker"])) == []


def test_the_plan_of_a_fault_type_does_not_depend_on_other_types() -> None:
    alone = list(islice(plan(7, "tasks", ["raise", "hang"]), 5))
    assert alone == list(islice(plan(7, "tasks", ["kill-worker", "raise", "hang", "reset"]), 5))


def test_every_shape_of_load_is_drawn_and_every_order_can_be_stored() -> None:
    rng = random.Random(7)
    orders = [draw(rng, tasks) for _ in range(2_000)]
    assert len({(order.call.template.task, order.verb) for order in orders}) >= len(SHAPES)
    again = random.Random(7)
    assert [order.verb for order in orders] == [draw(again, tasks).verb for _ in range(2_000)]


# ── what is possible where ───────────────────────────────────────────────────────────────────────


def test_all_means_all_that_is_possible_there() -> None:
    own = choose(["all"], Capabilities("sqlite"))
    assert {"kill-worker", "restart-store", "segfault"} <= set(own)
    assert not {"stop-store", "reset", "failover", "lost-shard", "script-flush", "disk-full"} & set(own)
    assert set(possible(Capabilities("redis-cluster", private=True, proxy=True))) == set(FAULT_TYPES) - {
        "power-cut"
    }
    unwired = {"power-cut", "reset", "half-open", "latency", "lost-shard"}
    assert set(possible(Capabilities("redis-sentinel", private=True))) == set(FAULT_TYPES) - unwired


def test_each_kind_that_is_not_possible_says_why() -> None:
    with pytest.raises(ConfigError) as caught:
        choose(["failover", "reset", "kill-worker", "wrath"], Capabilities("redis"))
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert "redis-cluster" in lines[0]
    assert "proxy" in lines[1]
    assert "'wrath'" in lines[2]


def test_a_fault_for_servers_of_the_runs_own_names_the_kind_of_server_to_start() -> None:
    with pytest.raises(ConfigError, match=r"with --private redis-sentinel$"):
        choose(["failover"], Capabilities("redis-sentinel"))


def test_a_lost_shard_is_a_fault_of_a_private_cluster_alone() -> None:
    with pytest.raises(ConfigError, match=r"with --private redis-cluster$"):
        choose(["lost-shard"], Capabilities("redis-cluster"))
    with pytest.raises(ConfigError, match=r"it needs redis-cluster, and this is redis$"):
        choose(["lost-shard"], Capabilities("redis", private=True, proxy=True))


# ── what a failover undoes ───────────────────────────────────────────────────────────────────────


class _Reigns:
    """A server whose master changes when it is told so."""

    def __init__(self) -> None:
        self.epoch = 1

    def masters_and_epochs(self) -> int:
        return self.epoch


def test_an_unplanned_failover_is_detected(tmp_path: Path) -> None:
    run, server = _run(tmp_path), _Reigns()
    run.server = server
    injector = FaultInjector(run)
    injector.detect_failovers()
    injector.detect_failovers()
    assert run.undone == []
    began = time.time_ns() // 1_000_000
    server.epoch += 1
    injector.detect_failovers()
    ((since, until),) = run.undone
    assert since < began <= until
    injector.detect_failovers()
    assert run.undone == [(since, until)]


# ── what a lost shard excuses ────────────────────────────────────────────────────────────────────


class _Shards:
    """A cluster of two, one of which can be lost."""

    shards = 2

    def lose(self, shard: int, until: Callable[[], None]) -> None:
        self.lost = shard
        until()


def test_a_lost_shard_names_its_own_queues_and_those_that_must_go_on(tmp_path: Path) -> None:
    run = _run(tmp_path)
    run.shards_by_queue = {"main": 0, "keys": 1, "slow": 1}
    run.server, run.over = _Shards(), _Skipped()
    FaultInjector(run).inject(PlannedFault(0.0, "lost-shard", (0.9, 0.5, 0.5), first=True))
    (fault,) = read(tmp_path / "ledger").faults
    assert (fault.cause, fault.target, fault.queues) == ("lost-shard", 0, ("keys", "slow"))
    assert run.server.lost == 1
    ((begin, end, queues),) = run.lost_shards
    assert begin <= end
    assert queues == ("main",)


class _Skipped(threading.Event):
    """A wait that is over at once, though the run is not."""

    def wait(self, timeout: float | None = None) -> bool:
        return False


# ── the verdict ──────────────────────────────────────────────────────────────────────────────────


def _run(folder: Path) -> ChaosRun:
    url = f"sqlite:///{folder / 'jobs.db'}"
    return ChaosRun(
        Fleet(RunFolder(folder, url, "verify-1"), RunRequest(1.0, [], seed=1, workers=1, rate=1)),
        Ledger(folder / "ledger"),
        App(url),
        lease=3.0,
        over=threading.Event(),
        tell=lambda news: None,
    )


def _report(folder: Path, *done: str, verdict: Verdict | None = None) -> Report:
    url = f"sqlite:///{folder / 'jobs.db'}"
    run = _run(folder)
    run.done += [InjectedFault(10.5, kind, "worker 1", seconds=0.25) for kind in done]
    return report_of(
        Account(
            request=RunRequest(60.0, ["kill-worker", "storm"], seed=1),
            environment=environment_on(url),
            history=History([], [], {}, set(), 0),
            verdict=verdict or Verdict(completed=1),
            run=run,
            began=10.0,
            started_at=1_700_000_000.0,
            reasons=[],
        )
    )


def test_what_was_asked_for_and_never_happened_breaks_the_verdict(tmp_path: Path) -> None:
    report = _report(tmp_path, "kill-worker", "kill-worker")
    assert report.injected == {"kill-worker": 2, "storm": 0}
    assert (report.verdict, report.reasons) == ("broken", ["storm was requested and never happened"])


def test_without_findings_and_with_all_that_was_asked_for_the_promises_are_kept(tmp_path: Path) -> None:
    report = _report(tmp_path, "storm", "kill-worker")
    assert report.kept
    assert [(fault.at, fault.seconds) for fault in report.faults] == [(0.5, 0.25), (0.5, 0.25)]
    assert report.started_at == "2023-11-14T22:13:20+00:00"


def test_a_run_in_which_nothing_could_be_done_proves_nothing(tmp_path: Path) -> None:
    report = _report(tmp_path, "storm", "kill-worker", verdict=Verdict(offered=900, refused=900))
    assert report.reasons == ["no job was completed: nothing was tested"]
    assert not report.kept


def test_a_spread_names_the_middle_and_the_worst() -> None:
    assert Spread.of([]) == Spread()
    spread = Spread.of(n / 100 for n in range(1, 201))
    assert (spread.n, spread.p50, spread.p99, spread.max) == (200, 1.01, 1.99, 2.0)


def test_a_file_of_the_runs_own_has_a_power_cut_and_the_users_has_none() -> None:
    assert "power-cut" in possible(Capabilities("sqlite", private=True))
    assert "power-cut" not in possible(Capabilities("sqlite"))


def test_every_type_of_fault_can_be_injected(tmp_path: Path) -> None:
    assert FaultInjector(_run(tmp_path)).kinds == set(FAULT_TYPES)
