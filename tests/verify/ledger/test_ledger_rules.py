"""Each rule about several jobs: a history that keeps it, and one that breaks it."""

from __future__ import annotations

import pytest

from penstock.core.job import State
from penstock.verify.ledger import facts
from penstock.verify.ledger.check import summary
from tests.verify.ledger.history_builder import EPOCH, QUEUE, HistoryBuilder


@pytest.fixture
def history() -> HistoryBuilder:
    return HistoryBuilder()


# ── limits of a key, and of a queue ──────────────────────────────────────────────────────────────


def _two_of_a_key(history: HistoryBuilder, second_at: float, **more: object) -> None:
    for id in ("a", "b"):
        history.enqueue(id, 0, partition="k", **more)
    history.run("a", 10, 20)
    history.run("b", second_at, second_at + 10, pid=3)


def test_two_of_a_key_one_after_the_other_are_fine(history: HistoryBuilder) -> None:
    _two_of_a_key(history, 21)
    assert history.promises() == []


def test_two_of_a_key_at_once_are_found(history: HistoryBuilder) -> None:
    _two_of_a_key(history, 15)
    (finding,) = history.verdict_on().findings
    assert (finding.promise, finding.id) == ("limits", "b")
    assert "2 jobs with key 'k' ran at once: a, b" in finding.says


def test_a_key_that_may_have_two_may_have_two(history: HistoryBuilder) -> None:
    _two_of_a_key(history, 15, partition_most=2)
    assert history.promises() == []


def test_a_key_is_free_once_its_holder_was_killed(history: HistoryBuilder) -> None:
    for id in ("a", "b"):
        history.enqueue(id, 0, partition="k")
    history.start("a", 10)
    history.fault("kill", 12, target=2)
    history.run("b", 30, 40, pid=3)
    history.run("a", 41, 50, pid=3, attempt=2)
    assert history.promises() == []


def test_a_stale_run_takes_no_place_of_its_key(history: HistoryBuilder) -> None:
    """A worker that was stopped does not know that it has lost its lease, and runs on."""
    for id in ("a", "b"):
        history.enqueue(id, 0, partition="k")
    stale = history.start("a", 10, lease=15)
    history.fault("stop-worker", 12, target=2, seconds=0.02)
    history.run("a", 20, 25, pid=3, attempt=2)
    history.start("b", 26, pid=3)
    history.settle("a", 32, stale, answer="gone")
    assert history.promises(finished=False) == ["lost"]  # b was never ended; the key is fine


def test_a_lease_whose_reply_came_too_late_does_not_count(history: HistoryBuilder) -> None:
    for id in ("a", "b"):
        history.enqueue(id, 0, partition="k")
    late = history.start("a", 9_000, sent=1_000_000)  # the reply took 9 of its 15 s
    history.run("b", 9_010, 9_020, pid=3)
    history.settle("a", 9_030, late)
    assert history.promises() == []


@pytest.mark.parametrize(("kind", "broken"), [("latency", ["limits"]), ("failover", [])])
def test_a_worker_that_cannot_extend_its_lease_holds_it_until_it_expires(
    history: HistoryBuilder, kind: str, broken: list[str]
) -> None:
    """Other harm may have cost it at once: the store may have forgotten it."""
    history.fault(kind, 8, seconds=1.0)
    _two_of_a_key(history, 15)
    assert history.promises() == broken


def _three_in_a_queue(history: HistoryBuilder) -> None:
    for i, id in enumerate("abc"):
        history.enqueue(id, 5)
        history.run(id, 10 + i, 20 + i, pid=2 + i)


def test_more_of_a_queue_than_its_max_running_are_found(history: HistoryBuilder) -> None:
    history.write(facts.Limited, 0, QUEUE, 2)
    history.write(facts.Limited, 1, QUEUE, 2, told=True)
    _three_in_a_queue(history)
    (finding,) = history.verdict_on().findings
    assert (finding.promise, finding.id) == ("limits", "c")
    assert "3 jobs of its queue ran at once" in finding.says


@pytest.mark.parametrize("most", [3, None])
def test_as_many_of_a_queue_as_may_run_are_fine(history: HistoryBuilder, most: int | None) -> None:
    history.write(facts.Limited, 0, QUEUE, most)
    history.write(facts.Limited, 1, QUEUE, most, told=True)
    _three_in_a_queue(history)
    assert history.promises() == []


def test_a_limit_that_was_just_being_set_is_not_held_against_anybody(history: HistoryBuilder) -> None:
    history.write(facts.Limited, 11.5, QUEUE, 2)
    history.write(facts.Limited, 30, QUEUE, 2, told=True)
    _three_in_a_queue(history)
    assert history.promises() == []


# ── order ────────────────────────────────────────────────────────────────────────────────────────

ORDERED = {"partition": "k", "ordered": True}


