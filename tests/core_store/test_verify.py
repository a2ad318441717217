"""The chaos run on a store that has the core alone, and how it accounts for jobs that it cannot read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.core.job import State
from penstock.stores.contract import Capability, QueueInfo
from penstock.verify.environment import Capabilities
from penstock.verify.faults.plan import FAULT_TYPES, choose, possible
from penstock.verify.ledger import Verdict
from penstock.verify.ledger.check import Snapshot, verdict_on
from penstock.verify.report.report import left_out
from penstock.verify.workload.load import PROCESS_SHAPES, SHAPES
from tests.verify.ledger.history_builder import QUEUE, HistoryBuilder

ROOT = Path(__file__).parents[2]
_CORE = frozenset({Capability.CORE})


def _verdict(history: HistoryBuilder, **counts: int) -> Verdict:
    queue = QueueInfo(QUEUE, {State(state): n for state, n in counts.items()})
    return verdict_on(history.build(), Snapshot({}, [queue], [], followed=False))


def test_a_job_with_an_end_in_the_ledger_is_accounted_for() -> None:
    history = HistoryBuilder()
    history.enqueue("a", 0)
    history.run("a", 10, 20)
    verdict = _verdict(history)
    assert (verdict.completed, verdict.lost, verdict.findings) == (1, 0, [])


def test_a_job_without_an_end_must_be_among_the_dead_of_its_queue() -> None:
    history = HistoryBuilder()
    for id in ("a", "b"):
        history.enqueue(id, 0)
        history.start(id, 10)
    history.settle("a", 20, history.start("a", 15, attempt=2), "dead")
    assert (_verdict(history, dead=2).dead, _verdict(history, dead=2).lost) == (2, 0)
    verdict = _verdict(history, dead=1)
    assert verdict.lost == 1
    assert [(one.promise, one.id) for one in verdict.findings if one.promise == "lost"] == [("lost", "b")]


def test_a_job_that_never_ran_is_lost() -> None:
    history = HistoryBuilder()
    history.enqueue("a", 0)
    assert _verdict(history).lost == 1


def test_what_is_left_out_is_named() -> None:
    assert left_out(frozenset(Capability)) == []
    lines = "\n".join(left_out(_CORE))
    for named in ("flows and durable steps", "act-bulk", "remote-stop", "jobs of the kind in order"):
        assert named in lines
    assert "kill-worker" not in lines


def test_a_fault_that_the_store_cannot_stand_is_refused_with_the_reason() -> None:
    core = Capabilities("sqlite", can=_CORE)
    assert {"kill-worker", "restart-store", "raise"} <= set(possible(core))
    assert not any(FAULT_TYPES[name].needs for name in possible(core))
    with pytest.raises(Exception, match="act-move: not possible here: the store cannot tell what became"):
        choose(["act-move"], core)


def test_each_kind_of_job_with_needs_is_named() -> None:
    lines = "\n".join(left_out(_CORE))
    kinds = {name: shape for name, shape in (SHAPES | PROCESS_SHAPES).items() if shape.needs}
    assert len(kinds) == 10
    assert all(f"jobs of the kind {name}" in lines for name in kinds)


@pytest.mark.system
@pytest.mark.slow
def test_a_run_keeps_all_promises(tmp_path: Path) -> None:
    """Each process of the run has the folder `everywhere` in its path, which makes its stores thin."""
    path = [ROOT / "tests" / "core_store" / "everywhere", ROOT, ROOT / "src"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    kinds = "kill-worker,kill-producer,restart-store,raise,os-exit,segfault,poison-payload"
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    options = f"--minutes 0.1 --seed 7 --rate 50 --faults {kinds} --dir {tmp_path / 'run'} --json".split()
    ran = subprocess.run(
        [sys.executable, "-m", "penstock", "--url", url, "verify", *options],
        cwd=tmp_path,
        env={**clean, "PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    report: dict[str, Any] = json.loads(ran.stdout) if ran.stdout else {}
    assert ran.returncode == 0, (ran.stderr, report.get("reasons"))
    assert (report["lost"], report["unfinished"], report["unexplained"], report["findings"]) == (0, 0, 0, [])
    assert report["completed"] > max(50, report["enqueued"] // 2)
    assert all(report["injected"].values())
    assert report["left_out"] == left_out(_CORE)
