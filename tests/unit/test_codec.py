"""Arguments arrive as they were passed, or the call is refused; no value is changed silently."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import typing
import zoneinfo
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from inspect import Parameter, Signature
from pathlib import Path, PurePath
from typing import (  # noqa: UP035
    Annotated,
    Any,
    List,
    Literal,
    NamedTuple,
    NewType,
    NoReturn,
    Optional,
    Tuple,
    TypedDict,
    TypeVar,
    Unpack,
)
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.codec import ANY_RESULT, ArgsCodec, ResultCodec, result_codec_of
from penstock.errors import ArgumentError, ConfigError, ResultError, Undecodable
from tests.cases import each

T = TypeVar("T")
UserId = NewType("UserId", int)
CET = timezone(timedelta(hours=1))


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Plan(StrEnum):
    FREE = "free"


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Circle(msgspec.Struct, tag=True):
    radius: float


class Square(msgspec.Struct, tag=True):
    side: float


class Silent(msgspec.Struct, eq=False):
    when: date


class Pair(NamedTuple):
    left: int
    right: str


class Movie(TypedDict, total=False):
    title: str
    year: int


@dataclasses.dataclass
class Order:
    id: UUID
    file: Path
    lines: list[Point]


@dataclasses.dataclass(eq=False)
class Mute:
    amounts: dict[str, list[Silent]]


class Connection:
    """Something that nobody can store."""


class Loud(str):
    """A str that says it with emphasis."""

    __slots__ = ()


class LaterDate(datetime):
    """As pendulum and freezegun have them."""


def taking(annotation: Any) -> ArgsCodec:
    def task(value): ...

    task.__annotations__ = {"value": annotation}
    return ArgsCodec(task, name="task")


def through(codec: ArgsCodec, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return codec.decode(codec.encode(args, kwargs))


def arrives(annotation: Any, value: Any) -> Any:
    """What the task's one parameter holds in the worker."""
    args, kwargs = through(taking(annotation), value)
    return args[0] if args else kwargs["value"]


def result_of(function: Callable[..., Any], codec: ArgsCodec, *args: Any, **kwargs: Any) -> Any:
    """What the function returns when it is called as the worker calls it."""
    args, kwargs = through(codec, *args, **kwargs)
    return function(*args, **kwargs)


def welcome(user_id: int, lang: str = "en", *, loud: bool = False) -> str: ...


WELCOME = ArgsCodec(welcome, name="mail.welcome")


# --- the payload --------------------------------------------------------------------------------


def test_each_argument_is_stored_under_its_name() -> None:
    assert WELCOME.encode((42, "de"), {}) == b'{"user_id":42,"lang":"de"}'
    assert WELCOME.encode((), {"lang": "de", "user_id": 42}) == b'{"user_id":42,"lang":"de"}'


def test_what_was_not_passed_is_left_out_and_keeps_its_default_of_the_day() -> None:
    assert WELCOME.encode((42,), {}) == b'{"user_id":42}'
    assert WELCOME.decode(b'{"user_id":42}') == ((42,), {})
    assert WELCOME.decode(b'{"user_id":42,"loud":true}') == ((), {"user_id": 42, "loud": True})


def test_a_task_without_parameters_stores_an_empty_object() -> None:
    codec = ArgsCodec(lambda: None, name="tick")
    assert codec.encode((), {}) == b"{}"
    assert codec.decode(b"{}") == ((), {})


def every_kind(first, second=2, /, third=3, *rest: int, fourth, fifth=5, **others: date):
    return first, second, third, rest, fourth, fifth, others


EVERY_KIND = ArgsCodec(every_kind, name="every_kind")


@pytest.mark.parametrize(
    ("args", "kwargs", "payload"),
    [
        ((1,), {"fourth": 4}, b'{"first":1,"fourth":4}'),
        ((1, 7), {"fourth": 4}, b'{"first":1,"second":7,"fourth":4}'),
        ((1,), {"third": 7, "fourth": 4}, b'{"first":1,"third":7,"fourth":4}'),
        ((1, 2, 3), {"fourth": 4, "fifth": 6}, b'{"first":1,"second":2,"third":3,"fourth":4,"fifth":6}'),
        (
            (1, 2, 3, 8, 9),
            {"fourth": 4},
            b'{"first":1,"second":2,"third":3,"rest":[8,9],"fourth":4}',
        ),
        (
            (1,),
            {"fourth": 4, "first": date(2024, 5, 1), "rest": date(2024, 5, 2)},
            b'{"first":1,"fourth":4,"others":{"first":"2024-05-01","rest":"2024-05-02"}}',
        ),
        ((None, (1, 2)), {"fourth": 4}, b'{"first":null,"second":{"$tuple":[1,2]},"fourth":4}'),
    ],
)
def test_every_kind_of_parameter_is_stored_by_name(
    args: tuple[Any, ...], kwargs: dict[str, Any], payload: bytes
) -> None:
    assert EVERY_KIND.encode(args, kwargs) == payload
    assert result_of(every_kind, EVERY_KIND, *args, **kwargs) == every_kind(*args, **kwargs)


