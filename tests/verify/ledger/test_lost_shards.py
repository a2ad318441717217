"""Lost shards: a standstill of the queues of other shards is found, and a slow machine is not one."""

from __future__ import annotations

import pytest

from penstock.core.job import State
from penstock.verify.ledger import facts
from penstock.verify.ledger.rules.recovery import LostShard
from tests.verify.ledger.history_builder import EPOCH, QUEUE, HistoryBuilder


@pytest.fixture
def history() -> HistoryBuilder:
    return HistoryBuilder()


def _ready(history: HistoryBuilder, n: int, *, at: float = 900, **more: object) -> list[str]:
    """Jobs of a queue whose worker has worked before."""
    history.enqueue(f"before {at}", 0)
    history.run(f"before {at}", 10, 20)
    ids = [f"{at}/{i}" for i in range(n)]
    for id in ids:
        history.enqueue(id, at, **more)
        history.keep(id, State.COMPLETED)
    return ids


_AWAY = LostShard(EPOCH + 1_000, EPOCH + 7_000, (QUEUE,))


def test_a_queue_that_stands_still_while_another_part_is_away_is_found(history: HistoryBuilder) -> None:
    for id in _ready(history, 20):
        history.run(id, 7_100, 7_200)
    (finding,) = history.verdict_on(lost_shards=[_AWAY]).findings
    assert (finding.promise, finding.queue) == ("lost shard", QUEUE)
    assert "20 job(s) were ready" in finding.says
    assert "6.0 s" in finding.says


def test_a_queue_with_progress_during_a_lost_shard_is_fine(history: HistoryBuilder) -> None:
    first, *others = _ready(history, 20)
    history.run(first, 5_000, 5_100)
    for id in others:
        history.run(id, 7_100, 7_200)
    assert history.promises(lost_shards=[_AWAY]) == []


def test_the_end_of_a_job_that_was_leased_before_the_loss_was_noticed_is_no_progress(
    history: HistoryBuilder,
) -> None:
    first, *others = _ready(history, 21)
    history.run(first, 1_200, 5_000)
    for id in others:
        history.run(id, 7_100, 7_200)
    (finding,) = history.verdict_on(lost_shards=[_AWAY]).findings
    assert (finding.promise, finding.queue) == ("lost shard", QUEUE)


def test_an_outcome_that_was_not_answered_is_no_end_while_another_part_is_away(
    history: HistoryBuilder,
) -> None:
    for id in _ready(history, 20):
        token = history.start(id, 950)
        history.settle(id, 5_000, token, answer="unknown")
        history.settle(id, 7_100, token)
    history.enqueue("after", 7_100)
    history.run("after", 7_200, 7_210)
    (finding,) = history.verdict_on(lost_shards=[_AWAY]).findings
    assert (finding.promise, finding.queue) == ("lost shard", QUEUE)


def test_a_queue_with_nothing_to_do_while_another_part_is_away_is_fine(history: HistoryBuilder) -> None:
    for id in _ready(history, 20):
        history.run(id, 950, 960)
    for id in _ready(history, 20, at=6_500):
        history.run(id, 7_100, 7_200)
    assert history.promises(lost_shards=[_AWAY]) == []


def test_queues_with_few_jobs_are_checked_together(history: HistoryBuilder) -> None:
    for id in _ready(history, 5):
        history.run(id, 7_100, 7_200)
    (finding,) = history.verdict_on(lost_shards=[_AWAY]).findings
    assert (finding.promise, finding.queue) == ("lost shard", "")


@pytest.mark.parametrize("kind", ["kill", "stop-worker"])
def test_a_queue_whose_workers_all_had_faults_meanwhile_is_not_checked(
    history: HistoryBuilder, kind: str
) -> None:
    for id in _ready(history, 20):
        history.run(id, 7_100, 7_200)
    history.fault(kind, 4_000, target=2, seconds=0 if kind == "kill" else 2.0)
    assert history.promises(lost_shards=[_AWAY]) == []


def test_a_queue_whose_only_worker_started_later_is_not_checked(history: HistoryBuilder) -> None:
    for id in _ready(history, 20):
        history.run(id, 7_100, 7_200, pid=3)
    assert history.promises(lost_shards=[_AWAY]) == []