def test_ordered_jobs_in_their_order_are_fine_also_over_a_retry(history: HistoryBuilder) -> None:
    history.enqueue("a", 0, **ORDERED)
    history.enqueue("b", 5, **ORDERED)
    history.settle("a", 12, history.start("a", 10), "retryable", error="Boom", delay=5)
    history.run("a", 20, 22, attempt=2)
    history.run("b", 24, 26, pid=3)
    assert history.promises() == []


def test_an_ordered_job_that_runs_between_the_attempts_of_the_one_before_is_found(
    history: HistoryBuilder,
) -> None:
    history.enqueue("a", 0, **ORDERED)
    history.enqueue("b", 5, **ORDERED)
    history.settle("a", 12, history.start("a", 10), "retryable", error="Boom", delay=5)
    history.run("b", 14, 16, pid=3)
    history.run("a", 20, 22, attempt=2)
    (finding,) = history.verdict_on().findings
    assert (finding.promise, finding.id) == ("order", "b")
    assert "the job ran before a was done" in finding.says


def test_ordered_jobs_of_one_call_stand_in_its_order(history: HistoryBuilder) -> None:
    history.enqueue_together("a", "b", "c", at=0, **ORDERED)
    history.run("a", 10, 12)
    history.run("c", 13, 15)
    history.run("b", 16, 18)
    assert [(f.promise, f.id) for f in history.verdict_on().findings] == [("order", "c")]


def test_the_order_of_concurrent_calls_is_unknown(history: HistoryBuilder) -> None:
    history.enqueue("a", 0, verdict="", **ORDERED)
    history.enqueue("b", 1, **ORDERED)
    history.write(facts.Answered, 4, QUEUE, "a", "new")
    history.run("b", 10, 12)
    history.run("a", 13, 15)
    assert history.promises() == []


def test_a_job_that_was_rescheduled_has_left_its_place(history: HistoryBuilder) -> None:
    history.enqueue("a", 0, **ORDERED)
    history.enqueue("b", 5, **ORDERED)
    history.operate("reschedule", "a", 7, due=20)
    history.run("b", 10, 12)
    history.run("a", 21, 22)
    assert history.promises() == []


def test_an_ordered_job_that_was_delayed_joins_when_it_is_due(history: HistoryBuilder) -> None:
    history.enqueue("a", 0, delayed=True, **{**ORDERED, "due": EPOCH + 100})
    history.enqueue("b", 5, **ORDERED)
    history.run("b", 10, 12)
    history.run("a", 120, 130)
    assert history.promises() == []


# ── unique ───────────────────────────────────────────────────────────────────────────────────────

QUEUED, RUNNING, FINISHED = 1, 2, 4


def _second_call(history: HistoryBuilder, at: float, states: int, *, period: int | None = None) -> None:
    """a runs from 10 to 20; b comes with the same key."""
    until = None if period is None else EPOCH + period
    history.enqueue("a", 0, unique="k", unique_states=states, unique_until=until)
    history.run("a", 10, 20)
    history.enqueue("b", at, unique="k", unique_states=states)
    token = history.start("b", 1_000)
    history.settle("b", 1_010, token)


def test_a_call_that_releases_of_a_renamed_task_gave_two_keys_is_found(history: HistoryBuilder) -> None:
    """An invoice is paid twice: each release has run a job of it, under a key of its own."""
    for at, id in enumerate(("invoice-7.a", "invoice-8.a", "invoice-7.b")):
        history.enqueue(id, at, unique=f"the key of {id}")
        history.run(id, 10 + at, 20)
    assert [(f.promise, f.id) for f in history.verdict_on().findings] == [("unique", "invoice-7.b")]


@pytest.mark.parametrize(("by", "broken"), [("reclaim", []), ("fetch", ["b"])])
def test_a_job_that_was_reclaimed_may_have_run_before_anybody_said_so(
    history: HistoryBuilder, by: str, broken: list[str]
) -> None:
    """The process that had leased it was killed before it could record the lease; its key was free then."""
    history.enqueue("a", 0, unique="k", unique_states=QUEUED)
    history.enqueue("b", 5, unique="k", unique_states=QUEUED)
    history.run("b", 7, 8)
    history.settle("a", 20, history.start("a", 15, by=by))
    assert [one.id for one in history.verdict_on().findings if one.promise == "unique"] == broken


@pytest.mark.parametrize(
    ("states", "at", "period"),
    [
        (QUEUED | RUNNING, 5, None),
        (QUEUED | RUNNING, 15, None),
        (QUEUED, 5, None),
        (RUNNING, 15, None),
        (QUEUED | RUNNING, 5, 9),
        (QUEUED | RUNNING | FINISHED, 50, 100),
    ],
)
def test_a_second_job_of_a_key_that_was_held_is_found(
    history: HistoryBuilder, states: int, at: float, period: int | None
) -> None:
    _second_call(history, at, states, period=period)
    assert [(f.promise, f.id) for f in history.verdict_on().findings] == [("unique", "b")]