@pytest.mark.parametrize(
    "names", ["_", "__hidden", "self", "cls, type, tag", "größe", "__a, *, __b=1", "__x, /"]
)
def test_any_name_that_python_takes_will_do(names: str) -> None:
    space: dict[str, Any] = {}
    exec(f"def task({names}): return locals()", space)
    codec = ArgsCodec(space["task"], name="task")
    count = 3 if names.count(",") == 2 and "*" not in names else 1
    assert result_of(space["task"], codec, *range(count)) == space["task"](*range(count))


def test_an_unpacked_typed_dict_types_the_options() -> None:
    def task(**options: Unpack[Movie]): ...

    codec = ArgsCodec(task, name="task")
    assert codec.encode((), {"title": "M", "year": 1931}) == b'{"options":{"title":"M","year":1931}}'
    assert through(codec, title="M", year=1931) == ((), {"title": "M", "year": 1931})
    with pytest.raises(ArgumentError, match="options"):
        codec.encode((), {"year": "1931"})


# --- annotated values arrive as they were -------------------------------------------------------


@each(
    "annotation, value, stored",
    [
        (int, 2**100, b"1267650600228229401496703205376"),
        (float, 0.1, b"0.1"),
        (bool, True, b"true"),
        (str, "\u2028 $5 \x00 é 😀", None),
        (None, None, b"null"),
        (bytes, b"\xff\x00", b'"/wA="'),
        (bytearray, bytearray(b"hi"), b'"aGk="'),
        (datetime, datetime(2024, 5, 1, 12, tzinfo=UTC), b'"2024-05-01T12:00:00Z"'),
        (datetime, datetime(2024, 5, 1, 12, 0, 0, 1, CET), b'"2024-05-01T12:00:00.000001+01:00"'),
        (datetime, datetime(2024, 5, 1, 12), b'"2024-05-01T12:00:00"'),
        (date, date(2024, 5, 1), b'"2024-05-01"'),
        (time, time(12, 30), b'"12:30:00"'),
        (timedelta, timedelta(days=1, microseconds=1), b'"P1DT0.000001S"'),
        (timedelta, timedelta(days=-1), b'"-P1D"'),
        (UUID, UUID(int=5), b'"00000000-0000-0000-0000-000000000005"'),
        (Decimal, Decimal("1.50"), b'"1.50"'),
        (Path, Path("/tmp/a b"), b'"/tmp/a b"'),
        (PurePath, PurePath("a"), b'"a"'),
        (Colour, Colour.RED, b'"red"'),
        (Level, Level.HIGH, b"3"),
        (Plan, Plan.FREE, b'"free"'),
        (Point, Point(1), b'{"x":1,"y":0}'),
        (Circle | Square, Square(2.0), b'{"type":"Square","side":2.0}'),
        (Order, Order(UUID(int=1), Path("f"), [Point(1, 2)]), None),
        (Movie, {"title": "M"}, b'{"title":"M"}'),
        (Pair, Pair(1, "a"), b'[1,"a"]'),
        (Literal["a", 1], 1, b"1"),
        (Optional[int], None, b"null"),  # noqa: UP045
        (Optional[Path], Path("a"), b'"a"'),  # noqa: UP045
        (int | date, date(2024, 5, 1), b'"2024-05-01"'),
        (List[int], [1], b"[1]"),  # noqa: UP006
        (Tuple[int, str], (1, "a"), b'[1,"a"]'),  # noqa: UP006
        (tuple[int, ...], (1, 2), b"[1,2]"),
        (tuple[()], (), b"[]"),
        (set[date], {date(2024, 5, 1)}, b'["2024-05-01"]'),
        (frozenset[int], frozenset({1}), b"[1]"),
        (dict[int, Path], {1: Path("a")}, b'{"1":"a"}'),
        (dict[UUID, int], {UUID(int=5): 1}, b'{"00000000-0000-0000-0000-000000000005":1}'),
        (dict[Colour, int], {Colour.RED: 1}, b'{"red":1}'),
        (Sequence[int], [1], b"[1]"),
        (Iterable[int], [1], b"[1]"),
        (AbstractSet[int], {1}, b"[1]"),
        (Mapping[str, date], {"a": date(2024, 5, 1)}, b'{"a":"2024-05-01"}'),
        (UserId, UserId(1), b"1"),
        (Annotated[UserId, "a note", msgspec.Meta(gt=0)], 1, b"1"),
        (Annotated[Path, "a note"], Path("a"), b'"a"'),
        (list[dict[str, tuple[Path | None, ...]]], [{"a": (Path("b"), None)}], b'[{"a":["b",null]}]'),
        ("list[Point]", [Point(1)], b'[{"x":1,"y":0}]'),
    ],
)
def test_an_annotated_value_arrives_equal_and_with_its_type(
    annotation: Any, value: Any, stored: bytes | None
) -> None:
    payload = taking(annotation).encode((value,), {})
    assert stored is None or payload == b'{"value":' + stored + b"}"
    arrived = arrives(annotation, value)
    assert arrived == value
    assert type(arrived) is type(value)


