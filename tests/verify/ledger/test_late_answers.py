"""An answer that a process reads late: the store executed the call at any moment since it was sent.

Each test has a history in which the call may have been executed before a loss that the store's settings
allow, and one in which the call was sent after it: the second is a broken promise.
"""

from __future__ import annotations

import pytest

from penstock.core.flow import NodeState
from penstock.core.job import Ref, State
from penstock.stores.contract import QueueStats, StoredStep
from penstock.verify.ledger import facts
from penstock.verify.ledger.rules.counters import counters
from penstock.verify.ledger.rules.faults import ForgivenSpans
from tests.verify.ledger.history_builder import EPOCH, QUEUE, HistoryBuilder

#: The power is cut at 200, and the writes since 100 are lost.
WINDOW = (EPOCH + 100, EPOCH + 200)
BEFORE, AFTER = 150, 240
#: When the late answer is read.
LATE = 2_500


@pytest.fixture
def history() -> HistoryBuilder:
    history = HistoryBuilder()
    history.fault("power-cut", 100, seconds=0.1)
    return history


def _broken(history: HistoryBuilder) -> set[str]:
    return set(history.promises(forgiven=[WINDOW]))


def _read_late(
    history: HistoryBuilder, id: str, sent: float, *, answer: str = "gone", **more: object
) -> None:
    """A worker reads the answer to its fetch, runs the job, and is refused."""
    token = history.start(id, LATE, sent=int(sent * 1_000_000), **more)
    history.settle(id, LATE + 10, token, answer=answer)


# ── a flow ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("at", "broken"), [(BEFORE, False), (50, True)])
def test_a_body_whose_lease_was_lost_may_start_before_a_member_that_was_added_again(
    history: HistoryBuilder, at: float, broken: bool
) -> None:
    """Before the loss another job was this member: it had ended, and the store has lost it."""
    history.enqueue("member", 0)
    history.enqueue("body", 0)
    history.chain("flow", "member", "body")
    history.start("body", at)
    history.fault("kill", at + 10, target=2)
    history.run("member", 300, 310, pid=3)
    history.run("body", 320, 330, pid=3)
    assert ("flows" in _broken(history)) is broken


@pytest.mark.parametrize(("at", "broken"), [(BEFORE, False), (50, True)])
def test_a_gather_whose_job_may_be_lost_may_fail(history: HistoryBuilder, at: float, broken: bool) -> None:
    history.enqueue("parent", 0)
    history.chain("flow", "parent", end=NodeState.DEAD)
    token = history.start("parent", 10)
    history.enqueue("parent.child", at)
    history.record("parent", "gather!", 300, token, '{"failed":["parent.child"]')
    history.settle("parent", 310, token, "dead")
    assert ("flows" in _broken(history)) is broken


@pytest.mark.parametrize(("at", "broken"), [(BEFORE, False), (50, True)])
def test_an_attempt_that_outlives_a_loss_has_undone_what_is_lost(
    history: HistoryBuilder, at: float, broken: bool
) -> None:
    history.enqueue("saga", 0)
    token = history.start("saga", 10)
    history.record("saga", "reserve", 20, token)
    history.record("saga", "failed!", 30, token)
    history.record("saga", "undo!reserve", at, token)
    history.settle("saga", 300, token, "dead")
    history.keep("saga", State.DEAD, checkpoint=b'{"undo!":[null,{}]}')
    history.steps[Ref(QUEUE, "saga")] = [StoredStep("reserve", 20, b"1"), StoredStep("failed!", 30, b"no")]
    assert ("steps" in _broken(history)) is broken


@pytest.mark.parametrize(("at", "broken"), [(BEFORE, False), (50, True)])
def test_a_signal_whose_receipt_may_be_lost_may_be_received_again(
    history: HistoryBuilder, at: float, broken: bool
) -> None:
    history.write(facts.SignalSent, 10, "go", "7", "1")
    history.write(facts.SignalSent, 20, "go", "7", "1", answer="stored")
    for id, received in (("first", at), ("second", 300)):
        history.enqueue(id, 0)
        history.record(id, "wait!go", received, history.start(id, 5), signal=("go", "7"))
    assert ("signals" in _broken(history)) is broken


# ── a lease ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("sent", "broken"), [(BEFORE, set()), (50, set()), (350, {"cause", "attempts"})])
def test_a_run_whose_lease_was_lost_may_follow_the_end_of_the_job(
    history: HistoryBuilder, sent: float, broken: set[str]
) -> None:
    history.enqueue("a", 0)
    history.run("a", 300, 310, pid=3)
    _read_late(history, "a", sent)
    assert _broken(history) == broken