@pytest.mark.parametrize(
    ("states", "at", "period"),
    [
        (QUEUED | RUNNING, 25, None),
        (QUEUED, 15, None),
        (RUNNING, 5, None),
        (QUEUED | RUNNING, 12, 9),
        (QUEUED | RUNNING | FINISHED, 150, 100),
    ],
)
def test_a_second_job_of_a_key_that_was_free_is_fine(
    history: HistoryBuilder, states: int, at: float, period: int | None
) -> None:
    _second_call(history, at, states, period=period)
    assert history.promises() == []


@pytest.mark.parametrize(("offered", "promises"), [(0, ["unique"]), (5, [])])
def test_a_job_may_be_leased_as_soon_as_its_worker_has_offered_to_take_one(
    history: HistoryBuilder, offered: int, promises: list[str]
) -> None:
    """A worker that is stopped while it waits gets a job leased, and fetches it when it goes on."""
    history.enqueue("a", 0, unique="k", unique_states=QUEUED)
    history.enqueue("b", 10, unique="k", unique_states=QUEUED)
    token = history.start("a", 20, offered=offered * 1_000_000)
    history.settle("a", 30, token)
    history.run("b", 40, 50)
    assert history.promises() == promises


def test_a_completed_job_that_is_kept_holds_a_key_of_finished_ones(history: HistoryBuilder) -> None:
    _second_call(history, 50, QUEUED | RUNNING | FINISHED)
    history.keep("a", State.COMPLETED)
    assert history.promises() == ["unique"]


def test_a_job_between_two_attempts_holds_its_key(history: HistoryBuilder) -> None:
    history.enqueue("a", 0, unique="k")
    history.settle("a", 12, history.start("a", 10), "retryable", error="Boom", delay=50)
    history.enqueue("b", 30, unique="k")
    history.run("b", 40, 50)
    history.run("a", 62, 70, attempt=2)
    assert history.promises() == ["unique"]


def test_a_job_that_ended_before_its_acknowledgement_holds_no_key(
    history: HistoryBuilder,
) -> None:
    history.enqueue("a", 0, verdict="", unique="k")
    history.run("a", 5, 10)
    history.write(facts.Answered, 20, QUEUE, "a", "new")
    history.enqueue("b", 30, unique="k")
    history.run("b", 40, 50)
    assert history.promises() == []


def test_a_holder_that_its_supervisor_may_have_removed_excuses(history: HistoryBuilder) -> None:
    history.enqueue("a", 0, unique="k")
    history.start("a", 10)
    history.fault("kill", 12, target=2)
    history.keep("a", State.DEAD)
    history.enqueue("b", 30, unique="k")
    history.run("b", 40, 50)
    assert history.promises() == []


def test_a_duplicate_refused_for_an_ended_job_is_found(history: HistoryBuilder) -> None:
    history.enqueue("a", 0, unique="k")
    history.run("a", 10, 20)
    history.enqueue("b", 30, verdict="duplicate", holder="a", unique="k")
    (finding,) = history.verdict_on().findings
    assert (finding.promise, finding.id) == ("unique", "b")
    assert "refused because of job a, which had ended" in finding.says


@pytest.mark.parametrize(("at", "states"), [(15, QUEUED | RUNNING), (30, QUEUED | RUNNING | FINISHED)])
def test_a_duplicate_refused_for_the_holder_of_the_key_is_fine(
    history: HistoryBuilder, at: float, states: int
) -> None:
    history.enqueue("a", 0, unique="k", unique_states=states)
    history.run("a", 10, 20)
    history.enqueue("b", at, verdict="duplicate", holder="a", unique="k", unique_states=states)
    assert history.promises() == []


# ── batches ───────────────────────────────────────────────────────────────────────────────────────


def _batch(history: HistoryBuilder, id: str, at: float, *members: str) -> None:
    history.settle(id, at + 5, history.start(id, at, members=members))


def test_members_end_with_their_batch_and_the_batch_is_no_job_of_its_own(history: HistoryBuilder) -> None:
    for id in ("a", "b"):
        history.enqueue(id, 0, collected=True)
    _batch(history, "a.batch", 10, "a", "b")
    verdict = history.verdict_on().require()
    assert (verdict.enqueued, verdict.completed, verdict.runs) == (2, 2, 1)


def test_a_member_of_two_batches_is_found(history: HistoryBuilder) -> None:
    for id in ("a", "b", "c"):
        history.enqueue(id, 0, collected=True)
    _batch(history, "a.batch", 10, "a", "b")
    _batch(history, "c.batch", 20, "c", "b")
    assert [(f.promise, f.id) for f in history.verdict_on().findings] == [("batches", "b")]


