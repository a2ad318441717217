"""Batches: their options, their tasks, and what they store."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import App, Batch
from penstock.core.job import NewJob, Ref, State
from penstock.core.lifecycle import Transition, batch_of, first_state
from penstock.core.relations import MAX_BATCH, BatchTerms, batch_id
from penstock.errors import ArgumentError, ConfigError, JobDead, ResultNotKept
from penstock.stores.contract import Settlement, Share


@dataclass
class Doc:
    id: int
    text: str = ""


@pytest.fixture
def app() -> App:
    return App(f"memory://{uuid.uuid4().hex}")


# ── the rule ─────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_says_what_its_batches_are() -> None:
    rule = Batch(max_size=7, max_wait="5s", grace=timedelta(seconds=1))
    assert rule.terms("k") == BatchTerms("k", 7, 5_000, 1_000)
    assert Batch().terms("") == BatchTerms("", 100, 5_000, None)
    assert Batch(max_wait=None, grace=2).terms("") == BatchTerms("", 100, None, 2_000)
    assert Batch(max_size=1), Batch(max_size=MAX_BATCH)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"max_size": 0}, "max_size=0"),
        ({"max_size": -3}, "max_size=-3"),
        ({"max_size": 1_001}, "from 1 to 1000"),
        ({"max_size": True}, "max_size=True"),
        ({"max_size": 2.5}, "max_size=2.5"),
        ({"max_size": "9"}, "max_size='9'"),
        ({"max_wait": 0}, "max_wait=0"),
        ({"max_wait": "-1s"}, "max_wait"),
        ({"max_wait": "soon"}, "max_wait='soon'"),
        ({"grace": 0}, "grace=0"),
        ({"grace": []}, "grace"),
        ({"max_wait": "1s", "grace": "2s"}, "longer than max_wait"),
        ({"max_wait": None}, "wait for ever"),
    ],
)
def test_what_makes_no_sense_is_one_clear_error(facts: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match="Batch") as error:
        Batch(**facts)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


# ── the task ─────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_task_is_still_the_plain_function(app: App) -> None:
    @app.task(batch=Batch())
    def index(docs: list[Doc]) -> int:
        return len(docs)

    assert index([Doc(1), Doc(2)]) == 2
    assert index.batch == Batch()


async def test_so_is_an_async_one(app: App) -> None:
    @app.task(batch=Batch())
    async def index(docs: list[Doc]) -> int:
        return len(docs)

    assert await index([Doc(1)]) == 1


def test_what_is_stored_is_one_element(app: App) -> None:
    @app.task(batch=Batch(max_size=5, max_wait="2s"))
    def index(docs: list[Doc]) -> None: ...

    new = index.job(Doc(1, "é")).new()
    assert new.payload == '{"id":1,"text":"é"}'.encode()
    assert new.batch_terms == BatchTerms("", 5, 2_000, None)
    assert index.using(batch_key="customer-7").job(Doc(1)).new().batch_terms == BatchTerms(
        "customer-7", 5, 2_000, None
    )
    assert index.carried.decode(new.payload) == ((Doc(1, "é"),), {})
    assert index.args.decode(b"[[" + new.payload + b"]]") == (([Doc(1, "é")],), {})


@pytest.mark.parametrize(
    ("element", "value"),
    [
        (datetime, datetime(2026, 11, 20, tzinfo=UTC)),
        (Any, {"a": (1, 2)}),
        (bytes, b"\x00\xff"),
        (set[int], {1, 2}),
        (list[int], [1, 2]),
        (int | None, None),
    ],
)
def test_elements_of_any_type_come_back_as_what_they_were(app: App, element: Any, value: object) -> None:
    def index(items: list[Any]) -> None: ...

    index.__annotations__["items"] = list[element]
    task = app.task(batch=Batch(), name="t")(index)
    payload = task.job(value).new().payload
    assert task.args.decode(b"[[" + payload + b"," + payload + b"]]") == (([value, value],), {})


def test_an_element_that_does_not_fit_is_refused_at_the_call(app: App) -> None:
    @app.task(batch=Batch())
    def index(docs: list[int]) -> None: ...

    for args in (("x",), ([1, 2],), (), (1, 2)):
        with pytest.raises(ArgumentError, match="index"):
            index.enqueue(*args)
    assert app.store.sync.queues() == []


def test_a_list_of_anything_takes_anything(app: App) -> None:
    @app.task(batch=Batch())
    def index(docs: list) -> None: ...  # type: ignore[type-arg]

    assert index.job({"a": 1}).new().payload == b'{"a":1}'


def test_an_annotation_may_name_what_comes_later(app: App) -> None:
    def index(docs): ...  # type: ignore[no-untyped-def]

    index.__annotations__ = {"docs": "list[Later]", "return": "None"}
    task = app.task(batch=Batch(), name="t")(index)
    globals()["Later"] = int
    try:
        assert task.job(5).new().payload == b"5"
    finally:
        del globals()["Later"]


def nothing() -> None: ...
def two(a: list[int], b: int) -> None: ...
def several(*docs: list[int]) -> None: ...
def by_keyword(*, docs: list[int]) -> None: ...
def no_annotation(docs) -> None: ...  # type: ignore[no-untyped-def]
def no_list(docs: int) -> None: ...
def a_tuple(docs: tuple[int, ...]) -> None: ...


@pytest.mark.parametrize("function", [nothing, two, several, by_keyword, no_annotation, no_list, a_tuple])
def test_a_function_that_takes_no_list_is_refused_at_registration(app: App, function: Any) -> None:
    with pytest.raises(ConfigError, match="takes one argument, the list of its elements"):
        app.task(batch=Batch())(function)
    assert app.tasks == {}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"batch": 5}, "batch=5 is not a Batch"),
        ({"batch": True}, "batch=True is not a Batch"),
        ({"batch": Batch(), "upgrade": lambda old: old}, "upgrade= does not go with batch="),
    ],
)
def test_options_that_do_not_go_together_are_refused(app: App, given: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        app.task(**given)(no_list if given["batch"] != Batch() else lists)


def lists(docs: list[int]) -> None: ...


@pytest.mark.parametrize(
    "option",
    [{"timeout": 5}, {"max_attempts": 2}, {"retry": 1}, {"retention": 5}, {"deadline": datetime.now(UTC)}],
)
def test_what_is_said_of_attempts_is_the_tasks(app: App, option: Any) -> None:
    task = app.task(batch=Batch())(lists)
    with pytest.raises(ConfigError, match="is the same for all that run in one batch"):
        task.using(**option)


def test_a_batch_is_for_tasks_that_run_in_batches(app: App) -> None:
    plain = app.task(lists)
    with pytest.raises(ConfigError, match="batch_key= is for tasks that run in batches"):
        plain.using(batch_key="g")
    task = app.task(batch=Batch(), name="b")(lists)
    for key in (5, "a\nb", "x" * 201):
        with pytest.raises(ConfigError, match="is not a valid batch key"):
            task.using(batch_key=key)  # type: ignore[arg-type]


def test_equal_elements_have_equal_unique_keys(app: App) -> None:
    @app.task(batch=Batch(), unique=True)
    def index(docs: list[dict[str, int]]) -> None: ...

    one, other = index.job({"a": 1, "b": 2}).new(), index.job({"b": 2, "a": 1}).new()
    assert one.unique == other.unique
    assert one.unique != index.job({"a": 1}).new().unique


# ── what it becomes ──────────────────────────────────────────────────────────────────────────────


def test_a_batch_is_made_of_its_members() -> None:
    first = NewJob(
        "a", "t", b"1", priority=1, max_attempts=3, headers={"k": "v"}, batch_terms=BatchTerms("g")
    )
    batch = batch_of("b", [first, NewJob("c", "t", b"[2]", priority=5, max_attempts=9)])
    assert batch == NewJob(
        "b", "t", b"[[1,[2]]]", priority=5, max_attempts=3, headers={"k": "v"}, batch_terms=BatchTerms("g")
    )
    assert batch_id("a", 1) == "a.batch"
    assert batch_id("a" * 128, 12) == "a" * 110 + ".batch12"


def test_a_member_begins_in_its_batch() -> None:
    spec = NewJob("a", "t", batch_terms=BatchTerms())
    assert first_state(spec, 5) == (State.COLLECTING, 5)
    assert first_state(NewJob("a", "t", batch_terms=BatchTerms(), run_at=3), 5) == (State.COLLECTING, 5)
    assert first_state(NewJob("a", "t", batch_terms=BatchTerms(), delay=3), 5) == (State.SCHEDULED, 8)


async def _ended(app: App, ref: Ref, to: Transition) -> None:
    share = Share(ref.queue, 1, 1)
    fetched = await app.store.fetch([share], limit=1, lease=1_000, worker="w", token=uuid.uuid4().hex)
    await app.store.settle([Settlement(fetched.jobs[0].lease, to, b"7")])


async def test_the_result_of_a_member_is_none_once_its_batch_has_completed(app: App) -> None:
    @app.task(batch=Batch(max_size=1))
    def index(docs: list[int]) -> int:
        return 7

    handle = await index.aenqueue(1)
    await _ended(app, handle.ref, Transition(State.COMPLETED, keep=1_000))
    assert await handle.aresult(10) is None
    job = await handle.ajob()
    assert job is not None
    assert job.batch is not None
    assert await app.handle(job.batch, queue=job.queue).aresult(60) == 7


async def test_the_error_of_a_member_names_its_batch(app: App) -> None:
    @app.task(batch=Batch(max_size=1))
    def index(docs: list[int]) -> int:
        return 7

    handle = await index.aenqueue(1)
    await _ended(app, handle.ref, Transition(State.DEAD, keep=1_000, reason="ValueError: no"))
    with pytest.raises(JobDead, match=r"with its batch .*\.batch: ValueError: no"):
        await handle.aresult(10)


async def test_a_batch_that_returns_nothing_keeps_nothing(app: App) -> None:
    task = app.task(batch=Batch())(lists)
    handle = await task.aenqueue(1)
    with pytest.raises(ResultNotKept):
        await handle.aresult(10)