@pytest.mark.parametrize(
    ("annotation", "value", "arrived"),
    [
        (float, 1, 1.0),
        (Decimal, 2, Decimal(2)),
        (str, Loud("hi"), "hi"),
        (int, Level.HIGH, 3),
        (str, Plan.FREE, "free"),
        (dict[str, int], collections.OrderedDict(a=1), {"a": 1}),
        (Mapping[str, int], collections.Counter("aab"), {"a": 2, "b": 1}),
        (datetime, LaterDate(2024, 5, 1, 12, 30, 0, 5), datetime(2024, 5, 1, 12, 30, 0, 5)),
        (Any, LaterDate(2024, 5, 1), datetime(2024, 5, 1)),
        (Any, Pair(1, "a"), (1, "a")),
        (PurePath, Path("a"), PurePath("a")),
    ],
)
def test_a_subclass_arrives_as_the_type_that_is_asked_for(annotation: Any, value: Any, arrived: Any) -> None:
    got = arrives(annotation, value)
    assert got == arrived
    assert type(got) is type(arrived)


def test_a_zone_arrives_as_its_offset_and_the_instant_is_the_same() -> None:
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    for fold in (0, 1):  # the hour that happens twice
        passed = datetime(2024, 10, 27, 2, 30, tzinfo=berlin, fold=fold)
        for annotation in (datetime, Any, list[datetime]):
            value = [passed] if annotation == list[datetime] else passed
            arrived = arrives(annotation, value)
            arrived = arrived[0] if isinstance(arrived, list) else arrived
            assert arrived.astimezone(UTC) == passed.astimezone(UTC)
            assert arrived.utcoffset() == passed.utcoffset()


def test_classes_that_define_no_equality_are_compared_by_their_fields() -> None:
    arrived = arrives(Mute, Mute({"a": [Silent(date(2024, 5, 1))]}))
    assert arrived.amounts["a"][0].when == date(2024, 5, 1)


def test_none_is_taken_where_the_default_is_none() -> None:
    def task(lang: str = None): ...  # noqa: RUF013

    assert through(ArgsCodec(task, name="task"), None) == ((None,), {})


def test_attrs_classes_are_stored_by_their_fields() -> None:
    attrs = pytest.importorskip("attrs")
    account = attrs.make_class("Account", {"opened": attrs.field(type=date)})
    assert arrives(account, account(date(2024, 5, 1))) == account(date(2024, 5, 1))


# --- what does not fit is refused at the call ---------------------------------------------------


def test_a_string_does_not_pass_for_an_int() -> None:
    with pytest.raises(ArgumentError) as refused:
        WELCOME.encode(("5",), {})
    said = str(refused.value)
    assert said.startswith("mail.welcome: the argument 'user_id', '5' (str), does not fit its annotation int")


@each(
    "annotation, value",
    [
        (int, True),
        (int, "5"),
        (int, 1.0),
        (int, None),
        (float, True),
        (float, "1"),
        (float, 2**60 + 1),
        (bool, 1),
        (str, 5),
        (str, b"a"),
        (str, UUID(int=1)),
        (str, Path("a")),
        (str, date(2024, 5, 1)),
        (str, Decimal(1)),
        (str, Colour.RED),
        (str, "\ud800"),
        (bytes, "aGk="),
        (UUID, "00000000-0000-0000-0000-000000000005"),
        (datetime, "2024-05-01T12:00:00Z"),
        (datetime, date(2024, 5, 1)),
        (datetime, 0),
        (datetime, datetime(1800, 1, 1, tzinfo=timezone(timedelta(seconds=3208)))),
        (date, datetime(2024, 5, 1)),
        (timedelta, 5),
        (Decimal, "1.5"),
        (Decimal, 0.1),
        (Path, "a"),
        (Colour, "red"),
        (Literal["a", 1], "b"),
        (Point, {"x": 1, "y": 0}),
        (Point, Point("1")),
        (Point, Pair(1, "a")),
        (Movie, {"title": 1}),
        (list[int], (1,)),
        (list[int], [1, "2"]),
        (list[int], {1}),
        (list[int], range(3)),
        (list[int], (n for n in [1])),
        (tuple[int, str], [1, "a"]),
        (tuple[int, str], (1,)),
        (set[int], [1]),
        (dict[str, int], {1: 1}),
        (dict, {1: 1}),
        (dict[str, int], {"a": "1"}),
        (Sequence[int], (1,)),
        (UserId, "1"),
        (Annotated[int, msgspec.Meta(gt=0)], 0),
        (Annotated[list[Any], msgspec.Meta(max_length=1)], [1, 2]),
        (None, 1),
        (Optional[int], "1"),  # noqa: UP045
        (Circle | Square, Point(1)),
    ],
)
def test_a_value_that_does_not_fit_its_annotation_is_refused(annotation: Any, value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"task: the argument 'value'"):
        taking(annotation).encode((value,), {})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("annotation", [float, float | None, Any, list[float | None]])
