"""Subclasses of str and int (e.g. enums): their plain values are stored, and none of their methods runs."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock.app.app import App
from penstock.app.task import Task
from penstock.client.job_call import JobCall
from penstock.core.limits import LimitChange, Rate
from penstock.core.relations import Batch
from penstock.core.unique import Unique
from penstock.errors import PenstockError
from penstock.worker import Queue


class Name(str, enum.Enum):  # noqa: UP042  # unlike a StrEnum it has a str() of its own
    """Its str() is "Name.MAIL", its value is "mail"."""

    MAIL = "mail"


class Number(enum.IntEnum):
    THREE = 3


class Hostile(str):
    """None of its own methods may run inside of the engine."""

    def _leave(self, *_: Any) -> Any:
        raise RuntimeError("a method of the user's")

    __len__ = __str__ = __format__ = __hash__ = encode = isprintable = _leave  # type: ignore[assignment]


def not_plain(value: Any, where: str = "job") -> list[str]:
    """Where in the value somebody's own subclass of a plain type is."""
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
        return [found for name in names for found in not_plain(getattr(value, name), f"{where}.{name}")]
    if isinstance(value, dict):
        return [found for pair in value.items() for found in not_plain(pair, where)]
    if isinstance(value, tuple):
        return [found for one in value for found in not_plain(one, where)]
    return [] if value is None or type(value) in (str, int, float, bool, bytes) else [where]


@pytest.fixture
def app() -> App:
    return App("memory://")


@pytest.fixture
def send(app: App) -> Task[..., Any]:
    @app.task
    async def send(to: str = "") -> None: ...

    return send


TEXTS = [Name.MAIL, Hostile("mail")]
SAID: dict[str, Callable[[Any], dict[str, Any]]] = {
    "queue": lambda text: {"queue": text},
    "id": lambda text: {"id": text},
    "headers": lambda text: {"headers": {"name": text}},
    "unique_key": lambda text: {"unique_key": text},
    "unique": lambda text: {"unique": Unique(key=text)},
}


@pytest.mark.parametrize("text", TEXTS, ids=["enum", "hostile"])
@pytest.mark.parametrize("option", SAID)
def test_a_text_of_a_class_of_its_own_is_stored_as_its_value(
    send: Task[..., Any], option: str, text: str
) -> None:
    call = send.using(**SAID[option](text)).job()
    plain = send.using(**SAID[option]("mail")).job()
    assert not_plain(call.new()) == []
    new, other = call.new(), plain.new()
    assert (new.queue, new.headers, new.unique) == (other.queue, other.headers, other.unique)


def test_whole_numbers_of_a_class_of_their_own_are_stored_as_their_value(send: Task[..., Any]) -> None:
    three = Number.THREE
    call = send.using(
        priority=three, max_attempts=three, delay=three, timeout=three, retry=[three], keep_dead=three
    ).job()
    assert not_plain(call.new()) == []


def test_keys_of_a_class_of_their_own_are_their_value(app: App) -> None:
    @app.task(
        concurrency_key=lambda to: Name(to),
        max_running_per_key=Number.THREE,
        fair_by=lambda to: Name(to),
        fair_weights={Name.MAIL: Number.THREE},
        unique=Unique(key=lambda to: Name(to)),
    )
    async def send(to: str) -> None: ...

    new = send.job("mail").new()
    assert not_plain(new) == []
    assert new.partition is not None
    assert new.tenant is not None
    assert (new.partition.key, new.partition.most, new.tenant.key, new.tenant.weight) == (
        "mail",
        3,
        "mail",
        3,
    )


@pytest.mark.parametrize("text", TEXTS, ids=["enum", "hostile"])
def test_so_are_those_of_a_task_of_a_batch_and_of_a_raw_job(app: App, text: Any) -> None:
    @app.task(name=text, queue=text, batch=Batch(max_size=Number.THREE))
    async def collect(to: list[str]) -> None: ...

    assert not_plain(collect.using(batch_key=text).job("x").new()) == []
    raw: JobCall[Any] = app.raw_job(text, b"{}", text)
    assert not_plain(raw.new()) == []
    assert raw.new().queue == raw.new().task == "mail"


@pytest.mark.parametrize("text", TEXTS, ids=["enum", "hostile"])
def test_so_are_names_of_queues_handles_and_settings(app: App, text: Any) -> None:
    assert type(Queue(text).name) is str
    assert type(app.queue(text).name) is str
    assert type(app.handle(text, text).queue) is str
    three: Any = Number.THREE
    change = LimitChange.of(max_running=three, max_size=three, rate=Rate(three, 1000), burst=three)
    assert not_plain(msgspec.structs.asdict(change)["rate"]) == []
    assert (type(change.max_running), type(change.max_size)) == (int, int)


def test_the_task_of_a_raw_job_is_a_name_or_refused(app: App) -> None:
    for name in ("a\nb", "x" * 201, 5):
        with pytest.raises(PenstockError, match="cannot be a task's name"):
            app.raw_job("mail", b"{}", name)  # type: ignore[arg-type]