def test_a_member_that_is_in_no_batch_and_not_there_is_lost(history: HistoryBuilder) -> None:
    for id in ("a", "b"):
        history.enqueue(id, 0, collected=True)
    _batch(history, "a.batch", 10, "a")
    verdict = history.verdict_on()
    assert [(f.promise, f.id) for f in verdict.findings] == [("lost", "b")]


def test_a_member_that_is_still_collected_is_unfinished(history: HistoryBuilder) -> None:
    history.enqueue("a", 0, collected=True)
    history.keep("a", State.COLLECTING)
    assert history.promises(finished=False) == []
    assert history.promises() == ["one end"]


def test_a_member_that_stays_behind_its_batch_is_found(history: HistoryBuilder) -> None:
    history.enqueue("a", 0, collected=True)
    _batch(history, "a.batch", 10, "a")
    history.keep("a", State.COLLECTING, batch="a.batch")
    assert history.promises(finished=False) == ["batches"]


def test_a_member_that_was_not_enqueued_or_is_listed_twice_is_found(history: HistoryBuilder) -> None:
    history.enqueue("a", 0, collected=True)
    _batch(history, "a.batch", 10, "a", "a", "b")
    says = sorted(f.says for f in history.verdict_on().findings)
    assert says == ["its member b was never enqueued", "the batch has its member a 2 times"]
    assert len(history.promises(exclusive=False)) == 1


def test_members_that_change_between_two_leases_are_found(history: HistoryBuilder) -> None:
    for id in ("a", "b"):
        history.enqueue(id, 0, collected=True)
    history.settle("a.batch", 12, history.start("a.batch", 10, members=("a", "b")), "retryable", error="Boom")
    history.settle("a.batch", 22, history.start("a.batch", 20, attempt=2, members=("a",)))
    assert history.promises() == ["batches"]


# ── periodic entries ─────────────────────────────────────────────────────────────────────────────


def _tick(
    history: HistoryBuilder,
    at: float,
    watermark: int,
    to: int,
    *,
    pid: int = 2,
    answer: str = "applied",
    entry: str = "e",
) -> None:
    id = f"{entry}@{to}"
    history.write(facts.Ticking, at, QUEUE, entry, 1, watermark, to, (id,), pid=pid)
    history.write(facts.Offered, at, QUEUE, id, task="t", due=EPOCH + to, entry=entry, pid=pid)
    new = (id,) if answer == "applied" else ()
    history.write(facts.TickAnswered, at + 1, QUEUE, entry, 1, watermark, answer, new, pid=pid)
    history.write(facts.Answered, at + 1, QUEUE, id, "new" if new else "skipped", pid=pid)
    if new:
        history.run(id, at + 10, at + 15)


def test_a_chain_of_ticks_of_which_one_worker_got_answers_is_fine(history: HistoryBuilder) -> None:
    _tick(history, 10, 0, 10)
    _tick(history, 10.5, 0, 10, pid=3, answer="stale")
    _tick(history, 30, 10, 30, pid=3)
    verdict = history.verdict_on().require()
    assert (verdict.enqueued, verdict.completed) == (2, 2)


def test_an_instant_that_two_workers_dealt_with_is_found(history: HistoryBuilder) -> None:
    _tick(history, 10, 0, 10)
    _tick(history, 40, 0, 10, pid=3)
    assert set(history.promises()) == {"periodic"}


def test_an_instant_that_each_release_of_a_renamed_task_enqueued_is_found(history: HistoryBuilder) -> None:
    _tick(history, 10, 0, 10, entry="verify.remind")
    _tick(history, 12, 0, 10, pid=3, entry="verify.nudge")
    assert set(history.promises()) == {"periodic"}


def test_instants_that_were_left_out_are_found(history: HistoryBuilder) -> None:
    _tick(history, 10, 0, 10)
    _tick(history, 40, 20, 30)
    (finding,) = history.verdict_on().findings
    assert "entry 'e': the instants between 10 and 20 were skipped" in finding.says


def test_a_tick_without_an_answer_may_have_been_made(history: HistoryBuilder) -> None:
    _tick(history, 10, 0, 10)
    history.write(facts.Ticking, 20, QUEUE, "e", 1, 10, 20, ("e@20",), pid=3)
    _tick(history, 40, 20, 30)
    assert history.promises() == []


def test_a_tick_that_was_its_own_rival_may_have_been_made(history: HistoryBuilder) -> None:
    """Its reply was lost, and the store asked again."""
    _tick(history, 10, 0, 10)
    _tick(history, 20, 10, 20, answer="stale")
    _tick(history, 40, 20, 30)
    assert history.promises() == []


# ── second runs, and who did what ────────────────────────────────────────────────────────────────


def _again(history: HistoryBuilder, *, gap: float = 10) -> None:
    history.enqueue("a", 0)
    history.start("a", 10_000)
    history.run("a", 10_000 + gap, 10_020 + gap, pid=3, attempt=2)