def test_nan_and_infinity_are_refused_and_never_become_null(annotation: Any, value: float) -> None:
    with pytest.raises(ArgumentError, match="JSON has no NaN or infinity"):
        taking(annotation).encode(([value] if annotation == list[float | None] else value,), {})


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_and_infinity_are_refused_deep_inside(value: float) -> None:
    for annotation, holder in ((Any, {"a": [value]}), (Square, Square(value)), (Any, (value,))):
        with pytest.raises(ArgumentError, match="JSON has no NaN or infinity"):
            taking(annotation).encode((holder,), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((), {}, "missing a required argument: 'user_id'"),
        ((1, "de", True), {}, "too many positional arguments"),
        ((1,), {"user_id": 2}, "multiple values for argument 'user_id'"),
        ((1,), {"lagn": "de"}, "got an unexpected keyword argument 'lagn'"),
    ],
)
def test_wrong_arity_is_refused_in_pythons_words_with_the_signature(
    args: tuple[Any, ...], kwargs: dict[str, Any], says: str
) -> None:
    with pytest.raises(ArgumentError) as refused:
        WELCOME.encode(args, kwargs)
    assert says in str(refused.value)
    assert "mail.welcome(user_id: int, lang: str = 'en', *, loud: bool = False)" in str(refused.value)


def test_a_positional_only_parameter_is_not_passed_by_name() -> None:
    def task(a, /): ...

    with pytest.raises(ArgumentError, match="positional"):
        ArgsCodec(task, name="task").encode((), {"a": 1})


def test_wrong_arity_is_also_a_type_error_as_python_has_it() -> None:
    with pytest.raises(TypeError):
        WELCOME.encode((), {})


@pytest.mark.parametrize("annotation", [Connection, Connection | None, list[Connection], Any])
def test_an_object_that_nobody_can_store_is_refused_with_the_ways_out(annotation: Any) -> None:
    value = [Connection()] if annotation == list[Connection] else Connection()
    with pytest.raises(ArgumentError, match="of type Connection cannot be stored"):
        taking(annotation).encode((value,), {})
    if annotation is not Any:
        with pytest.raises(ArgumentError, match=r"dataclass, a msgspec\.Struct or a pydantic model"):
            taking(annotation).encode((value,), {})


def test_a_parameter_that_nobody_can_store_may_be_left_out() -> None:
    def task(user_id: int, connection: Connection | None = None): ...

    assert through(ArgsCodec(task, name="task"), 1) == ((1,), {})
    assert through(ArgsCodec(task, name="task"), 1, None) == ((1, None), {})


def test_an_annotation_that_is_ambiguous_in_json_is_refused() -> None:
    with pytest.raises(ArgumentError, match="Literal may only contain"):
        taking(Literal[Colour.RED]).encode((Colour.RED,), {})


def test_a_value_that_contains_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    for annotation in (Any, list[Any], list):
        with pytest.raises(ArgumentError, match="contains itself"):
            taking(annotation).encode((circle,), {})
        with pytest.raises(ArgumentError, match="'value'"):
            taking(annotation).encode(([Connection(), circle],), {})


def test_a_field_without_type_keeps_only_what_json_has() -> None:
    class Loose(msgspec.Struct):
        what: Any

    assert arrives(Loose, Loose({"a": [1, None]})) == Loose({"a": [1, None]})
    with pytest.raises(ArgumentError, match="would come back as"):
        taking(Loose).encode((Loose(date(2024, 5, 1)),), {})


def test_a_value_that_cannot_even_be_shown_is_refused() -> None:
    class Grumpy:
        def __repr__(self) -> str:
            raise RuntimeError

    for value in (10**5000, Grumpy()):
        for annotation in (int, Any):
            with pytest.raises(ArgumentError, match="'value'"):
                taking(annotation).encode((value,), {})


def test_arguments_that_are_too_large_name_their_size_the_limit_and_the_way_out() -> None:
    def task(name: str, blob: str): ...

    codec = ArgsCodec(task, name="task", max_bytes=100)
    codec.encode(("a", "x" * 50), {})
    with pytest.raises(ArgumentError, match=r"122 bytes.*'blob'.*limit is 100.*path.*max_payload"):
        codec.encode(("a", "x" * 100), {})


# --- values without an annotation ---------------------------------------------------------------

TAGGED = [
    (datetime(2024, 5, 1, 12, tzinfo=UTC), {"$datetime": "2024-05-01T12:00:00+00:00"}),
    (datetime(2024, 5, 1, 12), {"$datetime": "2024-05-01T12:00:00"}),
    (date(2024, 5, 1), {"$date": "2024-05-01"}),
    (time(12, 30), {"$time": "12:30:00"}),
    (timedelta(days=1), {"$timedelta": "P1D"}),
    (UUID(int=5), {"$uuid": "00000000-0000-0000-0000-000000000005"}),
    (Decimal("1.50"), {"$decimal": "1.50"}),
    (b"\xff", {"$bytes": "/w=="}),
    (Path("/a"), {"$path": "/a"}),
    ((1, (2,)), {"$tuple": [1, {"$tuple": [2]}]}),
    ({3, 1}, {"$set": [1, 3]}),
    (frozenset({1}), {"$frozenset": [1]}),
    ({"$set": 1}, {"$$set": 1}),
    ({"$$x": 1}, {"$$$x": 1}),
    ({"$": 1}, {"$$": 1}),
    ({"$a": 1, "b": 2}, {"$a": 1, "b": 2}),
    ("$date", "$date"),
]