def test_a_lost_lease_that_changes_the_job_is_found(history: HistoryBuilder) -> None:
    history.enqueue("a", 0)
    history.run("a", 300, 310, pid=3)
    _read_late(history, "a", BEFORE, answer="applied")
    assert "one end" in _broken(history)


@pytest.mark.parametrize(("sent", "broken"), [(BEFORE, set()), (350, {"early", "attempts"})])
def test_a_run_whose_lease_was_lost_does_not_wait_for_the_retry_of_another(
    history: HistoryBuilder, sent: float, broken: set[str]
) -> None:
    history.enqueue("a", 0)
    first = history.start("a", 300, pid=3)
    history.settle("a", 310, first, "retryable", error="Boom", delay=5_000)
    _read_late(history, "a", sent)
    history.run("a", 6_000, 6_010, pid=3, attempt=2)
    assert _broken(history) == broken


def test_a_lost_lease_does_not_let_an_at_most_once_job_start_twice(history: HistoryBuilder) -> None:
    history.enqueue("a", 0, at_most_once=True)
    history.run("a", 300, 310, pid=3)
    _read_late(history, "a", BEFORE)
    assert "at most once" in _broken(history)


@pytest.mark.parametrize(("sent", "broken"), [(BEFORE, set()), (AFTER, {"batches", "cause"})])
def test_a_batch_that_was_lost_may_be_run_after_the_one_formed_again(
    history: HistoryBuilder, sent: float, broken: set[str]
) -> None:
    for id in ("a", "b"):
        history.enqueue(id, 0, collected=True)
    history.run("a.batch", 300, 310, pid=3, members=("a",))
    history.run("b.batch", 320, 330, pid=3, members=("b",))
    _read_late(history, "a.batch", sent, members=("a", "b"))
    assert _broken(history) == broken


def test_members_that_change_before_a_loss_are_found(history: HistoryBuilder) -> None:
    for id in ("a", "b"):
        history.enqueue(id, 0, collected=True)
    history.lease("a.batch", 50, members=("a", "b"))
    history.run("a.batch", 150, 160, pid=3, attempt=2, members=("a",))
    assert "batches" in _broken(history)


def test_a_member_that_is_lost_with_its_batch_is_found(history: HistoryBuilder) -> None:
    """The batch is formed again without it, and nobody has it any more."""
    for id in ("a", "b"):
        history.enqueue(id, 0, collected=True)
    history.run("a.batch", 300, 310, pid=3, members=("a",))
    _read_late(history, "a.batch", BEFORE, members=("a", "b"))
    assert [(f.promise, f.id) for f in history.verdict_on(forgiven=[WINDOW]).findings] == [("lost", "b")]


@pytest.mark.parametrize(("sent", "broken"), [(BEFORE, set()), (AFTER, {"limits"})])
def test_a_lease_that_was_lost_takes_no_place_of_its_key(
    history: HistoryBuilder, sent: float, broken: set[str]
) -> None:
    for id in ("a", "b"):
        history.enqueue(id, 0, partition="k")
    at = 6_000  # the effects of the power cut are over
    token = history.start("a", at, sent=int(sent * 1_000_000))
    history.run("b", at + 5, at + 15, pid=3)
    history.settle("a", at + 20, token)
    assert _broken(history) == broken


@pytest.mark.parametrize(("sent", "broken"), [(BEFORE, set()), (AFTER, {"order"})])
def test_the_order_of_a_lease_that_was_lost_is_unknown(
    history: HistoryBuilder, sent: float, broken: set[str]
) -> None:
    history.enqueue("a", 0, partition="k", ordered=True)
    history.enqueue("b", 5, partition="k", ordered=True)
    history.run("b", 300, 310, pid=3, sent=int(sent * 1_000_000))
    history.run("a", 400, 410)
    assert _broken(history) == broken


# ── direct dispatch ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("offered", "broken"), [(5, set()), (70, {"fencing"})])
def test_a_dispatched_job_may_have_been_leased_since_its_worker_offered_a_slot(
    offered: int, broken: set[str]
) -> None:
    """The worker is stopped while it waits, and reads its job when another one has leased it again."""
    history = HistoryBuilder()
    history.enqueue("a", 0)
    token = history.start("a", 60, pid=3, attempt=2)
    history.fault("stop-worker", 6, target=2, seconds=0.07)
    history.lease("a", 80, by="wait", sent=0, offered=offered * 1_000_000)
    history.settle("a", 90, token)
    assert {f.promise for f in history.verdict_on().findings} == broken


# ── an enqueue, an outcome, an operation ─────────────────────────────────────────────────────────