def test_a_duplicate_names_the_fault_and_the_lease(history: HistoryBuilder) -> None:
    _again(history)
    history.fault("restart-store", 4_000, seconds=1.0)
    history.fault("kill-worker", 10_004, target=2)
    history.fault("stop-store", 10_006, seconds=1.0)
    verdict = history.verdict_on().require()
    (one,) = verdict.duplicates
    assert (one.id, one.attempt_before, one.attempt, one.task) == ("a", 1, 2, "t")
    assert (one.cause, one.fault_at, one.fault_target) == ("kill-worker", EPOCH + 10_004, 2)
    assert (one.leased_from, one.leased_until) == (EPOCH + 9_999, EPOCH + 10_010)
    assert (verdict.duplicated, verdict.unexplained) == (1, 0)


def test_a_report_has_some_findings_of_each_promise(history: HistoryBuilder) -> None:
    for n in range(300):
        history.enqueue(f"lost-{n}", n)
    history.enqueue("delayed", 0, due=EPOCH + 90_000)
    history.run("delayed", 1_000, 1_010)
    verdict = history.verdict_on()
    some = summary(history.build(), verdict, began=EPOCH)["findings"]
    assert len(verdict.findings) > len(some) == 200
    assert {one["promise"] for one in some} == {"lost", "early"}


def _stopped_before_its_start(history: HistoryBuilder) -> str:
    """Who got it is stopped, loses it to another who completes it, goes on, and only then begins."""
    history.enqueue("a", 0)
    stale = history.lease("a", 1_000)
    history.fault("stop-worker", 1_001, target=2, seconds=19.0)
    history.run("a", 17_000, 17_100, pid=3, attempt=2)
    history.write(facts.Started, 20_002, "q", "a", stale, "w2", 1, pid=2)
    return stale


def test_a_start_that_came_after_the_end_is_of_the_lease_that_it_had(history: HistoryBuilder) -> None:
    history.settle("a", 20_010, _stopped_before_its_start(history), answer="stale")
    (one,) = history.verdict_on().require().duplicates
    assert (one.cause, one.attempt_before, one.attempt) == ("stop-worker", 1, 2)
    assert (one.leased_from, one.leased_until) == (EPOCH + 999, EPOCH + 17_000)


def _asked_while_the_store_was_away(history: HistoryBuilder, *, attempts: tuple[int, int]) -> None:
    """Two ask, one before the other; the later is served first, and has done with it when the other is."""
    history.enqueue("a", 0)
    history.fault("restart-store", 100, seconds=4.9)
    history.run("a", 5_010, 5_030, pid=3, attempt=attempts[0], sent=200_000_000)
    history.run("a", 5_400, 5_420, pid=2, attempt=attempts[1], sent=100_000_000)


@pytest.mark.parametrize("attempts", [(1, 2), (1, 1)])
def test_the_first_request_during_an_outage_is_not_always_served_first(
    history: HistoryBuilder, attempts: tuple[int, int]
) -> None:
    _asked_while_the_store_was_away(history, attempts=attempts)
    assert history.verdict_on().findings


def test_a_retry_that_goes_to_who_asked_first_is_the_second_attempt(history: HistoryBuilder) -> None:
    history.enqueue("a", 0)
    history.fault("restart-store", 100, seconds=4.9)
    first = history.start("a", 5_010, pid=3, sent=200_000_000)
    history.settle("a", 5_030, first, "retryable", error="Boom", delay=300)
    history.run("a", 5_400, 5_420, pid=2, attempt=2, sent=100_000_000)
    assert history.verdict_on().require().reruns == {"failure": 1}


def test_a_snoozed_job_that_goes_to_who_asked_first_has_not_run_before(history: HistoryBuilder) -> None:
    history.enqueue("a", 0)
    history.fault("restart-store", 100, seconds=4.9)
    first = history.start("a", 5_010, pid=3, sent=200_000_000)
    history.settle("a", 5_030, first, "scheduled", delay=300, charge=False)
    history.run("a", 5_400, 5_420, pid=2, attempt=1, sent=100_000_000)
    assert history.verdict_on().require().reruns == {"snooze": 1}


def test_a_start_whose_lease_also_arrived_late_is_the_earlier_attempt(history: HistoryBuilder) -> None:
    history.enqueue("a", 0)
    history.fault("stop-worker", 1_001, target=2, seconds=19.0)
    history.run("a", 17_000, 17_100, pid=3, attempt=2)
    stale = history.start("a", 20_002, pid=2, attempt=1, sent=1_000_000_000)
    history.settle("a", 20_010, stale, answer="stale")
    assert history.verdict_on().require().duplicates[0].cause == "stop-worker"


def test_a_kill_costs_nothing_that_somebody_else_has_begun(history: HistoryBuilder) -> None:
    _stopped_before_its_start(history)
    history.fault("kill-worker", 20_005, target=2)
    (crash,) = history.verdict_on().require().crashes
    assert crash.held == []


