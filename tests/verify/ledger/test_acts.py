"""Rules about the acts of operators: what an act explains, and what it does not."""

from __future__ import annotations

import pytest

from penstock.core.job import State
from penstock.verify.ledger import facts
from tests.verify.ledger.history_builder import QUEUE, HistoryBuilder


@pytest.fixture
def history() -> HistoryBuilder:
    history = HistoryBuilder()
    history.enqueue("a", 0)
    return history


def test_a_job_that_was_retried_ends_a_second_time(history: HistoryBuilder) -> None:
    history.run("a", 10, 20)
    history.operate("retry", "a", 30, answer="completed")
    history.settle("a", 50, history.start("a", 40, pid=3), "dead")
    history.keep("a", State.DEAD)
    verdict = history.verdict_on()
    assert (verdict.findings, verdict.dead, verdict.reruns) == ([], 1, {"operator": 1})


@pytest.mark.parametrize("kept", [State.COMPLETED, State.DEAD])
def test_a_retry_whose_answer_was_lost_may_have_been_applied_or_not(
    history: HistoryBuilder, kept: State
) -> None:
    history.run("a", 10, 20)
    history.operate("retry", "a", 30, answer="unknown")
    if kept is State.DEAD:
        history.settle("a", 50, history.start("a", 40, pid=3), "dead")
    history.keep("a", kept)
    assert history.promises() == []


@pytest.mark.parametrize(("kept", "found"), [(State.AVAILABLE, []), (State.COMPLETED, ["fencing"])])
def test_an_end_while_a_retry_waits_for_its_answer_was_before_it(
    history: HistoryBuilder, kept: State, found: list[str]
) -> None:
    """The retry found the job completed: a job that is completed later had another run."""
    token = history.start("a", 10)
    history.operate("retry", "a", 19, answer="completed", took=10)
    history.settle("a", 20, token)
    history.keep("a", kept)
    assert history.promises(finished=False) == found


def test_a_job_that_is_gone_after_its_retry_is_lost(history: HistoryBuilder) -> None:
    history.run("a", 10, 20)
    history.operate("retry", "a", 30, answer="completed")
    verdict = history.verdict_on()
    assert ([one.promise for one in verdict.findings], verdict.lost) == (["lost"], 1)


def test_an_outcome_of_a_lease_from_before_the_retry_ends_no_job(history: HistoryBuilder) -> None:
    history.settle("a", 20, history.start("a", 10), answer="")
    history.operate("retry", "a", 30, answer="retryable")
    assert history.promises() == ["lost"]


def test_a_retried_job_that_is_offered_to_a_waiting_worker_runs_after_the_run_before(
    history: HistoryBuilder,
) -> None:
    """Its worker had offered its slots before the first lease of the job, and its attempts count anew."""
    history.settle("a", 20, history.start("a", 10, attempt=2), "dead")
    history.operate("retry", "a", 30, answer="dead")
    history.settle("a", 50, history.start("a", 40, pid=3, offered=5_000_000))
    history.keep("a", State.COMPLETED)
    assert history.promises() == []


def test_a_discarded_job_is_dead(history: HistoryBuilder) -> None:
    history.operate("discard", "a", 10)
    history.keep("a", State.DEAD)
    verdict = history.verdict_on()
    assert (verdict.findings, verdict.dead) == ([], 1)


def test_a_discarded_job_that_completes_is_found(history: HistoryBuilder) -> None:
    history.operate("discard", "a", 10)
    history.run("a", 20, 30)
    history.keep("a", State.COMPLETED)
    assert history.promises() == ["one end"]


@pytest.mark.parametrize("before", ["available", "dead", "cancelled"])
def test_a_job_that_an_operator_has_completed_is_completed(history: HistoryBuilder, before: str) -> None:
    if before != "available":
        history.settle("a", 20, history.start("a", 10), before)
    history.operate("complete", "a", 30, answer=before)
    history.keep("a", State.COMPLETED)
    verdict = history.verdict_on()
    assert (verdict.findings, verdict.completed) == ([], 1)


def test_a_completed_job_that_runs_and_dies_is_found(history: HistoryBuilder) -> None:
    history.operate("complete", "a", 10)
    history.settle("a", 30, history.start("a", 20), "dead")
    history.keep("a", State.DEAD)
    assert history.promises() == ["one end"]


