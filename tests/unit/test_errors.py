"""Error messages fit one line, for any input."""

from __future__ import annotations

import inspect

import pytest

from penstock import errors
from penstock.errors import EnqueueManyError, PenstockError, QueueFull
from tests.cases import each
from tests.untrusted_text import HOSTILE, clean


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.25, "0.25 s"), (7.456, "7.46 s"), (1_234.5, "1,234 s"), (86_400.0, "86,400 s")]
)
def test_a_full_queue_says_in_plain_seconds_when_to_try_again(seconds, said):
    assert f"; try again in {said}" in str(QueueFull("mail", seconds))


KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, PenstockError) and kind is not EnqueueManyError
]


def made(kind, text):
    """An error of this kind in which all text is this one."""
    known = {
        "retry_after": None,
        "size": 1,
        "limit": 1,
        "ids": [text] * 9,
        "errors": (),
        "needs": 2,
        "waits": True,
    }
    names = list(inspect.signature(kind).parameters) if "__init__" in vars(kind) else ["message"]
    return kind(*(known.get(name, text) for name in names))


@each("kind", KINDS)
def test_every_error_is_neutral_and_of_bounded_length(kind):
    hostile = HOSTILE.replace("\n", "") if issubclass(kind, errors.ConfigError) else HOSTILE
    clean(str(made(kind, hostile)))
    assert len(str(made(kind, "\x1b" * 1_000_000))) < 20_000
    assert len(str(made(kind, "x\n" * 1_000_000))) < 20_000


def test_a_long_error_keeps_its_beginning_and_its_way_out():
    said = str(errors.ConfigError(f"lease={'x' * 100_000!r} is not a duration: write '90s'"))
    assert said.startswith("lease='xxx")
    assert said.endswith("x' is not a duration: write '90s'")


def test_problems_keep_a_line_each():
    said = str(errors.ConfigError("one\ntwo\x1b[2J\nthree"))
    assert said.split("\n") == ["one", "two\\x1b[2J", "three"]


def test_an_error_of_many_jobs_is_neutral_too():
    many = EnqueueManyError([None], {0: errors.EnqueueError(HOSTILE * 1_000)})
    clean(str(many))
    assert len(str(many)) < 3_000


def test_an_error_without_words_has_none():
    assert str(PenstockError()) == ""