def test_a_lease_whose_news_came_late_ends_no_loan(history: HistoryBuilder) -> None:
    history.enqueue("a", 0)
    history.start("a", 10_000)
    history.lease(
        "a", 10_001, pid=4, sent=9_990_000_000
    )  # asked for before, and its answer took until 10.001
    history.fault("kill-worker", 10_004, target=2)
    history.run("a", 10_020, 10_030, pid=3, attempt=2)
    verdict = history.verdict_on()
    assert [one.cause for one in verdict.duplicates] == ["kill-worker"]
    assert verdict.duplicates[0].leased_until == EPOCH + 10_020


def test_a_fault_that_was_long_over_explains_nothing(history: HistoryBuilder) -> None:
    _again(history)
    history.fault("restart-store", 4_000, seconds=0.5)  # and the 5 s that it may be felt
    verdict = history.verdict_on()
    assert [f.promise for f in verdict.findings] == ["cause"]
    assert (verdict.unexplained, verdict.duplicates[0].cause) == (1, "unexplained")


def test_a_fault_that_costs_no_lease_explains_nothing(history: HistoryBuilder) -> None:
    _again(history)
    history.fault("script-flush", 10_004)
    assert history.promises() == ["cause"]


@pytest.mark.parametrize(
    ("kind", "gap", "broken"),
    [
        ("stop-store", 1_000, ["cause"]),
        ("stop-store", 14_000, []),
        ("restart-store", 1_000, []),
    ],
)
def test_a_lease_that_could_not_be_extended_lasts_its_full_time(
    history: HistoryBuilder, kind: str, gap: float, broken: list[str]
) -> None:
    """It was given for 15 s: a worker that is stopped for a second has not lost it."""
    _again(history, gap=gap)
    history.fault(kind, 10_005, seconds=0.5)
    assert history.promises() == broken


def test_a_fault_explains_reruns_until_it_is_healed(history: HistoryBuilder) -> None:
    _again(history, gap=20_000)
    history.fault("stop-store", 1_000)
    assert history.promises() == ["cause"]
    history.write(facts.Healed, 12_000, "stop-store", 0)
    assert history.promises() == []
    assert history.build().faults[0].seconds == 11.0


def test_retries_are_no_duplicates(history: HistoryBuilder) -> None:
    history.enqueue("a", 0)
    history.settle("a", 12, history.start("a", 10), "retryable", error="Boom")
    history.run("a", 20, 30, attempt=2)
    verdict = history.verdict_on().require()
    assert (verdict.reruns, verdict.duplicated) == ({"failure": 1}, 0)


def test_a_fault_that_was_asked_for_and_never_done_is_found(history: HistoryBuilder) -> None:
    history.fault("kill-worker", 1, target=2)
    history.write(facts.Fault, 2, "kill", 3, "os-exit")  # its word is that of its cause
    verdict = history.verdict_on(asked=("kill-worker", "os-exit"))
    assert verdict.ok
    assert verdict.injected == {"kill-worker": 1, "os-exit": 1}
    (finding,) = history.verdict_on(asked=("kill-worker", "failover")).findings
    assert (finding.promise, finding.says) == ("faults", "failover was requested, and never happened")


def test_the_first_start_after_the_store_is_back_is_measured(history: HistoryBuilder) -> None:
    history.enqueue("a", 0)
    history.fault("restart-store", 1_000, seconds=2.0)
    history.run("a", 3_250, 3_300)
    assert history.verdict_on().restarts == [pytest.approx(0.2501)]


# ── what a store may forget ──────────────────────────────────────────────────────────────────────

WINDOW = (EPOCH + 100, EPOCH + 200)


def test_a_job_acknowledged_in_a_forgiven_span_is_not_lost(history: HistoryBuilder) -> None:
    history.enqueue("before", 50)
    history.enqueue("within", 150)
    verdict = history.verdict_on(forgiven=[WINDOW])
    assert [(f.promise, f.id) for f in verdict.findings] == [("lost", "before")]
    assert (verdict.lost, verdict.forgiven, verdict.enqueued) == (1, 1, 2)


def test_a_lost_replicated_enqueue_is_not_forgiven_where_lost_outcomes_are(
    history: HistoryBuilder,
) -> None:
    history.enqueue("a", 150)
    history.enqueue("b", 0)
    history.settle("b", 150, history.start("b", 10))
    history.fault("failover", 160, seconds=0.1)
    history.run("b", 500, 510, pid=3, attempt=2)
    verdict = history.verdict_on(undone=[WINDOW])
    assert [(f.promise, f.id) for f in verdict.findings] == [("lost", "a")]
    assert (verdict.lost, verdict.forgiven, verdict.completed) == (1, 1, 1)


