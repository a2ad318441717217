"""The sums of depths over time, and of several queues; enqueued jobs from totals."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.core.stats import QueueDepth, depth_of_all, depth_over_time, enqueued_between

FIRST, SECOND = QueueDepth(2, 30, 4, 6, 20), QueueDepth(1, 5, 1, 0, 5)


def test_samples_of_one_queue_add_up_over_time() -> None:
    assert depth_over_time([FIRST, SECOND]) == QueueDepth(3, 35, 5, 6, 20)
    assert depth_over_time([QueueDepth.sample(7, 1, 2)]) == QueueDepth(1, 7, 1, 2, 7)


def test_queues_together_have_the_samples_of_one_and_a_new_queue_counts_for_its_time() -> None:
    assert depth_of_all([FIRST, SECOND]) == QueueDepth(2, 35, 5, 6, 20)
    assert depth_over_time([]) == depth_of_all([]) == QueueDepth(0, 0, 0, 0, 0)


def test_enqueued_jobs_are_the_difference_to_the_next_known_total() -> None:
    assert enqueued_between([None, 5, None, 9, 9, 2, 4], 10) == [None, 4, None, 0, 0, 2, 6]
    assert enqueued_between([], 10) == []


def test_enqueued_jobs_add_up_unless_none_is_known() -> None:
    parts = [replace(FIRST, enqueued=number) for number in (None, 4, 6)]
    assert depth_over_time(parts).enqueued == depth_of_all(parts).enqueued == 10
    assert depth_over_time(parts[:1]).enqueued is None
