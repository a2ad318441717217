"""Payloads whose numbers share one hash are refused, before a dict or a set of them takes minutes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest

from penstock.codec import ArgsCodec
from penstock.codec.collisions import guarded, may_collide
from penstock.codec.shape import Shape
from penstock.codec.tags import Misfit
from penstock.core.errors import ArgumentError, Undecodable

MODULUS = sys.hash_info.modulus
MANY = 2_000


@dataclass
class Node:
    counts: dict[int, str]
    below: Node | None = None


def by_number(counts: dict[int, int]) -> None: ...


def by_uuid(found: set[UUID]) -> None: ...


def anything(found: object) -> None: ...


def texts(kind: str) -> list[str]:
    """Many different numbers with one hash, as JSON has them."""
    every = range(20, 20 + MANY)
    if kind == "numbers":
        return [str(n * MODULUS) for n in every]
    if kind == "uuids":
        return [str(UUID(int=n * MODULUS)) for n in every]
    if kind == "bare uuids":
        return [UUID(int=n * MODULUS).hex for n in every]
    if kind == "escaped":
        return ["".join(f"\\u{ord(digit):04x}" for digit in str(n * MODULUS)) for n in every]
    if kind == "huge exponents":
        huge = [10**17 + n for n in every]
        return [f"{pow(10, -n, MODULUS)}e{n}" for n in huge]
    if kind == "exponents":
        return [f"{pow(10, -n, MODULUS)}e{n}" for n in every]
    return [f"{n * MODULUS:.1f}" if n < 0 else f"{n * MODULUS}.0" for n in every]


def as_object(kind: str) -> bytes:
    return b"{" + b",".join(b'"%b":1' % text.encode() for text in texts(kind)) + b"}"


def as_array(kind: str) -> bytes:
    return b"[" + b",".join(b'"%b"' % text.encode() for text in texts(kind)) + b"]"


def as_pairs() -> bytes:
    """Tuples of small numbers with one hash: -1 and -2 have the same."""
    every = range(1 << 10, 1 << 11)
    assert hash((-1, -2)) == hash((-2, -1))
    return msgspec.json.encode([[-1 - (n >> bit & 1) for bit in range(10)] for n in every])


@pytest.mark.parametrize(
    ("annotation", "payload"),
    [
        (dict[int, int], as_object("numbers")),
        (Mapping[int, int], as_object("numbers")),
        (dict[UUID, int], as_object("uuids")),
        (dict[UUID, int], as_object("bare uuids")),
        (set[UUID], as_array("uuids")),
        (frozenset[UUID], as_array("uuids")),
        (set[Decimal], as_array("decimals")),
        (set[Decimal], as_array("exponents")),
        (dict[Decimal, int], as_object("huge exponents")),
        (dict[int, int], as_object("escaped")),
        (set[tuple[int, ...]], as_pairs()),
        (object, b'{"$set":[%b]}' % as_pairs()[1:-1].replace(b"[", b'{"$tuple":[').replace(b"]", b"]}")),
        (set[int], as_array("numbers").replace(b'"', b"")),
        (set[Any], as_array("numbers").replace(b'"', b"")),
        (list[dict[str, set[UUID]]], b'[{"a":%b}]' % as_array("uuids")),
        (Node, b'{"counts":{},"below":{"counts":%b}}' % as_object("numbers")),
        (object, b'{"$set":%b}' % as_array("numbers").replace(b'"', b"")),
    ],
)
def test_numbers_with_one_hash_are_refused(annotation: Any, payload: bytes) -> None:
    with pytest.raises(Misfit, match="have the same hash"):
        Shape(annotation).read(payload)


@pytest.mark.parametrize(
    "annotation",
    [str, int, dict[str, Any], list[int], set[str], tuple[int, ...], dict[str, Node | None] | None],
)
def test_other_types_are_not_looked_through(annotation: Any) -> None:
    collides = may_collide(annotation)
    assert collides is (annotation == dict[str, Node | None] | None)
    decode = msgspec.json.Decoder(annotation).decode
    assert (guarded(decode, collides) is decode) is not collides


def spread(make: Callable[[int], object]) -> Iterable[object]:
    return [make(n) for n in range(MANY)]


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (by_number, {n * 10**15 + 2**61: n for n in range(MANY)}),
        (by_number, {2**64 + n * 10**30: n for n in range(MANY)}),
        (by_number, {n * MODULUS: n for n in range(100)}),
        (by_uuid, {UUID(int=n << 64 | n) for n in range(MANY)}),
        (by_uuid, {UUID(int=n) for n in range(MANY)}),
        (anything, {2**70 + n for n in range(MANY)}),
        (anything, {(n, n * n, None) for n in range(MANY)}),
        (anything, {"".join(f"{n}e{k}" for k in range(9)) for n in range(MANY)}),
    ],
)
def test_many_numbers_fit(function: Callable[..., None], value: Any) -> None:
    codec = ArgsCodec(function, name="t")
    assert codec.decode(codec.encode((value,), {})) in (((value,), {}), ((), {"found": value}))


def test_a_task_says_why_it_refuses_them() -> None:
    codec = ArgsCodec(by_number, name="stats.add")
    with pytest.raises(Undecodable, match=r"stats\.add: the argument 'counts' .* have the same hash"):
        codec.decode(b'{"counts":%b}' % as_object("numbers"))
    with pytest.raises(ArgumentError, match=r"have the same hash.* pass them as texts"):
        codec.encode(({n * MODULUS: 1 for n in range(20, 20 + MANY)},), {})
    assert "have the same hash" in codec.misfits({"counts": as_object("numbers")})["counts"]