@pytest.mark.parametrize(("at", "broken"), [(150, []), (250, ["lost"])])
def test_an_enqueue_that_waited_for_a_replica_in_vain_may_be_forgotten(
    history: HistoryBuilder, at: float, broken: list[str]
) -> None:
    history.enqueue("a", at, verdict="unreplicated")
    history.settle("a", at + 3, history.start("a", at + 2), "retryable", error="Boom", delay=50)
    verdict = history.verdict_on(undone=[WINDOW])
    assert [f.promise for f in verdict.findings] == broken


@pytest.mark.parametrize(("leased_at", "broken"), [(150, []), (250, ["lost"])])
def test_an_unacknowledged_job_may_be_lost_with_its_leases(
    history: HistoryBuilder, leased_at: float, broken: list[str]
) -> None:
    history.enqueue("a", 140, verdict="")
    history.start("a", leased_at)
    assert history.promises(undone=[WINDOW]) == broken


@pytest.mark.parametrize(("at", "broken"), [(110, []), (210, ["limits"])])
def test_limits_are_not_kept_by_two_masters_together(
    history: HistoryBuilder, at: float, broken: list[str]
) -> None:
    for id in ("a", "b"):
        history.enqueue(id, 0, partition="k")
    history.run("a", at, at + 10)
    history.run("b", at + 5, at + 15, pid=3)
    assert history.promises(undone=[WINDOW]) == broken


@pytest.mark.parametrize("verdict", ["", "new"])
def test_a_job_seen_after_the_forgiven_span_must_not_be_lost(history: HistoryBuilder, verdict: str) -> None:
    history.enqueue("a", 140, verdict=verdict)
    history.settle("a", 300, history.start("a", 150), "retryable", error="Boom", delay=50)
    assert history.promises(forgiven=[WINDOW]) == ["lost"]


def test_an_answer_that_was_read_late_does_not_prove_that_the_job_survived(history: HistoryBuilder) -> None:
    """The server answered the fetch before its power was cut; the worker read it when the server was back."""
    history.enqueue("a", 140)
    history.lease("a", 250, sent=160_000_000)
    history.enqueue("b", 140)
    history.lease("b", 250, sent=240_000_000)
    verdict = history.verdict_on(forgiven=[WINDOW])
    assert [(f.promise, f.id) for f in verdict.findings] == [("lost", "b")]
    assert verdict.forgiven == 1


@pytest.mark.parametrize(("settled_at", "broken"), [(150, []), (250, ["cause", "one end"])])
def test_an_end_that_was_undone_may_come_again(
    history: HistoryBuilder, settled_at: float, broken: list[str]
) -> None:
    history.enqueue("a", 0)
    history.settle("a", settled_at, history.start("a", 10))
    history.fault("restart-store", 300, seconds=0.1)
    history.run("a", 500, 510, pid=3, attempt=2)
    verdict = history.verdict_on(forgiven=[WINDOW])
    assert sorted(f.promise for f in verdict.findings) == broken
    if not broken:
        assert (verdict.reruns, verdict.forgiven, verdict.completed) == ({"undone": 1}, 1, 1)
        assert verdict.duplicates[0].fault_at == EPOCH + 300


@pytest.mark.parametrize(("leased_at", "broken"), [(150, []), (50, ["attempts"])])
def test_an_attempt_whose_lease_was_undone_need_not_count(
    history: HistoryBuilder, leased_at: float, broken: list[str]
) -> None:
    history.enqueue("a", 0)
    history.start("a", leased_at)
    history.fault("power-cut", 201, seconds=0.1)
    history.run("a", 500, 510, pid=3, attempt=1)
    assert history.promises(forgiven=[WINDOW]) == broken


def test_an_end_that_was_undone_and_is_not_made_up_for_is_unfinished(history: HistoryBuilder) -> None:
    history.enqueue("a", 0)
    history.settle("a", 150, history.start("a", 10))
    history.keep("a", State.AVAILABLE)
    assert history.promises(forgiven=[WINDOW], finished=False) == []
    assert history.promises(forgiven=[WINDOW]) == ["one end"]


@pytest.mark.parametrize(("cancelled_at", "broken"), [(150, []), (50, ["one end"])])
def test_a_cancel_that_was_undone_lets_the_job_run(
    history: HistoryBuilder, cancelled_at: float, broken: list[str]
) -> None:
    history.enqueue("a", 0)
    history.operate("cancel", "a", cancelled_at, "cancelled")
    history.run("a", 500, 510)
    assert history.promises(forgiven=[WINDOW]) == broken


@pytest.mark.parametrize(("leased_at", "broken"), [(150, []), (50, ["batches"])])
def test_a_batch_lost_by_the_store_may_be_formed_again_of_other_jobs(
    history: HistoryBuilder, leased_at: float, broken: list[str]
) -> None:
    for id in ("a", "b"):
        history.enqueue(id, 0, collected=True)
    history.lease("a.batch", leased_at, members=("a",))
    history.fault("power-cut", 201, seconds=0.1)
    _batch(history, "a.batch", 500, "a", "b")
    assert history.promises(forgiven=[WINDOW]) == broken