@each("value, stored", TAGGED)
@each("annotation", [Any, object, T, Any | None, list[Any], dict[str, Any], tuple[Any, ...]])
def test_what_json_lacks_is_tagged_where_nothing_says_its_type(
    annotation: Any, value: Any, stored: Any
) -> None:
    if annotation == list[Any]:
        value, stored = [value], [stored]
    elif annotation == dict[str, Any]:
        value, stored = {"$date": value}, {"$date": stored}  # in a typed dict a key is only a key
    elif annotation == tuple[Any, ...]:
        value, stored = (value,), [stored]
    assert msgspec.json.decode(taking(annotation).encode((value,), {})) == {"value": stored}
    arrived = arrives(annotation, value)
    assert arrived == value
    assert type(arrived) is type(value)


def test_tags_in_a_set_of_anything_are_read() -> None:
    assert arrives(set[Any], {(1, 2), date(2024, 5, 1)}) == {(1, 2), date(2024, 5, 1)}


def test_a_parameter_without_annotation_holds_anything() -> None:
    def task(a, b: int, *, c=None): ...

    when = datetime(2024, 5, 1, tzinfo=UTC)
    assert through(ArgsCodec(task, name="task"), when, 1, c={1}) == (
        (),
        {"a": when, "b": 1, "c": {1}},
    )


def test_an_annotated_parameter_reads_no_tags() -> None:
    assert arrives(dict[str, str], {"$date": "2024-05-01"}) == {"$date": "2024-05-01"}
    assert arrives(str, '{"$date": 1}') == '{"$date": 1}'


def test_a_tag_written_with_an_escaped_dollar_is_a_tag() -> None:
    assert taking(Any).decode(b'{"value":{"\\u0024date":"2024-05-01"}}') == ((date(2024, 5, 1),), {})


@pytest.mark.parametrize(
    "value", [{1: 2}, {None: 1}, {(1,): 2}, {True: 1}, [{1.5: 1}], ({1: 2},), {Colour.RED: 1, "a": (1,)}]
)
def test_keys_that_are_no_strings_are_refused_and_never_become_strings(value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"the key .* which JSON would turn into a string"):
        taking(Any).encode((value,), {})


@pytest.mark.parametrize("value", [bytearray(b"a"), 1j, range(3), Colour.RED, object(), int, len, iter([])])
def test_a_value_that_has_no_tag_is_refused(value: Any) -> None:
    with pytest.raises(ArgumentError, match="cannot be stored without an annotation"):
        taking(Any).encode((value,), {})


@pytest.mark.parametrize("value", [Point(1), [Order(UUID(int=1), Path("f"), [])]])
def test_an_object_without_annotation_asks_for_one(value: Any) -> None:
    with pytest.raises(ArgumentError, match="needs an annotation that names it"):
        taking(Any).encode((value,), {})


def test_an_unknown_tag_cannot_be_read() -> None:
    with pytest.raises(Undecodable, match=r'unknown tag "\$oid".*"\$\$oid"'):
        taking(Any).decode(b'{"value":{"$oid":"5"}}')


@pytest.mark.parametrize("inner", [b'"x"', b"5", b"null", b"[1]"])
def test_a_tag_with_the_wrong_content_cannot_be_read(inner: bytes) -> None:
    with pytest.raises(Undecodable, match="'value'"):
        taking(Any).decode(b'{"value":{"$datetime":' + inner + b"}}")


# --- unions that JSON cannot tell apart ---------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "value", "stored"),
    [
        (str | Path, "a", b'"a"'),
        (str | Path, Path("a"), b'{"$path":"a"}'),
        (Path | str, "a", b'"a"'),
        (str | bytes | None, b"hi", b'{"$bytes":"aGk="}'),
        (str | bytes | None, None, b"null"),
        (str | datetime, datetime(2024, 5, 1), b'{"$datetime":"2024-05-01T00:00:00"}'),
        (Optional[str | UUID], UUID(int=5), b'{"$uuid":"00000000-0000-0000-0000-000000000005"}'),  # noqa: UP045
        (int | Path, Path("a"), b'"a"'),
        (list[int] | tuple[int, ...], (1,), b'{"$tuple":[1]}'),
        (list[int] | tuple[int, ...], [1], b"[1]"),
        (Point | dict[str, str], Point(1), b'{"x":1,"y":0}'),
        (Point | dict[str, int], {"$a": 1}, b'{"$$a":1}'),
        (Point | Movie, {"title": "M"}, b'{"title":"M"}'),
        (list[str | Path], ["a", Path("b")], b'["a",{"$path":"b"}]'),
    ],
)
def test_each_member_of_a_union_arrives_as_itself(annotation: Any, value: Any, stored: bytes) -> None:
    assert taking(annotation).encode((value,), {}) == b'{"value":' + stored + b"}"
    arrived = arrives(annotation, value)
    assert arrived == value
    assert type(arrived) is type(value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str | Path, 5),
        (str | bytes, [b"a"]),
        (list[int] | tuple[int, ...], ("a",)),
        (Point | dict[str, int], {"x": 1, "y": "2"}),
    ],
)
def test_what_is_no_member_of_the_union_is_refused(annotation: Any, value: Any) -> None:
    with pytest.raises(ArgumentError, match="'value'"):
        taking(annotation).encode((value,), {})


