"""The checker finds the planted bug of each mutant, under the same small chaos.

Two workers hold jobs; one is killed, the other is stopped for longer than its lease and resumed. The correct
behaviour is known, so each mutant must give its finding, and the correct store none.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.job import State
from penstock.stores.sqlite import file
from penstock.verify.ledger import Ledger, Verdict, check
from penstock.verify.ledger.history import read
from penstock.verify.ledger.story import Run
from penstock.verify.servers import disks
from tests.system.conftest import Place, Program
from tests.verify.ledger.honest_ledger import promises
from tests.verify.mutants import make

pytestmark = [pytest.mark.slow, pytest.mark.system]

ROOT = Path(__file__).parents[2]
JOBS = 24
_QUICK = {"PENSTOCK_LEASE": "3s", "PENSTOCK_HEARTBEAT": "500ms", "PENSTOCK_RECLAIM_EVERY": "250ms"}
_UNDONE = (State.SCHEDULED, State.AVAILABLE, State.RUNNING, State.RETRYABLE)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_a_store_that_keeps_its_promises_passes(place: Place) -> None:
    verdict = chaos(place, "none", forgets=0).require()
    assert (verdict.enqueued, verdict.completed, verdict.lost) == (JOBS, JOBS, 0)
    assert verdict.injected == {"kill-worker": 1, "stop-worker": 1}
    assert verdict.reruns["kill-worker"] > 0
    assert verdict.reruns["stop-worker"] > 0
    assert verdict.duplicated == sum(verdict.reruns.values())
    assert len(verdict.recoveries) == verdict.reruns["kill-worker"]


def test_a_store_that_acknowledges_before_the_run_is_found(place: Place) -> None:
    verdict = chaos(place, "ack before run", forgets=JOBS)
    assert promises(verdict.findings) == {"fencing"}
    says = {finding.says for finding in verdict.findings}
    assert says == {"the job is completed, and no lease holder settled it so"}


def test_a_store_that_settles_without_a_token_is_found(place: Place) -> None:
    verdict = chaos(place, "settle without token", forgets=0)
    stale = [finding for finding in verdict.findings if "a stale outcome" in finding.says]
    assert stale, verdict.report()
    assert {finding.promise for finding in stale} == {"fencing"}


def test_a_reclaim_that_forgets_one_job_is_found(place: Place) -> None:
    verdict = chaos(place, "reclaim forgets one", forgets=1)
    assert promises(verdict.findings) == {"one end"}
    (finding,) = verdict.findings
    assert finding.id == (place.folder / "forgotten").read_text()
    assert verdict.unfinished == 1


# ── a power cut ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mutant", ["none", "starts unsynced"])
def test_a_start_that_is_not_on_the_disk_is_found_by_a_power_cut(
    place: Place, mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "connection_class", disks.SyncTrackingConnection)
    disks.start_tracking(place.folder / "jobs.db")
    (place.folder / "ledger").mkdir()
    (place.folder / "at most once").touch()
    ledger = Ledger(place.folder / "ledger", note="chaos")
    app, held = make(place.folder)
    victim = _worker(place, mutant, slots=JOBS)
    app.enqueue_many([held.job(n) for n in range(JOBS)])
    place.until(lambda: len(_runs(place)) >= JOBS, "all jobs run")
    app.close()  # the last one to close a file writes all of it into the database
    ledger.kill(victim.pid, kind="power-cut")
    victim.wait()
    disks.cut_power(place.folder / "jobs.db")

    place.open("go")
    worker = _worker(place, "none", slots=JOBS)
    place.until(lambda: _undone(app) == 0, "the work is done")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    verdict = check(ledger.directory, app.store, asked=("power-cut",))
    app.close()
    if mutant == "none":
        verdict.require()
        assert (verdict.enqueued, verdict.dead, verdict.runs) == (JOBS, JOBS, JOBS)
    else:
        assert "at most once" in promises(verdict.findings), verdict.report()
        assert verdict.runs == 2 * JOBS


# ── the chaos ────────────────────────────────────────────────────────────────────────────────────


def chaos(place: Place, mutant: str, *, forgets: int) -> Verdict:
    """The verdict on it. The store with this bug never comes to the end of so many jobs."""
    (place.folder / "ledger").mkdir()
    ledger = Ledger(place.folder / "ledger", note="chaos")
    app, held = make(place.folder)
    victim, other = (_worker(place, mutant, slots=JOBS - 10) for _ in range(2))
    app.enqueue_many([held.job(n) for n in range(JOBS)])
    place.until(lambda: len(_runs(place)) >= JOBS, "all jobs run")
    ledger.kill(victim.pid, kind="kill-worker")
    third = _worker(place, mutant, slots=JOBS)
    _until_taken_over(place, victim, app, forgets)
    place.suspend(other.signal)
    ledger.stop(other.pid, kind="stop-worker")
    _until_taken_over(place, other, app, forgets)
    (place.folder / f"go.{other.pid}").touch()
    ledger.resume(other.pid, kind="stop-worker")
    place.until(lambda: not _going_on(place, other), "the stopped worker is done with what it had")

    place.open("go")
    place.until(lambda: _undone(app) <= forgets, "the work is done")
    for worker in (other, third):
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    verdict = check(ledger.directory, app.store, asked=("kill-worker", "stop-worker"))
    print(verdict.report())
    app.close()
    return verdict


def _worker(place: Place, mutant: str, *, slots: int) -> Program:
    path = f"{ROOT / 'src'}:{ROOT}"
    command = ("-m", "tests.verify.mutants", str(place.folder), mutant, str(slots))
    worker = place.start(*command, PYTHONPATH=path, **_QUICK)
    place.until(lambda: " serves " in worker.log, "the worker serves")
    return worker


def _runs(place: Place) -> list[Run]:
    return [run for story in read(place.folder / "ledger").stories for run in story.runs]


def _going_on(place: Place, worker: Program) -> int:
    """How many of its runs have not come to their end, or the store has not answered yet."""
    return sum(1 for run in _runs(place) if worker.pid in run.pids and not _is_over(run))


def _is_over(run: Run) -> bool:
    if run.end is None:
        return False
    return run.end.outcome == "interrupted" or any(act.answer is not None for act in run.acts)


def _until_taken_over(place: Place, worker: Program, app, forgets: int) -> None:
    """Until each job that this worker had runs elsewhere; but for as many as are never taken over."""

    def left() -> int:
        stories = read(place.folder / "ledger").stories
        return sum(1 for story in stories if worker.pid in story.runs[-1].pids) if stories else 0

    place.until(lambda: left() <= forgets, "its jobs are taken over")


def _undone(app) -> int:
    (info,) = app.store.sync.queues()
    return sum(info.counts.get(state, 0) for state in _UNDONE)