@pytest.mark.parametrize(("sent", "lost"), [(BEFORE, 0), (50, 0), (AFTER, 1)])
def test_an_enqueue_whose_answer_is_read_late_may_be_lost(
    history: HistoryBuilder, sent: float, lost: int
) -> None:
    history.enqueue("a", sent, took=LATE)
    verdict = history.verdict_on(forgiven=[WINDOW])
    assert (verdict.lost, verdict.forgiven) == (lost, 1 - lost)


def test_the_answer_that_counts_is_that_of_its_own_call(history: HistoryBuilder) -> None:
    """The first call got no connection, the second was sent and answered after the loss."""
    history.enqueue("a", 50, verdict="refused")
    history.enqueue("a", 300)
    assert _broken(history) == {"lost"}


@pytest.mark.parametrize(("leased_at", "lost"), [(150, 0), (300, 1)])
def test_an_enqueue_without_an_answer_may_have_been_executed_until_the_job_was_seen(
    history: HistoryBuilder, leased_at: float, lost: int
) -> None:
    history.enqueue("a", 90, verdict="")
    history.start("a", leased_at)
    assert history.verdict_on(forgiven=[WINDOW]).lost == lost


@pytest.mark.parametrize(("sent", "broken"), [(BEFORE, set()), (AFTER, {"cause", "one end"})])
def test_an_end_whose_answer_is_read_late_may_be_undone(
    history: HistoryBuilder, sent: float, broken: set[str]
) -> None:
    history.enqueue("a", 0)
    history.settle("a", sent, history.start("a", 10), took=LATE)
    history.run("a", 3_000, 3_010, pid=3, attempt=2)
    assert _broken(history) == broken


@pytest.mark.parametrize(("sent", "broken"), [(BEFORE, set()), (AFTER, {"one end"})])
def test_a_cancel_whose_answer_is_read_late_may_be_undone(
    history: HistoryBuilder, sent: float, broken: set[str]
) -> None:
    history.enqueue("a", 0)
    history.operate("cancel", "a", sent, "cancelled", took=LATE)
    history.run("a", 3_000, 3_010)
    assert _broken(history) == broken


@pytest.mark.parametrize(("took", "broken"), [(100, []), (5, ["early"])])
def test_a_reschedule_may_be_applied_until_it_is_answered(took: float, broken: list[str]) -> None:
    """Its call was recorded before the first run, and sent after it."""
    history = HistoryBuilder()
    history.enqueue("a", 0)
    history.operate("reschedule", "a", 5, due=40, took=took)
    history.settle("a", 20, history.start("a", 15), "retryable", error="Boom", delay=5_000)
    history.run("a", 60, 70, attempt=2)
    assert history.promises() == broken


@pytest.mark.parametrize(("took", "broken"), [(20, []), (2, ["unique"])])
def test_a_cancel_may_end_a_job_until_it_is_answered(took: float, broken: list[str]) -> None:
    history = HistoryBuilder()
    history.enqueue("a", 0, unique="k")
    history.operate("cancel", "a", 5, "cancelled", took=took)
    history.settle("a", 15, history.start("a", 10), "retryable", error="Boom", delay=5_000)
    history.enqueue("b", 30, unique="k")
    history.run("b", 40, 50)
    assert [promise for promise in history.promises() if promise == "unique"] == broken


# ── ticks and counters ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("sent", "broken"), [(BEFORE, set()), (AFTER, {"periodic"})])
def test_a_tick_whose_answer_is_read_late_may_come_again(
    history: HistoryBuilder, sent: float, broken: set[str]
) -> None:
    for at, pid, took in ((sent, 2, LATE), (3_000, 3, 1)):
        history.write(facts.Ticking, at, QUEUE, "e", 1, 0, 10, ("e@10",), pid=pid)
        history.write(facts.TickAnswered, at + took, QUEUE, "e", 1, 0, "applied", pid=pid)
    assert _broken(history) == broken


@pytest.mark.parametrize(("sent", "broken"), [(BEFORE, 0), (AFTER, 2)])
def test_a_counter_may_lack_a_call_whose_answer_is_read_late(
    history: HistoryBuilder, sent: float, broken: int
) -> None:
    history.enqueue("a", sent, took=LATE)
    history.settle("a", sent, history.start("a", sent, sent=int(sent * 1_000_000)), took=LATE)
    built = history.build()
    shown = [QueueStats(QUEUE, enqueued=0, processed=0, failed=0, days=[])]
    found = list(counters(built.stories, {}, [], shown, ForgivenSpans([WINDOW], built)))
    assert len(found) == broken