def test_a_value_that_would_arrive_as_another_member_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"would come back as \{'x': 1, 'y': 0\}"):
        taking(Point | dict[str, int]).encode((Point(1),), {})


def test_a_foreign_value_that_is_no_member_cannot_be_read() -> None:
    with pytest.raises(Undecodable, match=r"expected one of str, pathlib.*Path"):
        taking(str | Path).decode(b'{"value":[1]}')


# --- pydantic -----------------------------------------------------------------------------------


def test_pydantic_models_arrive_as_models() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Line(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(strict=True)
        sku: str = pydantic.Field(alias="SKU")
        price: Decimal
        when: datetime

    line = Line(SKU="a", price=Decimal("1.50"), when=datetime(2024, 5, 1, tzinfo=UTC))
    stored = b'{"SKU":"a","price":"1.50","when":"2024-05-01T00:00:00Z"}'
    assert taking(Line).encode((line,), {}) == b'{"value":' + stored + b"}"
    for annotation, value in (
        (Line, line),
        (Line | None, line),
        (list[Line], [line]),
        (dict[str, tuple[Line, int]], {"a": (line, 1)}),
        (Line | int, line),
    ):
        assert arrives(annotation, value) == value


def test_what_no_pydantic_model_would_take_is_refused_on_both_sides() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Line(pydantic.BaseModel):
        count: int = pydantic.Field(gt=0)
        secret: pydantic.SecretStr = pydantic.SecretStr("")

    for value in ({"count": 1}, Line.model_construct(count=0), Line(count=1, secret="s"), Point(1)):  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="'value'"):
            taking(Line).encode((value,), {})
    with pytest.raises(Undecodable, match="'value'"):
        taking(Line).decode(b'{"value":{"count":0}}')


# --- producers in other languages ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "call"),
    [
        (b'[1, "de"]', ((1, "de"), {})),
        (b"[1]", ((1,), {})),
        (b' {\n "lang" : "de", "user_id" : 1 } ', ((1, "de"), {})),
        (b'{"user_id":1,"user_id":2}', ((2,), {})),
    ],
)
def test_an_array_is_positional_and_space_and_order_do_not_matter(payload: bytes, call: Any) -> None:
    assert WELCOME.decode(payload) == call


@pytest.mark.parametrize("payload", [b"", b" \n", b"{}", b"[]", b" { } "])
def test_nothing_means_no_arguments(payload: bytes) -> None:
    for function in (lambda: None, lambda a=1, *b, **c: None):
        assert ArgsCodec(function, name="task").decode(payload) == ((), {})


@pytest.mark.parametrize(
    ("payload", "called"),
    [
        (b"[1, 2, 3, 4]", None),
        (b'{"first":1,"fourth":4,"rest":[8]}', (1, 2, 3, (8,), 4, 5, {})),
        (b'{"first":1,"fourth":4,"born":"2024-05-01"}', (1, 2, 3, (), 4, 5, {"born": date(2024, 5, 1)})),
        (
            b'{"first":1,"fourth":4,"born":"2024-05-01","others":{"died":"2024-05-02"}}',
            (1, 2, 3, (), 4, 5, {"born": date(2024, 5, 1), "died": date(2024, 5, 2)}),
        ),
    ],
)
def test_variable_parameters_take_what_is_left(payload: bytes, called: Any) -> None:
    if called is None:
        with pytest.raises(Undecodable, match="'fourth' is missing"):
            EVERY_KIND.decode(payload)
    else:
        args, kwargs = EVERY_KIND.decode(payload)
        assert every_kind(*args, **kwargs) == called


def test_an_array_fills_the_variable_parameter() -> None:
    codec = ArgsCodec(lambda a, *rest: None, name="task")
    assert codec.decode(b'[1, 2, {"$date":"2024-05-01"}]') == ((1, 2, date(2024, 5, 1)), {})


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"{}", r"mail\.welcome\(user_id: int.*the argument 'user_id' is missing"),
        (b"", "'user_id' is missing"),
        (b'{"user_id":1,"lagn":"de","x":1}', r"unknown argument\(s\) 'lagn', 'x'"),
        (b'[1,"de",true]', "3 positional arguments for 2 parameters"),
        (
            b'{"user_id":"1"}',
            r"mail\.welcome: the argument 'user_id' is not a stored int: Expected `int`, got",
        ),
        (b'{"user_id":null}', "'user_id'"),
        (b'{"user_id":1,"lang":null}', "'lang'"),
        (b'"text"', "neither a JSON object nor an array"),
        (b"{", "neither a JSON object nor an array"),
        (b"null", "neither a JSON object nor an array"),
        (b"\x80\x04K\x01.", "neither a JSON object nor an array"),
        (b'{"user_id":1} trailing', "neither a JSON object nor an array"),
        (b'{"user_id":1,"lang":"\xff"}', "lang"),
        (b"[" * 100_000, "neither a JSON object nor an array"),
    ],
)
def test_a_payload_that_does_not_fit_says_what_is_wrong(payload: bytes, says: str) -> None:
    with pytest.raises(Undecodable, match=says):
        WELCOME.decode(payload)


