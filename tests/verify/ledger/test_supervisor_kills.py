"""A supervisor kills a worker for a job that hangs: that explains the second runs of its other jobs alone.

Process 2 is the worker, 3 another one, 9 the supervisor. The job `hung` has a timeout of 1 s.
"""

from __future__ import annotations

import pytest

from penstock.verify.ledger.facts import Fault
from penstock.verify.ledger.rules.faults import SUPERVISOR_KILL
from tests.verify.ledger.history_builder import HistoryBuilder

_OVERDUE = "killed by its supervisor: job hung was past its deadline and did not react"
_DRAIN = "it did not end within the drain time"


def _history(*, killed_at: float = 12_000, cause: str = _OVERDUE, target: int = 2) -> HistoryBuilder:
    """The worker runs `hung` since 1 s and `a` since 11 s; another one runs `a` again at 13 s."""
    history = HistoryBuilder()
    for id in ("hung", "a"):
        history.enqueue(id, 0, timeout=1_000 if id == "hung" else 20_000, max_attempts=5)
    history.start("hung", 1_000)
    history.operate("cancel", "hung", 20_000, "cancelled")
    history.start("a", 11_000)
    history.write(Fault, killed_at, SUPERVISOR_KILL, target, cause, pid=9)
    history.run("a", 13_000, 13_010, pid=3, attempt=2)
    return history


def test_a_worker_that_is_killed_for_a_job_that_hangs_loses_its_other_jobs() -> None:
    verdict = _history().verdict_on().require()
    (again,) = verdict.duplicates
    assert (again.id, again.cause, again.fault_target) == ("a", SUPERVISOR_KILL, 2)
    assert (verdict.reruns, verdict.unexplained) == ({SUPERVISOR_KILL: 1}, 0)
    assert verdict.injected == {}  # nobody injected it


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(_history(target=4), id="another worker was killed"),
        pytest.param(_history(killed_at=10_000), id="it was killed before it had the job"),
        pytest.param(_history(killed_at=13_500), id="it was killed after the job had run again"),
        pytest.param(_history(killed_at=1_900), id="the job was not past its deadline"),
        pytest.param(_history(cause=_OVERDUE.replace("hung", "a")), id="the wrong job is named"),
        pytest.param(_history(cause="for no reason"), id="there is no reason"),
    ],
)
def test_a_kill_that_the_ledger_does_not_confirm_explains_nothing(history: HistoryBuilder) -> None:
    assert history.promises() == ["cause"]


def test_a_worker_that_is_killed_for_a_job_that_had_ended_is_found() -> None:
    history = _history()
    history.settle("hung", 1_500, "hung/2/1000", answer="unknown")
    assert "cause" in history.promises()


@pytest.mark.parametrize(("asked_at", "promises"), [(11_000, []), (11_500, ["cause"])])
def test_a_worker_that_drains_and_is_killed_has_asked_for_no_job(
    asked_at: float, promises: list[str]
) -> None:
    history = _history(cause=_DRAIN)
    history.enqueue("b", 0)
    history.settle("b", asked_at + 10, history.start("b", asked_at))
    assert history.promises() == promises
