"""Fuzz tests: any input gives a value or one of Penstock's errors that names the problem.

`FUZZ=50 pytest tests/fuzz` runs fifty times as many examples, at random. Every failure that was found stays
as an `@example`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

__all__ = ["FACTOR", "anything", "fuzzed", "jsons", "mangled", "texts"]

F = TypeVar("F", bound=Callable[..., Any])

#: How many times as much as in CI, where every run tries the same.
FACTOR = int(os.environ.get("FUZZ", "0"))


def fuzzed(examples: int) -> Callable[[F], F]:
    """So many examples. No database: what was found belongs into the test."""
    return settings(
        max_examples=examples * max(1, FACTOR),
        derandomize=not FACTOR,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def texts(*, seeds: list[str], alphabet: str = "") -> st.SearchStrategy[str]:
    """Any text, texts of these characters, and good texts (`seeds`) with something put in or taken out."""
    kinds: list[st.SearchStrategy[str]] = [
        st.text(max_size=40),
        st.builds(_mangled, st.sampled_from(seeds), _CUTS),
    ]
    if alphabet:
        kinds.append(st.text(alphabet, max_size=20))
    return st.one_of(*kinds)


def mangled(seeds: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Good bytes with some changed, left out, or put in; and bytes of no sense at all."""
    return st.one_of(st.binary(max_size=200), st.builds(_mangled_bytes, seeds, _CUTS))


#: What JSON can say, and what Python can have besides.
jsons: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
anything: st.SearchStrategy[Any] = st.one_of(
    jsons,
    st.binary(max_size=20),
    st.datetimes(),
    st.timedeltas(),
    st.decimals(),
    st.uuids(),
    st.tuples(st.integers()),
    st.sets(st.integers(), max_size=3),
    st.complex_numbers(),
    st.just(object()),
)

_CUTS = st.lists(
    st.tuples(
        st.floats(0, 1), st.integers(0, 6), st.text(max_size=6) | st.sampled_from(["0", "-", "9" * 400, "\0"])
    ),
    min_size=1,
    max_size=4,
)


def _mangled(text: str, cuts: list[tuple[float, int, str]]) -> str:
    for where, out, put in cuts:
        at = int(where * len(text))
        text = text[:at] + put + text[at + out :]
    return text


def _mangled_bytes(data: bytes, cuts: list[tuple[float, int, str]]) -> bytes:
    for where, out, put in cuts:
        at = int(where * len(data))
        data = data[:at] + put.encode("utf-8", "replace") + data[at + out :]
    return data