@settings(max_examples=300)
@given(st.binary(max_size=40) | st.text(alphabet='{}[]",:$12aeu\\', max_size=30).map(str.encode))
def test_no_payload_makes_decode_raise_anything_else(payload: bytes) -> None:
    for codec in (WELCOME, EVERY_KIND, taking(str | Path)):
        try:
            codec.decode(payload)
        except Undecodable:
            pass


# --- annotations as text ------------------------------------------------------------------------


def test_an_annotation_that_is_defined_later_is_looked_up_at_the_first_use() -> None:
    space: dict[str, Any] = {}
    exec("def task(p: 'Later | None', q: 'int' = 1) -> 'Later': ...", space)
    codec, result = ArgsCodec(space["task"], name="task"), result_codec_of(space["task"], name="task")
    space["Later"] = Point
    assert through(codec, Point(1)) == ((Point(1),), {})
    assert result.decode(result.encode(Point(1))) == Point(1)


def test_an_annotation_that_is_never_defined_is_a_config_error_that_names_it() -> None:
    space: dict[str, Any] = {}
    exec("def task(a: int, p: 'Never') -> 'Never': ...", space)
    codec, result = (
        ArgsCodec(space["task"], name="mail.task"),
        result_codec_of(space["task"], name="mail.task"),
    )
    for use in (lambda: codec.encode((1, 1), {}), lambda: codec.decode(b"{}")):
        with pytest.raises(ConfigError, match=r"mail\.task\(p\).*'Never' is not defined.*TYPE_CHECKING"):
            use()
    with pytest.raises(ConfigError, match=r"mail\.task's result"):
        result.encode(1)


def test_an_annotation_that_is_no_type_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"task\(value\).*unhashable"):
        taking({"a": 1}).encode((1,), {})


def test_what_wraps_a_function_keeps_its_signature() -> None:
    space: dict[str, Any] = {"Point": Point}
    exec("def task(p: 'Point', q: 'int' = 1) -> 'Point': ...", space)

    @functools.wraps(space["task"])
    def wrapped(*args: Any, **kwargs: Any) -> Any: ...

    for function in (wrapped, functools.partial(space["task"], q=2)):
        assert through(ArgsCodec(function, name="task"), Point(1))[0] in ((Point(1),), ())
    codec = result_codec_of(wrapped, name="task")
    assert codec.decode(codec.encode(Point(1))) == Point(1)


# --- equal arguments ----------------------------------------------------------------------------


def test_equal_arguments_are_canonically_equal_bytes() -> None:
    codec = taking(dict[str, set[str] | None])
    one = codec.canonical(b'{"value":{"b":null,"a":["x","y","z"]}}')
    assert one == codec.canonical(b'{"value": {"a":["z","x","y"], "b":null}}')
    assert one != codec.canonical(b'{"value":{"b":null,"a":["x","y"]}}')


def test_sets_without_annotation_are_stored_in_order() -> None:
    words = {"x", "y", "z", "a"}
    assert taking(Any).encode((words,), {}) == b'{"value":{"$set":["a","x","y","z"]}}'


def test_canonical_distinguishes_a_tagged_value_from_its_text() -> None:
    codec = taking(str | bytes)
    assert codec.canonical(codec.encode(("aGk=",), {})) != codec.canonical(codec.encode((b"hi",), {}))


def test_canonical_leaves_what_it_cannot_read() -> None:
    assert taking(int).canonical(b"nonsense") == b"nonsense"


# --- results ------------------------------------------------------------------------------------


def test_a_result_arrives_as_it_was_returned() -> None:
    def task() -> list[Point]: ...

    codec = result_codec_of(task, name="task")
    assert codec.keeps
    assert codec.encode([Point(1)]) == b'[{"x":1,"y":0}]'
    assert codec.decode(b'[{"x":1,"y":0}]') == [Point(1)]


def test_a_task_that_returns_none_keeps_nothing() -> None:
    async def one() -> None: ...

    def other(): ...

    assert not result_codec_of(one, name="one").keeps
    assert not ResultCodec(NoReturn, name="task").keeps
    assert result_codec_of(other, name="other").keeps
    assert ResultCodec(int | None, name="task").keeps


def test_a_result_without_annotation_may_be_tagged() -> None:
    for value, stored in TAGGED:
        assert msgspec.json.decode(ANY_RESULT.encode(value)) == stored
        assert ANY_RESULT.decode(ANY_RESULT.encode(value)) == value
    assert ANY_RESULT.decode(ANY_RESULT.encode(None)) is None


def test_a_result_that_does_not_fit_is_a_result_error() -> None:
    codec = ResultCodec(int, name="mail.count", max_bytes=20)
    with pytest.raises(ResultError, match=r"mail\.count: the result, '5' \(str\), does not fit .* int"):
        codec.encode("5")
    with pytest.raises(ResultError, match="takes 31 bytes; the limit is 20"):
        codec.encode(10**30)
    with pytest.raises(Undecodable, match=r"mail\.count: the stored result"):
        codec.decode(b'"5"')


# --- the promise, whole -------------------------------------------------------------------------

