"""The jobs of producers depend on the seed and the options alone, not on the speed of the machine."""

from __future__ import annotations

import pytest

from penstock.verify.workload import tasks
from penstock.verify.workload.flow_load import FLOW_SHAPES
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


@pytest.mark.parametrize(
    ("share", "low", "high"), [(None, 10, 60), (0.0, 0, 0), (0.5, 450, 550), (1.0, 1_000, 1_000)]
)
def test_a_share_of_the_jobs_run_in_processes(share: float | None, low: int, high: int) -> None:
    jobs = Producer("7/1", 100.0, share).next_jobs(1_000)
    names = [job.call.new().task for job in jobs]
    in_process = [name for name in names if tasks.app.tasks[name].run_in == "process"]
    assert low <= len(in_process) <= high
    if share == 0.5:
        assert len(set(in_process)) == 6


def test_a_share_of_the_orders_are_flows_which_depend_on_the_seed_alone() -> None:
    def flows(*beats: int) -> list[tuple[str, object]]:
        producer = Producer("7/1", 100.0, None, 0.2)
        return [(flow.shape, flow.result) for n in beats for flow in producer.next_flows(n)]

    assert flows(300, 700) == flows(1_000)
    assert 150 <= len(flows(1_000)) <= 250
    assert len({shape for shape, _ in flows(1_000)}) > len(FLOW_SHAPES)
    assert Producer("7/1", 100.0).next_flows(1_000) == []