def test_a_completed_job_that_is_dead_as_before_is_found(history: HistoryBuilder) -> None:
    history.settle("a", 20, history.start("a", 10), "dead")
    history.operate("complete", "a", 30, answer="dead")
    history.keep("a", State.DEAD)
    assert history.promises() == ["one end"]


def test_a_completion_without_an_answer_may_have_been_done_or_not(history: HistoryBuilder) -> None:
    for id, state in (("a", State.COMPLETED), ("b", State.DEAD)):
        history.settle(id, 20, history.start(id, 10), "dead")
        history.operate("complete", id, 30, answer="unknown")
        history.keep(id, state)
    assert history.promises() == []


def test_an_edited_job_without_its_new_arguments_is_found(history: HistoryBuilder) -> None:
    history.write(facts.OperationAsked, 10, QUEUE, "a", "edit", value='{"n": 2}')
    history.write(facts.OperationAnswered, 11, QUEUE, "a", "edit", "available")
    history.keep("a", State.AVAILABLE)
    (finding,) = history.verdict_on(finished=False).findings
    assert finding.promise == "acts"


@pytest.mark.parametrize("verb", ["delete", "move"])
def test_a_deleted_job_is_gone(history: HistoryBuilder, verb: str) -> None:
    history.operate(verb, "a", 10)
    verdict = history.verdict_on()
    assert (verdict.findings, verdict.deleted) == ([], 1)


@pytest.mark.parametrize("verb", ["delete", "move"])
def test_a_deleted_job_that_is_in_the_store_is_found(history: HistoryBuilder, verb: str) -> None:
    history.operate(verb, "a", 10)
    history.keep("a", State.AVAILABLE)
    assert history.promises(finished=False) == ["acts"]


def test_a_deleted_job_that_is_leased_is_found(history: HistoryBuilder) -> None:
    history.operate("delete", "a", 10)
    history.run("a", 20, 30)
    assert history.promises() == ["acts"]


@pytest.mark.parametrize("answer", ["", "running", "collecting", "unknown"])
def test_a_delete_that_may_have_removed_nothing_says_nothing(history: HistoryBuilder, answer: str) -> None:
    history.operate("delete", "a", 10, answer=answer)
    history.run("a", 20, 30)
    history.keep("a", State.COMPLETED)
    assert history.promises() == []


@pytest.mark.parametrize(("flow", "found"), [("flow", set()), ("another", {"cause", "attempts", "one end"})])
def test_a_job_that_its_flow_had_cancelled_runs_again_with_another_one_that_is_retried(
    flow: str, found: set[str]
) -> None:
    history = HistoryBuilder()
    history.enqueue("retried", 0, flow="flow")
    history.enqueue("other", 0, flow=flow)
    history.enqueue("other.child", 0, flow="its gather")
    for id in ("retried", "other", "other.child"):
        history.settle(id, 20, history.start(id, 10), "cancelled")
    history.operate("retry", "retried", 30, answer="cancelled")
    for id in ("retried", "other", "other.child"):
        history.run(id, 40, 50, pid=3)
        history.keep(id, State.COMPLETED)
    assert set(history.promises()) == found


@pytest.mark.parametrize(("kind", "found"), [("store", []), ("act", ["kept"])])
def test_a_delete_whose_first_reply_a_fault_swallowed_found_nothing_the_second_time(
    history: HistoryBuilder, kind: str, found: list[str]
) -> None:
    history.settle("a", 20, history.start("a", 10), keep=10**15)
    history.operate("delete", "a", 30, answer="", took=10)
    history.fault(kind, 35, target=0 if kind == "store" else -1)
    assert history.promises() == found


@pytest.mark.parametrize(("answer", "found"), [("running", []), ("", ["early"])])
def test_a_flow_that_is_asked_to_stop_undoes_its_steps_before_it_is_due(
    history: HistoryBuilder, answer: str, found: list[str]
) -> None:
    history.settle("a", 20, history.start("a", 10), "retryable", error="Boom", delay=1_000)
    history.operate("cancel", "a", 30, answer=answer)
    history.settle("a", 50, history.start("a", 40, attempt=2), "cancelled")
    history.keep("a", State.CANCELLED)
    assert history.promises() == found