moments = st.datetimes(timezones=st.none() | st.sampled_from([UTC, CET]))
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers()),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (bool, st.booleans()),
    (str, st.text()),
    (str, st.sampled_from(["$", '"$date"', "$$", "\\u0024"])),
    (bytes, st.binary()),
    (datetime, moments),
    (date, st.dates()),
    (time, st.times()),
    (timedelta, st.timedeltas()),
    (UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (Path, st.sampled_from(["a", "/a/b", ".", "a b/ü"]).map(Path)),
]
HASHABLE = [(kind, values) for kind, values in LEAVES if kind is not float]


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return all(map(same, one, other))
    return True


def nested(pairs: st.SearchStrategy[tuple[Any, Any]]) -> st.SearchStrategy[tuple[Any, Any]]:
    """(annotation, value) made of smaller ones."""
    return (
        pairs.map(lambda p: (list[p[0]], [p[1], p[1]]))
        | pairs.map(lambda p: (dict[str, p[0]], {"$date": p[1]}))
        | pairs.map(lambda p: (tuple[p[0], ...], (p[1],)))
        | st.tuples(pairs, pairs).map(lambda p: (tuple[p[0][0], p[1][0]], (p[0][1], p[1][1])))
        | pairs.map(lambda p: (p[0] | None, p[1]))
        | pairs.map(lambda p: (p[0] | None, None))
        | st.tuples(pairs, pairs).map(lambda p: (p[0][0] | p[1][0], p[0][1]))
        | pairs.map(lambda p: (list[Any], [p[1], None]))
        | pairs.map(lambda p: (Any, p[1]))
    )


typed = st.recursive(
    st.one_of([st.tuples(st.just(kind), values) for kind, values in LEAVES]), nested, max_leaves=5
)
anything = st.recursive(
    st.none() | st.one_of([values for _, values in LEAVES]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.sampled_from(["$date", "$$x", "$"]), inner, max_size=2)
        | st.sets(st.one_of([values for _, values in HASHABLE]), max_size=3)
        | st.frozensets(st.integers() | st.tuples(st.text()), max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def functions_and_calls(draw: st.DrawFn) -> tuple[Callable[..., Any], list[int], dict[str, int]]:
    """Any signature, and a call that may or may not fit it."""
    parts = []
    for kind, letter in (
        (Parameter.POSITIONAL_ONLY, "a"),
        (Parameter.POSITIONAL_OR_KEYWORD, "b"),
        (Parameter.VAR_POSITIONAL, "c"),
        (Parameter.KEYWORD_ONLY, "d"),
        (Parameter.VAR_KEYWORD, "e"),
    ):
        variable = kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        for i in range(draw(st.integers(0, 1 if variable else 2))):
            optional = not variable and draw(st.booleans())
            annotation = draw(st.sampled_from([int, Any, Parameter.empty, float]))
            default = -1 if optional else Parameter.empty
            parts.append(Parameter(f"{letter}{i}", kind, default=default, annotation=annotation))
    # Python wants required positional parameters first
    parts.sort(key=lambda p: (p.kind, p.default == -1))
    wanting = any(p.default == -1 for p in parts if p.kind is Parameter.POSITIONAL_ONLY)
    signature = Signature(
        [p.replace(default=-1) if wanting and p.kind is Parameter.POSITIONAL_OR_KEYWORD else p for p in parts]
    )

    # a real function, because Signature.bind is not in every version as exact as Python
    space: dict[str, Any] = {"typing": typing, "Any": Any}
    exec(f"def task{signature}: return locals()", space)
    args = draw(st.lists(st.integers(0, 9), max_size=5))
    names = st.sampled_from([*signature.parameters, "other"])
    return space["task"], args, draw(st.dictionaries(names, st.integers(0, 9), max_size=4))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(functions_and_calls())
def test_calls_are_accepted_and_refused_as_in_python(case: Any) -> None:
    task, args, kwargs = case
    codec = ArgsCodec(task, name="task")
    try:
        expected = task(*args, **kwargs)
    except TypeError:
        with pytest.raises(ArgumentError, match=r"task\("):
            codec.encode(tuple(args), kwargs)
        return
    assert result_of(task, codec, *args, **kwargs) == expected


def test_what_has_no_signature_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="max: its signature cannot be read"):
        ArgsCodec(max, name="max").encode((1, 2), {})


@settings(max_examples=200, deadline=None)
@given(typed)
def test_what_is_passed_is_what_arrives(pair: tuple[Any, Any]) -> None:
    annotation, value = pair
    assert same(arrives(annotation, value), value)


@settings(max_examples=200, deadline=None)
@given(anything)
def test_what_is_passed_without_annotation_is_what_arrives(value: Any) -> None:
    assert same(arrives(Any, value), value)
    assert same(ANY_RESULT.decode(ANY_RESULT.encode(value)), value)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.one_of([st.just(kind) for kind, _ in LEAVES]), anything)
def test_every_argument_arrives_equal_or_is_refused(annotation: Any, value: Any) -> None:
    try:
        arrived = arrives(annotation, value)
    except ArgumentError:
        return
    assert arrived == value
    assert isinstance(arrived, annotation)