def test_a_queue_that_is_away_itself_is_owed_nothing(history: HistoryBuilder) -> None:
    for id in _ready(history, 20):
        history.run(id, 7_100, 7_200)
    assert history.promises(lost_shards=[_AWAY._replace(queues=("other",))]) == []


# ── a slow machine ───────────────────────────────────────────────────────────────────────────────


def test_jobs_that_start_and_take_long_are_progress(history: HistoryBuilder) -> None:
    """A queue of tasks that take seconds: none both starts and ends while the shard is away."""
    for n, id in enumerate(_ready(history, 20)):
        history.run(id, 4_500 + 100 * n, 7_200 + n)
    assert history.promises(lost_shards=[_AWAY]) == []


def test_jobs_that_are_leased_and_do_not_start_are_no_progress(history: HistoryBuilder) -> None:
    for id in _ready(history, 21):
        token = history.lease(id, 4_500)
        history.write(facts.Started, 7_050, QUEUE, id, token, "w2", 1, pid=2)
        history.settle(id, 7_100, token)
    history.enqueue("after", 7_200)
    history.run("after", 7_200, 7_210)
    assert history.promises(lost_shards=[_AWAY]) == ["lost shard"]


@pytest.mark.parametrize(("n", "sent", "broken"), [(5, 4_500, 1), (4, 4_500, 0), (5, 6_500, 0)])
def test_outcomes_that_are_sent_and_not_applied_are_found(
    history: HistoryBuilder, n: int, sent: float, broken: int
) -> None:
    """The jobs start during the loss, and the store does not answer their settlements."""
    for id in _ready(history, n):
        history.settle(id, sent, history.start(id, 4_000), took=2_700)
    history.enqueue("after", 7_100)
    history.run("after", 7_100, 7_210)
    assert len(history.promises(lost_shards=[_AWAY])) == broken


@pytest.mark.parametrize(("delay", "promises"), [(500, ["lost shard"]), (6_500, [])])
def test_a_job_waits_once_its_retry_is_due(history: HistoryBuilder, delay: int, promises: list[str]) -> None:
    for id in _ready(history, 20):
        history.settle(id, 960, history.start(id, 950), "retryable", error="Boom", delay=delay)
        history.run(id, 7_600, 7_700, attempt=2)
    assert history.promises(lost_shards=[_AWAY]) == promises


def test_jobs_that_run_are_not_waiting(history: HistoryBuilder) -> None:
    for id in _ready(history, 20):
        history.run(id, 950, 7_200)
    history.enqueue("after", 7_100)
    history.run("after", 7_200, 7_210)
    assert history.promises(lost_shards=[_AWAY]) == []


@pytest.mark.parametrize(("most", "promises"), [(1, []), (30, ["lost shard"])])
def test_jobs_that_wait_for_their_key_are_not_ready(
    history: HistoryBuilder, most: int, promises: list[str]
) -> None:
    for id in _ready(history, 20, partition="k", partition_most=most):
        history.run(id, 7_100, 7_200)
    found = history.promises(lost_shards=[_AWAY])
    assert [promise for promise in found if promise == "lost shard"] == promises


@pytest.mark.parametrize(("pid", "stalled", "promises"), [(2, 1.5, []), (2, 0.3, ["lost shard"])])
def test_a_worker_that_got_no_cpu_meanwhile_proves_nothing(
    history: HistoryBuilder, pid: int, stalled: float, promises: list[str]
) -> None:
    for id in _ready(history, 20):
        history.run(id, 7_100, 7_200)
    history.write(facts.Stalled, 5_000, stalled, pid=pid)
    assert history.promises(lost_shards=[_AWAY]) == promises


def test_a_stall_of_another_worker_or_at_another_time_excuses_nobody(history: HistoryBuilder) -> None:
    for id in _ready(history, 20):
        history.run(id, 7_100, 7_200)
    history.write(facts.Stalled, 5_000, 3.0, pid=3)
    history.write(facts.Stalled, 900, 0.8, pid=2)
    history.write(facts.Stalled, 9_000, 1.5, pid=2)
    assert history.promises(lost_shards=[_AWAY]) == ["lost shard"]


def test_a_worker_whose_loop_a_task_blocked_proves_nothing(history: HistoryBuilder) -> None:
    for id in _ready(history, 20):
        history.run(id, 7_100, 7_200)
    history.write(facts.Fault, 4_000, "task", -1, "block-loop", 2.0, pid=2)
    assert history.promises(lost_shards=[_AWAY]) == []
