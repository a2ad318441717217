"""Order of queues: weighted round robin, or strict."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.core.job import Job, NewJob, State
from penstock.stores.contract import MOST_FETCHED, Share
from penstock.worker.queues import Queue, WeightedRoundRobin, as_queues, spread

WEIGHTED = (Queue("critical", weight=6), Queue("default", weight=3), Queue("low", weight=1))


def serve(shares: list[Share], limit: int, stock: dict[str, int]) -> Counter[str]:
    """What a store gives out for these shares: quotas first, then the rest up to the caps."""
    got: Counter[str] = Counter()
    for share in shares:
        n = min(share.quota, stock[share.queue], limit - got.total())
        got[share.queue] += n
    for share in shares:
        n = min(share.cap, stock[share.queue]) - got[share.queue]
        got[share.queue] += max(0, min(n, limit - got.total()))
    for queue, n in got.items():
        stock[queue] -= n
    return got


@pytest.mark.parametrize("limit", [1, 2, 7, 100, 1000])
def test_full_queues_start_by_their_weights(limit: int) -> None:
    round_robin = WeightedRoundRobin(WEIGHTED)
    stock = dict.fromkeys(("critical", "default", "low"), 10**9)
    total: Counter[str] = Counter()
    while total.total() < 10_000:
        shares = round_robin.plan(limit, limit, {}, {})
        got = serve(shares, limit, stock)
        round_robin.charge(shares, got)
        total += got
    share = {queue: n / total.total() for queue, n in total.items()}
    assert share["critical"] == pytest.approx(0.6, abs=0.03)
    assert share["default"] == pytest.approx(0.3, abs=0.03)
    assert share["low"] == pytest.approx(0.1, abs=0.03)


def test_queues_that_a_fetch_did_not_reach_come_first_in_the_next_one() -> None:
    names = [f"q-{n}" for n in range(MOST_FETCHED + 20)]
    round_robin = WeightedRoundRobin([Queue(name) for name in names])
    shares = round_robin.plan(2 * len(names), 1, {}, {})
    assert [share.queue for share in shares] == names
    round_robin.charge(shares, {"q-0": 1})  # the store has stopped at the first part with a job
    again = round_robin.plan(2 * len(names), 1, {}, {})
    assert [share.queue for share in again[:20]] == names[MOST_FETCHED:]


def test_an_empty_queue_does_not_save_up_credit() -> None:
    round_robin = WeightedRoundRobin((Queue("a"), Queue("b")))
    stock = {"a": 10**6, "b": 0}
    for _ in range(100):
        shares = round_robin.plan(1, 1, {}, {})
        round_robin.charge(shares, serve(shares, 1, stock))
    stock["b"] = 10**6
    got: Counter[str] = Counter()
    for _ in range(20):
        shares = round_robin.plan(1, 1, {}, {})
        one = serve(shares, 1, stock)
        round_robin.charge(shares, one)
        got += one
    assert abs(got["a"] - got["b"]) <= 2


def test_what_one_queue_cannot_fill_another_may() -> None:
    round_robin = WeightedRoundRobin(WEIGHTED)
    got = serve(round_robin.plan(100, 100, {}, {}), 100, {"critical": 0, "default": 0, "low": 500})
    assert got["low"] == 100


def test_strict_order_gives_the_lower_queue_none_while_the_higher_has_any() -> None:
    round_robin = WeightedRoundRobin((Queue("high"), Queue("low")), strict=True)
    stock = {"high": 95, "low": 100}
    assert serve(round_robin.plan(50, 50, {}, {}), 50, stock) == {"high": 50, "low": 0}
    assert serve(round_robin.plan(50, 50, {}, {}), 50, stock) == {"high": 45, "low": 5}


def test_a_queue_never_gets_more_than_its_slots() -> None:
    round_robin = WeightedRoundRobin((Queue("a", slots=10), Queue("b", slots=20)))
    plan = {s.queue: s.cap for s in round_robin.plan(100, 30, {"a": 4, "b": 20}, {})}
    assert plan == {"a": 6}


def test_a_queue_of_one_slot_gives_what_it_may_and_the_others_all() -> None:
    round_robin = WeightedRoundRobin((Queue("a"), Queue("b")))
    caps = {s.queue: s.cap for s in round_robin.plan(10, 10, {}, {"a": 0})}
    assert caps == {"b": 10}


def test_names_and_queues_mix() -> None:
    assert as_queues(["a", Queue("b", weight=2)]) == (Queue("a"), Queue("b", weight=2))


def test_jobs_of_one_fetch_start_evenly_mixed_and_each_queue_in_its_own_order() -> None:
    jobs = [Job(NewJob(f"{queue}{i}", "t", queue=queue), State.RUNNING) for queue in "abc" for i in range(6)]
    del jobs[-5:]  # six of a, six of b, one of c
    mixed = spread(jobs, Counter(job.queue for job in jobs))
    assert [job.id for job in mixed] == [
        *("a0", "b0", "a1", "b1", "a2", "b2", "c0", "a3", "b3", "a4", "b4", "a5", "b5")
    ]
    assert spread(jobs[:6], {"a": 6}) == jobs[:6]


@pytest.mark.parametrize("queues", [(Queue("a"),), (Queue("a"), Queue("b"))])
def test_a_queue_of_process_tasks_shows_the_store_the_free_process_slots(queues: tuple[Queue, ...]) -> None:
    shares = WeightedRoundRobin(queues).plan(20, 20, {}, {"a": 10}, {"a": 2})
    free = {"a": 2, "b": 20}
    assert {share.queue: share.free for share in shares} == {queue.name: free[queue.name] for queue in queues}
