"""Retry policies: tables of delays in ms."""

from __future__ import annotations

import msgspec
import pytest

from penstock.errors import ConfigError
from penstock.retry import (
    DEFAULT,
    Custom,
    Exponential,
    Fibonacci,
    Fixed,
    Linear,
    Polynomial,
    RetryPolicy,
    Steps,
    asynq,
    checked,
    exponential,
    fibonacci,
    fixed,
    linear,
    polynomial,
    sidekiq,
    steps,
    wait_ms,
)

S = 1_000
DAY = 86_400 * S

PLAIN = Exponential(jitter=0.0)


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        (PLAIN, [1 * S, 2 * S, 4 * S, 8 * S, 16 * S, 32 * S]),
        (Exponential(500, 3.0, jitter=0.0), [500, 1_500, 4_500, 13_500]),
        (Exponential(1 * S, 2.0, cap=5 * S, jitter=0.0), [1 * S, 2 * S, 4 * S, 5 * S, 5 * S]),
        (Exponential(1 * S, 1.0, jitter=0.0), [1 * S, 1 * S, 1 * S]),
        (Exponential(1 * S, 1.5, jitter=0.0), [1_000, 1_500, 2_250, 3_375, 5_062]),
        (Exponential(0), [0, 0, 0]),
        (Fixed(7), [7, 7, 7]),
        (Fixed(0), [0, 0]),
        (Linear(10), [10, 20, 30, 40]),
        (Linear(10, cap=25), [10, 20, 25, 25]),
        (Fibonacci(1 * S), [n * S for n in (1, 2, 3, 5, 8, 13, 21)]),
        (Fibonacci(10, cap=35), [10, 20, 30, 35, 35]),
        (Steps((5, 50, 500)), [5, 50, 500, 500, 500]),
        (Steps((9,)), [9, 9]),
        (Polynomial(), [15 * S, 16 * S, 31 * S, 96 * S, 271 * S]),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, list) else "",
)
def test_waits_by_attempt(policy: RetryPolicy, waits: list[int]) -> None:
    assert [wait_ms(policy, n, 0.0) for n in range(1, len(waits) + 1)] == waits


def test_luck_takes_up_to_the_share_of_jitter_off() -> None:
    policy = Exponential(1 * S, jitter=0.25)
    assert wait_ms(policy, 1, 0.0) == 1_000
    assert wait_ms(policy, 1, 0.5) == 875
    assert wait_ms(policy, 1, 0.999999) == 750
    assert wait_ms(Exponential(1 * S, jitter=1.0), 3, 0.75) == 1_000


def test_jitter_comes_after_the_cap_so_that_a_herd_stays_spread() -> None:
    policy = Exponential(1 * S, cap=10 * S, jitter=0.5)
    assert {wait_ms(policy, 20, luck) for luck in (0.0, 0.5)} == {10 * S, 7_500}


def test_luck_moves_the_polynomial_by_whole_seconds_that_grow_with_the_attempts() -> None:
    assert wait_ms(Polynomial(), 1, 0.9999) == (15 + 29) * S
    assert wait_ms(Polynomial(), 3, 0.9999) == (16 + 15 + 29 * 3) * S
    assert wait_ms(Polynomial(), 3, 0.034) == (16 + 15 + 1 * 3) * S


def test_the_twenty_fifth_wait_of_the_polynomial_is_the_one_that_its_users_know() -> None:
    assert wait_ms(Polynomial(), 25, 0.0) == (24**4 + 15) * S


@pytest.mark.parametrize("policy", [None, Custom()])
def test_without_a_policy_and_for_a_function_elsewhere_the_default_applies(
    policy: RetryPolicy | None,
) -> None:
    for attempt in (1, 5, 40):
        assert wait_ms(policy, attempt, 0.3) == wait_ms(DEFAULT, attempt, 0.3)


@pytest.mark.parametrize("policy", [DEFAULT, Linear(1 * S), Fibonacci(), PLAIN, Exponential(DAY, 10.0)])
def test_no_number_of_attempts_is_too_many(policy: RetryPolicy) -> None:
    for attempt in (100, 5_000, 10**6):
        assert 0 <= wait_ms(policy, attempt, 0.0) <= DAY


def test_policies_travel_with_the_job_as_data() -> None:
    policies: list[RetryPolicy] = [
        DEFAULT,
        Exponential(5, 1.5, 7, 0.1),
        Fixed(3),
        Linear(4),
        Fibonacci(),
        Steps((1, 2)),
        Polynomial(),
        Custom(),
    ]
    text = msgspec.json.encode(policies)
    assert msgspec.json.decode(text, type=list[RetryPolicy]) == policies
    assert msgspec.json.encode(DEFAULT) == b'{"kind":"exponential"}'


