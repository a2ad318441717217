"""Sketches of durations, and how errors are grouped."""

from __future__ import annotations

import random

import pytest

from penstock.core.stats import BUCKETS, MS_BOUNDS, SECOND_BOUNDS, quantile, sketch_of, sum_sketches
from penstock.worker.worker_stats import LONGEST_MESSAGE, group_id, normalised


@pytest.mark.parametrize("share", [0.0, 0.5, 0.95, 0.99, 1.0])
def test_a_percentile_is_wrong_by_five_percent_at_most(share: float) -> None:
    dice = random.Random(7)
    values = sorted(10 ** dice.uniform(-5, 4) for _ in range(5_000))
    found = quantile(sketch_of(values, SECOND_BOUNDS), share)
    assert found == pytest.approx(values[int(share * (len(values) - 1))], rel=0.0501)


def test_parts_of_the_values_add_up_to_the_sketch_of_all() -> None:
    dice = random.Random(8)
    values = [dice.expovariate(3) for _ in range(1_000)]
    parts = [sketch_of(sorted(values[n::4]), SECOND_BOUNDS) for n in range(4)]
    assert sum_sketches(parts) == sketch_of(sorted(values), SECOND_BOUNDS)
    assert sum_sketches([]) == []


def test_milliseconds_and_seconds_have_the_same_buckets() -> None:
    assert sketch_of([250, 90_000], MS_BOUNDS) == sketch_of([0.25, 90.0], SECOND_BOUNDS)


def test_values_beyond_the_buckets_are_counted_in_the_first_and_the_last() -> None:
    sketch = sketch_of([-1.0, 0.0, 1e12], SECOND_BOUNDS)
    assert sketch == [0, 2, BUCKETS - 1, 1]
    assert quantile(sketch, 0.5) == 0.0
    assert quantile([], 0.5) is None


@pytest.mark.parametrize(
    ("message", "group"),
    [
        ("timed out after 30.5 s", "timed out after <n> s"),
        ("no user 'bob' in \"crm\"", "no user <text> in <text>"),
        ("it can't open the file, don't ask", "it can't open the file, don't ask"),
        ("job 0f8fad5b-d9cb-469f-a165-70867728950e is gone", "job <uuid> is gone"),
        ("at 0x7f3a and deadbeef42", "at <hex> and <hex>"),
        ("a deadline of decades", "a deadline of decades"),
        ("10.0.0.7:5432 refused v2", "<n>:<n> refused v<n>"),
        ("order 1234567 of 123456789012", "order <n> of <n>"),
        ("no mailbox a.b+c@mail.example.org.", "no mailbox <email>."),
        ("[fe80::1ab:2]:443 and ::1 at 10:20:30", "[<ip>]:<n> and <ip> at <n>:<n>:<n>"),
        ("std::bad_alloc in a::run", "std::bad_alloc in a::run"),
        ("cannot read /tmp/tmp3x_a/in.csv: /etc/x, ~/a/b", "cannot read <path>: <path>, <path>"),
        ("and/or, 3/4, km/h", "and/or, <n>/<n>, km/h"),
        ("503 of https://a.example/hook/7?x=1", "<n> of https://a.example/hook/<n>?x=<n>"),
        ("  first line\nsecond line", "first line"),
        ("", ""),
    ],
)
def test_a_group_has_no_numbers_ids_or_quoted_text(message: str, group: str) -> None:
    assert normalised(message) == group


def test_a_long_message_is_cut() -> None:
    assert len(normalised("x" * 100_000)) == LONGEST_MESSAGE
    assert len(normalised("'" * 100_000)) <= LONGEST_MESSAGE


def test_a_group_belongs_to_one_task_class_and_message() -> None:
    names = {
        group_id(*facts) for facts in [("a", "b", "c"), ("ab", "", "c"), ("a", "bc", ""), ("a", "b", "d")]
    }
    assert len(names) == 4
    assert group_id("a", "b", "c") in names
