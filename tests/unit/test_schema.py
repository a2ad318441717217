"""JSON schemas of annotations: the check never refuses what the codec reads."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta

from penstock.codec import ResultCodec
from penstock.codec.schema import LARGEST_SCHEMA, misfit, misfit_of, schema_of
from penstock.core.errors import Undecodable
from tests.cases import each


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Known(enum.Enum):
    ONE = 1

    @classmethod
    def _missing_(cls, value: object) -> Known:
        return cls.ONE


class Crate(msgspec.Struct):
    weight: Annotated[float, Meta(gt=0)]
    colour: Colour = Colour.RED
    inner: list[Crate] = []


class Dog(msgspec.Struct, tag="dog", forbid_unknown_fields=True):
    legs: int = 4


class Cat(msgspec.Struct, tag="cat", rename="camel"):
    lives_left: int


class Row(msgspec.Struct, array_like=True):
    number: int
    text: str = ""


@dataclass
class Order:
    id: UUID
    at: datetime
    note: str | None = None
    tags: set[str] = field(default_factory=set)


class Point(NamedTuple):
    x: int
    y: int = 0


class Options(TypedDict, total=False):
    fast: bool
    limit: Annotated[int, Meta(ge=1, le=9)]


class Line(pydantic.BaseModel):
    sku: str
    count: int = 1
    price: Decimal = Decimal(0)
    colour: Colour = Colour.RED


class Cart(pydantic.BaseModel):
    lines: list[Line]
    owner: str | None = None
    at: datetime | None = None
    parts: dict[str, Cart] = {}
    pair: tuple[int, str] = (1, "a")
    marks: set[int] = set()


class Own(pydantic.BaseModel):
    number: int

    @pydantic.model_validator(mode="before")
    @classmethod
    def from_number(cls, data: Any) -> Any:
        return {"number": data} if isinstance(data, int) else data


class Aliased(pydantic.BaseModel, populate_by_name=True):
    number: int = pydantic.Field(alias="no")


class Box(msgspec.Struct):
    cart: Cart | None
    path: Path
    known: Known = Known.ONE


_LEAVES: list[Any] = [
    *(int, float, str, bool, bytes, None, Any, Decimal, datetime, date, time, timedelta, UUID, Path),
    *(Colour, Known, Crate, Dog | Cat, Dog, Cat, Row, Order, Point, Options, Line, Cart, Own, Aliased, Box),
    *(Literal["a", 1, None], str | Path, int | Path | None),
    Annotated[str, Meta(min_length=1, max_length=2, pattern="^[a-z]")],
    *(Annotated[bytes, Meta(max_length=2)], Annotated[int, Meta(multiple_of=3)]),
    *(Annotated[set[int], Meta(max_length=1)], Annotated[list[int], Meta(min_length=1)]),
]


def _optional(kind: Any) -> Any:
    return kind if kind is None else kind | None


def _wider(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several: Any = tuple
    plain: Any = dict
    listed: Any = list
    return st.one_of(
        inner.map(lambda kind: listed[kind]),
        inner.map(lambda kind: plain[str, kind]),
        inner.map(lambda kind: plain[int, kind]),
        inner.map(lambda kind: several[kind, ...]),
        st.tuples(inner, inner).map(lambda two: several[two]),
        inner.map(_optional),
    )


kinds: st.SearchStrategy[Any] = st.recursive(st.sampled_from(_LEAVES), _wider, max_leaves=3)
_TEXTS = ["", "a", "ab", "abc", "red", "blue", "dog", "cat", "1", "1.5", "true", "YWI=", "PT5S", "/tmp"]
_TEXTS += ["2024-05-01", "2024-05-01T12:00:00Z", "12:00:00", "6f7d1f6c-6a0e-4e9f-8d2a-6a2a6b2b1d11"]
_NAMES = [
    "weight",
    "colour",
    "inner",
    "type",
    "legs",
    "livesLeft",
    "id",
    "at",
    "note",
    "tags",
    "fast",
    "limit",
]
_NAMES += [
    "sku",
    "count",
    "price",
    "lines",
    "owner",
    "parts",
    "pair",
    "marks",
    "number",
    "no",
    "cart",
    "path",
]
_NAMES += ["known", "path", "limit", "1", "$uuid", "$path"]
leaves: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 9), st.sampled_from([0.5, 1.0, 10**30]), st.sampled_from(_TEXTS)
)
values: st.SearchStrategy[Any] = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=3),
    max_leaves=6,
)
#: Values that fit one of the classes, with parts that may not.
near: st.SearchStrategy[Any] = st.one_of(
    st.fixed_dictionaries({"weight": leaves}, optional={"colour": leaves, "inner": values, "no": values}),
    st.fixed_dictionaries({"livesLeft": leaves}, optional={"type": st.sampled_from(["cat", "dog"])}),
    st.fixed_dictionaries({"id": st.sampled_from(_TEXTS), "at": leaves}, optional={"tags": values}),
    st.fixed_dictionaries({"sku": leaves}, optional={"count": values, "price": values, "colour": values}),
    st.fixed_dictionaries(
        {"lines": st.lists(st.fixed_dictionaries({"sku": leaves}, optional={"price": values}), max_size=2)},
        optional={"at": values, "pair": values, "marks": values, "owner": leaves, "extra": leaves},
    ),
    st.fixed_dictionaries({"cart": values, "path": leaves}, optional={"known": values}),
)
anything: st.SearchStrategy[Any] = st.one_of(
    values, near, st.lists(near, max_size=2), st.dictionaries(st.just("1"), near)
)


@settings(max_examples=400)
@given(kinds, anything)
def test_what_the_codec_reads_the_check_accepts(annotation: Any, value: Any) -> None:
    codec, payload = ResultCodec(annotation, name="test"), msgspec.json.encode(value)
    try:
        codec.decode(payload)
    except Undecodable:
        return
    schema = codec.schema
    assert schema is None or misfit(schema, payload) is None


@pytest.mark.parametrize(
    ("annotation", "payload"),
    [
        (Known, b"7"),
        (Dog, b"{}"),
        (Dog | Cat, b'{"type":"cat","livesLeft":7}'),
        (Row, b'[1,"a","more"]'),
        (Annotated[set[int], Meta(max_length=1)], b"[1,1]"),
        (Annotated[bytes, Meta(max_length=2)], b'"YWI="'),
        (Decimal, b"1.5"),
        (Line, b'{"sku":"a","count":"3","price":"0.5"}'),
        (Cart, b'{"lines":[],"at":1700000000,"marks":["1",1],"pair":["1","a"],"extra":0}'),
        (Own, b"1"),
        (Aliased, b'{"number":1}'),
        (Box, b'{"cart":{"lines":[{"sku":"a","count":true}]},"path":"/tmp","known":0}'),
        (str | Path, b'{"$path":"/tmp"}'),
    ],
)
def test_odd_data_that_codecs_read_is_accepted(annotation: Any, payload: bytes) -> None:
    codec = ResultCodec(annotation, name="test")
    codec.decode(payload)
    assert codec.schema is None or misfit(codec.schema, payload) is None


@each(
    "annotation, data, why",
    [
        (int, "7", "expected integer, got string"),
        (int, True, "expected integer, got boolean"),
        (list[int], {"no": "list"}, "expected array, got object"),
        (list[int], [1, "a"], "expected integer, got string - at `$[1]`"),
        (list[int] | None, [1, "a"], "expected integer, got string - at `$[1]`"),
        (int | str, [], "expected integer or string, got array"),
        (Colour, "green", 'expected one of "blue", "red"'),
        (Crate, {}, "'weight' is missing"),
        (Crate, {"weight": 0}, "expected more than 0 - at `$.weight`"),
        (
            Crate,
            {"weight": 1, "inner": [{"weight": None}]},
            "expected number, got null - at `$.inner[0].weight`",
        ),
        (Dog, {"type": "dog", "paws": 4}, "'paws' is unknown"),
        (Order, {"id": "7", "at": "now"}, "Invalid UUID - at `$.id`"),
        (Options, {"limit": 10}, "expected at most 9 - at `$.limit`"),
        (tuple[int, str], [1], "expected at least 2 items, got 1"),
        (Annotated[str, Meta(pattern="^a")], "b", "expected a text like '^a'"),
        (Annotated[str, Meta(max_length=1)], "ab", "expected at most 1 characters, got 2"),
        (Annotated[int, Meta(multiple_of=3)], 4, "expected a multiple of 3"),
        (Line, {"count": 2}, "'sku' is missing"),
        (Line, {"sku": ["a"]}, "expected string, got array - at `$.sku`"),
        (list[Cart], [{"lines": [{}]}], "'sku' is missing - at `$[0].lines[0]`"),
        (Box, {"cart": {"lines": 1}, "path": "a"}, "expected array, got integer - at `$.cart.lines`"),
        (Box, {"cart": None, "path": 1}, "expected string, got integer - at `$.path`"),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(annotation: Any, data: Any, why: str) -> None:
    codec, payload = ResultCodec(annotation, name="test"), msgspec.json.encode(data)
    with pytest.raises(Undecodable):
        codec.decode(payload)
    assert misfit(codec.schema or b"", payload) == why


def test_any_value_has_no_schema() -> None:
    assert [schema_of(kind) for kind in (Any, object, str | Path, Own)] == [None] * 4
    assert schema_of(list[Own]) == b'{"type":"array","items":{"title":"Own"}}'
    assert schema_of(Literal["x" * LARGEST_SCHEMA]) is None


def test_the_place_is_told_in_parts_for_forms() -> None:
    found = misfit_of(schema_of(Crate) or b"", b'{"weight":1,"inner":[1]}')
    assert found is not None
    assert (found.path, found.reason) == (("inner", 0), "expected object, got integer")
    assert "can't decode byte 0xff" in (misfit(b"{}", b'"\xff"') or "")
    assert misfit(b"{}", b"{") == "Input data was truncated"


@pytest.mark.parametrize(
    "schema",
    [
        b"not JSON",
        b'"\xff"',
        b"[]",
        b'{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}}',
        b'{"$ref":"elsewhere","type":"strange","pattern":"(","enum":7,"minimum":"a","required":"x"}',
        b'{"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"}]}},"$ref":"#/$defs/a"}',
        b'{"dependentSchemas":{"a":false},"not":{},"format":"colour","multipleOf":0}',
    ],
)
def test_what_the_check_does_not_know_it_ignores(schema: bytes) -> None:
    for payload in (b"1", b'"a"', b'{"a":[1]}', b"[[]]"):
        assert misfit(schema, payload) is None


def test_dates_of_the_codec_are_those_of_the_check() -> None:
    payload = msgspec.json.encode(datetime.now(UTC))
    schema = schema_of(Annotated[datetime, Meta(tz=True)]) or b""
    assert misfit(schema, payload) is None
    assert misfit(schema, b'"today"') == "Invalid RFC3339 encoded datetime"