# ── what a user writes ──


def test_users_write_durations() -> None:
    assert exponential("2s", factor=3, cap="1h", jitter=0) == Exponential(2 * S, 3.0, 3_600 * S, 0.0)
    assert exponential() == DEFAULT
    assert fixed(1.5) == Fixed(1_500)
    assert linear("10s", cap="1m") == Linear(10 * S, 60 * S)
    assert fibonacci("250ms") == Fibonacci(250)
    assert steps(1, "5s", 0) == Steps((1 * S, 5 * S, 0))
    assert polynomial() == Polynomial()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: exponential(factor=0.5), "factor=0.5"),
        (lambda: exponential(factor=float("nan")), "factor=nan"),
        (lambda: exponential(jitter=1.1), "jitter=1.1"),
        (lambda: exponential(jitter=-0.1), "jitter=-0.1"),
        (lambda: exponential(-1), "base=-1"),
        (lambda: exponential(cap="soon"), "cap='soon'"),
        (lambda: fixed(-1), "delay=-1"),
        (lambda: linear("x"), "step='x'"),
        (lambda: steps(), "at least one delay"),
        (lambda: steps(1, -1), "delay=-1"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name(make, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


# ── the rules of other systems ──


def test_fibonacci_is_machinery_s_rule():
    """`RetryTimeout` becomes the smallest Fibonacci number above the one before, from 0."""
    waits = [wait_ms(fibonacci(), n, 0.5) for n in range(1, 9)]
    assert waits == [n * S for n in (1, 2, 3, 5, 8, 13, 21, 34)]
    wait = 5  # what a producer preset: the next one is 8
    assert next(w for w in waits if w > wait * S) == 8 * S


def test_fibonacci_meets_its_cap_after_the_default_attempts_only():
    waits = [wait_ms(fibonacci(), n, 0.0) for n in range(1, 25)]
    assert waits[-1] == 75_025 * S  # machinery has no cap
    assert wait_ms(fibonacci(), 25, 0.0) == DAY


def lots(policy: RetryPolicy, failed_before: int) -> list[int]:
    """Every wait that this policy may choose after so many failures, in s, by ten thousand draws."""
    draws = {wait_ms(policy, failed_before + 1, luck / 10_000) for luck in range(10_000)}
    return sorted(ms // S for ms in draws)


@pytest.mark.parametrize("n", [0, 1, 2, 24])
def test_asynq_draws_one_of_thirty_and_multiplies_it(n):
    assert lots(asynq(), n) == [n**4 + 15 + r * (n + 1) for r in range(30)]


@pytest.mark.parametrize("n", [0, 1, 2, 24])
def test_sidekiq_8_draws_any_second_of_its_range(n):
    assert lots(sidekiq(), n) == list(range(n**4 + 15, n**4 + 15 + 10 * (n + 1)))


@pytest.mark.parametrize("n", [0, 1, 2, 24])
def test_sidekiq_7_draws_one_of_ten_and_multiplies_it(n):
    assert lots(sidekiq(7), n) == [n**4 + 15 + r * (n + 1) for r in range(10)]


def test_polynomial_is_the_rule_of_asynq():
    assert polynomial() == asynq()


@pytest.mark.parametrize("version", [0, -8, "8", 7.3, True, None])
def test_a_version_of_sidekiq_is_a_whole_number(version):
    with pytest.raises(ConfigError, match="version="):
        sidekiq(version)


@pytest.mark.parametrize(
    ("stored", "waits"),
    [
        (b'{"kind":"polynomial"}', [15, 16, 31, 96]),
        (b'{"kind":"fibonacci"}', [1, 2, 3, 5]),
        (b'{"kind":"fibonacci","step":2000}', [2, 4, 6, 10]),
    ],
)
def test_policies_of_jobs_that_are_stored_already_can_be_read(stored, waits):
    policy = msgspec.json.decode(stored, type=RetryPolicy)
    assert [wait_ms(policy, n, 0.0) for n in range(1, 5)] == [s * S for s in waits]


@pytest.mark.parametrize(
    "policy",
    [Polynomial(-1), Polynomial(jitter="x"), Polynomial(even="x"), Polynomial(jitter=None)],
)
def test_a_polynomial_of_impossible_values_is_refused(policy):
    with pytest.raises(ConfigError, match="is invalid"):
        checked(policy)
