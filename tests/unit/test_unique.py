"""When two jobs are the same."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.errors import ConfigError
from penstock.unique import Unique, UniqueKey, unique_key


@pytest.mark.parametrize(
    ("written", "rule"),
    [
        (None, None),
        (False, None),
        (True, Unique()),
        (5, Unique(5_000)),
        (0, Unique(0)),
        ("10m", Unique(600_000)),
        (timedelta(hours=1), Unique(3_600_000)),
        (Unique(7), Unique(7)),
    ],
    ids=repr,
)
def test_what_a_user_may_write(written: object, rule: Unique | None) -> None:
    assert Unique.of(written) == rule  # type: ignore[arg-type]


@pytest.mark.parametrize("written", [-1, "soon", [1]], ids=repr)
def test_what_is_no_period_is_refused(written: object) -> None:
    with pytest.raises(ConfigError, match="unique="):
        Unique.of(written)  # type: ignore[arg-type]


def test_the_same_call_has_the_same_key() -> None:
    assert unique_key(Unique(), "t", b"[1]") == unique_key(Unique(), "t", b"[1]")


def test_another_task_or_other_arguments_have_another_key() -> None:
    calls = [("t", b"[1]"), ("t", b"[2]"), ("u", b"[1]"), ("t", b""), ("", b"t"), ("t\0", b"")]
    assert len({unique_key(Unique(), task, payload).key for task, payload in calls}) == len(calls)


def test_the_period_goes_with_the_key_but_does_not_change_it() -> None:
    plain, timed = unique_key(Unique(), "t", b"1"), unique_key(Unique(5), "t", b"1")
    assert (plain.key, plain.period, timed.period) == (timed.key, None, 5)


def test_a_key_is_short_whatever_the_arguments_are() -> None:
    key = unique_key(Unique(), "t" * 1_000, b"x" * 1_000_000)
    assert isinstance(key, UniqueKey)
    assert len(key.key) == 32
