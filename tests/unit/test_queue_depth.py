"""The sums of depths over time, and of several queues."""

from __future__ import annotations

from penstock.core.queue_depth import QueueDepth, depth_of_all, depth_over_time

FIRST, SECOND = QueueDepth(2, 30, 4, 6, 20), QueueDepth(1, 5, 1, 0, 5)


def test_samples_of_one_queue_add_up_over_time() -> None:
    assert depth_over_time([FIRST, SECOND]) == QueueDepth(3, 35, 5, 6, 20)
    assert depth_over_time([QueueDepth.sample(7, 1, 2)]) == QueueDepth(1, 7, 1, 2, 7)


def test_queues_together_have_the_samples_of_one_and_a_new_queue_counts_for_its_time() -> None:
    assert depth_of_all([FIRST, SECOND]) == QueueDepth(2, 35, 5, 6, 20)
    assert depth_over_time([]) == depth_of_all([]) == QueueDepth(0, 0, 0, 0, 0)
