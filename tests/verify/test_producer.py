"""The jobs of producers depend on the seed alone, not on the speed of the machine."""

from __future__ import annotations

from penstock.verify.workload.producer import Producer


def _jobs(seed: str, *beats: int) -> list[tuple[str, str]]:
    """What was asked for in beats of so many jobs, and what is done to it later."""
    producer = Producer(seed, 100.0)
    found = []
    for n in beats:
        orders = producer.next_jobs(n)
        producer.enqueue(orders)
        found += [(repr(order.call).partition('{"until')[0], order.verb) for order in orders]
    return found


def test_the_same_seed_enqueues_the_same_jobs_at_any_pace() -> None:
    assert _jobs("7/1", 3, 3, 3, 3) == _jobs("7/1", 6, 1, 5) == _jobs("7/1", 12)
    assert _jobs("7/1", 12) != _jobs("7/2", 12)