# ── clocks ───────────────────────────────────────────────────────────────────────────────────────


def _delayed(history: HistoryBuilder, *, ahead: int) -> None:
    """Due at 5 s; started at 6 s by a worker whose wall clock is wrong by so many ms."""
    history.enqueue("a", 0, delayed=True, due=EPOCH + 5_000)
    token = history.lease("a", 6_000)
    history.facts.append(
        facts.Started(EPOCH + 6_000 + ahead, 6_000 * 1_000_000, 2, QUEUE, "a", token, "w2", 1)
    )
    history.settle("a", 6_010, token)


@pytest.mark.parametrize("ahead", [3_600_000, -3_600_000])
def test_a_worker_with_a_wrong_clock_is_not_believed(history: HistoryBuilder, ahead: int) -> None:
    _delayed(history, ahead=ahead)
    verdict = history.verdict_on().require()
    assert verdict.lateness == [1_000]


def test_a_job_that_a_worker_with_a_wrong_clock_has_enqueued_is_due_at_the_correct_time(
    history: HistoryBuilder,
) -> None:
    at, mono, pid = history.now(1_000, 2)
    ahead = at + 3_600_000
    history.facts.append(facts.Offered(ahead, mono, pid, "q", "a", task="t", due=ahead, max_attempts=5))
    history.write(facts.Answered, 1_001, "q", "a", "new", pid=2)
    history.run("a", 2_000, 3_000)
    assert history.promises() == []


def test_on_a_store_that_borrows_the_clock_a_wrong_one_excuses_an_early_start(
    history: HistoryBuilder,
) -> None:
    history.enqueue("a", 0, delayed=True, due=EPOCH + 5_000)
    history.run("a", 1_000, 1_010)
    assert history.promises() == ["early"]
    history.fault("clock", 500, target=2)
    assert history.promises() == ["early"]  # the store has a clock of its own
    history.borrows_clock = True
    verdict = history.verdict_on().require()
    assert verdict.early == 1


def test_on_such_a_store_it_may_have_taken_away_what_ended_unheard(history: HistoryBuilder) -> None:
    """Its holder was killed before the answer, and a clock that is ahead says that its retention is over."""
    history.enqueue("a", 0)
    history.settle("a", 100, history.start("a", 10), answer="", keep=10**15)
    history.fault("kill", 101, target=2)
    history.fault("clock", 200, target=3)
    assert history.promises() == ["lost"]
    history.borrows_clock = True
    assert history.promises() == []


def test_a_late_start_that_nothing_explains_is_counted(history: HistoryBuilder) -> None:
    history.enqueue("a", 0, delayed=True, due=EPOCH + 5_000)
    history.run("a", 6_500, 6_510)
    assert history.verdict_on().late == 1
    history.fault("stop-store", 5_500, seconds=0.5)
    assert history.verdict_on().late == 0


def test_a_lease_whose_news_came_late_makes_no_outcome_stale(history: HistoryBuilder) -> None:
    history.enqueue("a", 0)
    old = history.lease("a", 60, pid=3, sent=5_000_000)  # asked for at 5, and its answer took until 60
    history.settle("a", 70, history.start("a", 50, attempt=2))
    history.settle("a", 62, old, "available", answer="stale", charge=False)
    history.fault("half-open", 4, seconds=0.05)
    assert "fencing" not in history.promises()


def test_an_outcome_after_a_lease_that_was_asked_for_later_is_stale(history: HistoryBuilder) -> None:
    history.enqueue("a", 0)
    first = history.start("a", 10)
    history.start("a", 50, pid=3, attempt=2)
    history.settle("a", 70, first)
    assert "fencing" in history.promises()


# ── a part of the store is away ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("queues", "promises"), [((QUEUE,), []), (("other",), ["cause"]), ((), [])])
def test_a_lost_shard_explains_a_second_run_in_its_own_queues_only(
    history: HistoryBuilder, queues: tuple[str, ...], promises: list[str]
) -> None:
    history.enqueue("a", 0)
    history.start("a", 10)
    history.fault("lost-shard", 12, seconds=15.0, queues=queues)
    history.run("a", 15_100, 15_110, pid=3, attempt=2)
    assert history.promises() == promises


@pytest.mark.parametrize(("queues", "promises"), [((QUEUE,), []), (("other",), ["limits"])])
def test_a_lost_shard_excuses_two_of_a_key_at_once_in_its_own_queues_only(
    history: HistoryBuilder, queues: tuple[str, ...], promises: list[str]
) -> None:
    for id in ("a", "b"):
        history.enqueue(id, 0, partition="k")
    first = history.start("a", 10)
    history.fault("lost-shard", 12, seconds=20.0, queues=queues)
    history.run("b", 16_000, 16_010, pid=3)
    history.settle("a", 16_020, first)
    assert history.promises() == promises
