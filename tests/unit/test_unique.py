"""Unique rules: their options, and the keys of calls."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from penstock import App, DuplicateJob, EnqueueManyError, State, Unique
from penstock.core.job import NewJob
from penstock.core.unique import UniqueKey, key_digest
from penstock.errors import ArgumentError, ConfigError


@pytest.fixture
def app() -> App:
    return App("memory://")


def key(job: NewJob) -> str:
    assert job.unique is not None
    return job.unique.key


# ── the rule ──


@pytest.mark.parametrize(
    ("written", "terms"),
    [
        (True, UniqueKey("")),
        (5, UniqueKey("", 5_000)),
        ("10m", UniqueKey("", 600_000)),
        (timedelta(hours=1), UniqueKey("", 3_600_000)),
        (Unique(period=7), UniqueKey("", 7_000)),
        (Unique(states="queued"), UniqueKey("", None, 1)),
        (Unique(states=("finished", "running")), UniqueKey("", None, 6)),
        (Unique(states=["queued", "running", "finished"], period="1d"), UniqueKey("", 86_400_000, 7)),
        (Unique(on_conflict="existing"), UniqueKey("")),
        (Unique(on_conflict="reject"), UniqueKey("", reject=True)),
        (Unique(on_conflict="replace"), UniqueKey("", replace=3)),
        (Unique(replace="arguments"), UniqueKey("", replace=1)),
        (Unique(replace=["run_at"]), UniqueKey("", replace=2)),
        (Unique(replace=("run_at", "arguments")), UniqueKey("", replace=3)),
    ],
    ids=repr,
)
def test_what_a_user_may_write(written: Any, terms: UniqueKey) -> None:
    rule = Unique.of(written)
    assert rule is not None
    assert rule.terms() == terms


@pytest.mark.parametrize("written", [None, False])
def test_no_rule(written: Any) -> None:
    assert Unique.of(written) is None


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: Unique.of(-1), "unique="),
        (lambda: Unique.of("soon"), "unique="),
        (lambda: Unique.of([1]), "unique="),  # type: ignore[arg-type]
        (lambda: Unique.of(0), "unique=0 would never be in effect"),
        (lambda: Unique(period=0), "unique=0 would never be in effect"),
        (lambda: Unique(states=()), "names no state"),
        (lambda: Unique(states="queue"), "states='queue' is not a state of holding .did you mean 'queued'"),  # type: ignore[arg-type]
        (lambda: Unique(states=3), "states=3 is not a list of words"),  # type: ignore[arg-type]
        (lambda: Unique(on_conflict="refuse"), "on_conflict='refuse' is unknown"),  # type: ignore[arg-type]
        (lambda: Unique(replace="args"), "replace='args' is not something to replace"),  # type: ignore[arg-type]
        (lambda: Unique(on_conflict="reject", replace="run_at"), "replace= goes with on_conflict='replace'"),
        (lambda: Unique(states="running", on_conflict="replace"), "only a queued job can be replaced"),
        (lambda: Unique(by="a", key="b"), "give one of them"),
        (lambda: Unique(by=()), "names no argument"),
        (lambda: Unique(by=[1]), "by=1 is not an argument's name"),  # type: ignore[list-item]
        (lambda: Unique(key=""), "key='' is not a text of 1 to 10,000 characters"),
        (lambda: Unique(key=7), "key=7 is neither a text nor a plain function"),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_sense_is_refused(made: Callable[[], Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        made()


def test_a_key_function_is_a_plain_def() -> None:
    async def slow(a: int) -> str:
        return str(a)

    with pytest.raises(ConfigError, match="plain function"):
        Unique(key=slow)  # type: ignore[arg-type]


def test_a_key_is_short_and_depends_on_all_that_makes_it() -> None:
    calls = [("t", "a", b"1"), ("t", "b", b"1"), ("u", "a", b"1"), ("t", "a", b"2"), ("t", "a", b"x" * 9**6)]
    keys = {key_digest(*call) for call in calls}
    assert len(keys) == len(calls)
    assert {len(one) for one in keys} == {32}


# ── all arguments ──


def test_the_same_arguments_are_the_same_however_they_are_passed(app: App) -> None:
    @app.task(unique=True)
    def f(a: int, b: str = "x", *rest: int, c: float = 1.5, **more: int) -> None: ...

    calls = [f.job(1), f.job(a=1), f.job(1, "x"), f.job(1, b="x"), f.job(1, c=1.5), f.job(b="x", c=1.5, a=1)]
    assert len({key(call.new()) for call in calls}) == 1
    others = [f.job(2), f.job(1, "y"), f.job(1, "x", 3), f.job(1, c=2), f.job(1, d=1)]
    assert len({key(call.new()) for call in [*others, calls[0]]}) == len(others) + 1


def test_neither_order_nor_spelling_makes_a_difference(app: App) -> None:
    @app.task(unique=True)
    def f(
        x: Any = None, s: frozenset[Any] = frozenset(), n: float = 0.0, d: Decimal = Decimal(0)
    ) -> None: ...

    @app.task(unique=True)
    def g(s: set[str | float | None]) -> None: ...

    pairs = [
        (f.job({"a": 1, "b": [1, {"x": 1, "y": 2}]}), f.job({"b": [1, {"y": 2, "x": 1}], "a": 1})),
        (f.job(1), f.job(1.0)),
        (f.job([1, {"a": 2.0}]), f.job([1.0, {"a": 2}])),
        (f.job(0), f.job(-0.0)),
        (f.job(s=frozenset("abcdef")), f.job(s=frozenset("fedcba"))),
        (f.job(n=3), f.job(n=3.0)),
        (g.job({"a", "b", None}), g.job({None, "b", "a"})),
        (g.job({"a", "b", 2, 3}), g.job({3, 2.0, "b", "a"})),
        (f.job(d=Decimal("1.50")), f.job(d=Decimal("1.5"))),
        (f.job(d=Decimal("0.00")), f.job()),
    ]
    for one, other in pairs:
        assert key(one.new()) == key(other.new()), (one, other)
    different = [f.job(1), f.job(True), f.job("1"), f.job(1.5), f.job(None), f.job(2**53 + 1), f.job([1])]
    assert len({key(call.new()) for call in different}) == len(different)


def test_an_instant_is_the_same_in_every_zone(app: App) -> None:
    @app.task(unique=True)
    def f(at: datetime) -> None: ...

    noon = datetime(2026, 11, 20, 12, tzinfo=UTC)
    assert key(f.job(noon).new()) == key(f.job(noon.astimezone(timezone(timedelta(hours=2)))).new())
    assert key(f.job(noon).new()) != key(f.job(noon + timedelta(hours=2)).new())


def test_a_default_that_cannot_be_stored_is_left_out(app: App) -> None:
    nothing = object()

    @app.task(unique=True)
    def f(a: int, b: Any = nothing) -> None: ...

    assert key(f.job(1).new()) == key(f.job(a=1).new()) != key(f.job(1, 2).new())


def test_tasks_do_not_share_keys(app: App) -> None:
    one = app.task(name="one", unique=True)(lambda a: None)
    two = app.task(name="two", unique=True)(lambda a: None)
    assert key(one.job(1).new()) != key(two.job(1).new())


# ── some arguments, a text, a function ──


def test_only_the_arguments_that_are_named_count(app: App) -> None:
    @app.task(unique=Unique(by=["user", "kind"]))
    def f(user: int, text: str, kind: str = "mail") -> None: ...

    same = [f.job(1, "a"), f.job(1, "b", "mail"), f.job(text="c", user=1)]
    assert len({key(call.new()) for call in same}) == 1
    assert key(f.job(1, "a", "sms").new()) != key(same[0].new()) != key(f.job(2, "a").new())


def test_their_order_is_no_matter(app: App) -> None:
    def f(a: int, b: int) -> None: ...

    one = app.task(unique=Unique(by=["a", "b"]))(f)
    assert key(one.job(1, 2).new()) == key(one.using(unique=Unique(by=("b", "a"))).job(1, 2).new())


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (Unique(by="usr"), r"by='usr' is not an argument of the task .did you mean 'user'"),
        (Unique(key=lambda usr: usr), r"the key function's parameter 'usr' is not an argument"),
    ],
)
def test_names_are_checked_when_the_task_is_registered(app: App, rule: Unique, says: str) -> None:
    def f(user: int) -> None: ...

    with pytest.raises(ConfigError, match=rf"the task '.*f': unique: {says}"):
        app.task(unique=rule)(f)
    task = app.task(f)
    with pytest.raises(ConfigError, match=rf"f.using\(\): unique: {says}"):
        task.using(unique=rule)


def test_a_key_of_ones_own(app: App) -> None:
    @app.task
    def f(a: int) -> None: ...

    first = f.using(unique_key="order-7").enqueue(1)
    second = f.using(unique_key="order-7").enqueue(2)
    assert second == first
    assert second.existing
    assert f.using(unique_key="order-8").enqueue(1) != first
    assert f.using(unique=Unique(key="order-7")).enqueue(3) == first
    assert not f.enqueue(1).existing


def test_a_key_of_ones_own_overrules_the_arguments_and_keeps_the_rule(app: App) -> None:
    @app.task(unique=Unique(by="a", period="1m", on_conflict="reject"))
    def f(a: int) -> None: ...

    job = f.using(unique_key="k").job(1).new()
    assert job.unique == UniqueKey(key(job), 60_000, reject=True)
    assert key(job) == key(f.using(unique_key="k").job(2).new())


@pytest.mark.parametrize("said", ["", 7, None, "x" * 10_001], ids=["empty", "number", "none", "long"])
def test_what_is_no_key_is_refused(app: App, said: Any) -> None:
    task = app.task(name="f")(lambda: None)
    with pytest.raises(ConfigError, match=r"f.using\(\): unique_key="):
        task.using(unique_key=said)


def test_a_key_for_what_is_not_unique_is_a_contradiction(app: App) -> None:
    task = app.task(name="f")(lambda: None)
    with pytest.raises(ConfigError, match="turns that off"):
        task.using(unique=False, unique_key="k")


def test_a_function_of_the_arguments_that_it_names(app: App) -> None:
    @app.task(unique=Unique(key=lambda user, kind: f"{kind}-{user % 10}"))
    def f(user: int, text: str, kind: str = "mail") -> None: ...

    assert key(f.job(1, "a").new()) == key(f.job(11, "b", kind="mail").new())
    assert key(f.job(1, "a").new()) == key(f.using(unique_key="mail-1").job(5, "").new())
    assert key(f.job(1, "a").new()) != key(f.job(1, "a", "sms").new())


def test_a_function_of_all_arguments_gets_what_the_task_would_get(app: App) -> None:
    seen: list[dict[str, Any]] = []

    def look(**arguments: Any) -> int:
        seen.append(arguments)
        return 1

    @app.task(unique=Unique(key=look))
    def f(day: datetime, *rest: int, b: frozenset[str] = frozenset("x"), **more: int) -> None: ...

    noon = datetime(2026, 11, 20, 12, tzinfo=UTC)
    f.job(noon, 1, 2, c=3).new()
    assert seen == [{"day": noon, "rest": (1, 2), "b": frozenset("x"), "more": {"c": 3}}]


def test_a_key_function_that_fails_or_says_nothing_stores_nothing(app: App) -> None:
    @app.task(unique=Unique(key=lambda a: {1: "one", 2: None, 3: 1 / (a - 3) if a == 3 else True}[a]))
    def f(a: int) -> None: ...

    with pytest.raises(ArgumentError, match="the key function of unique= returned None, which is neither"):
        f.enqueue(2)
    with pytest.raises(
        ArgumentError, match="failed with ZeroDivisionError: division by zero; nothing was stored"
    ):
        app.enqueue_many([f.job(1), f.job(3)])
    assert app.store.sync.queues() == []


def test_raw_jobs_are_the_same_by_payload_or_key(app: App) -> None:
    first = app.enqueue_raw("legacy", b"1", "t", unique=True)
    assert app.enqueue_raw("legacy", b"1", "t", unique=True) == first
    assert app.enqueue_raw("legacy", b"2", "t", unique=True) != first
    own = app.enqueue_raw("legacy", b"1", "t", unique_key="k")
    assert own != first
    assert app.enqueue_raw("legacy", b"2", "t", unique_key="k") == own
    with pytest.raises(ConfigError, match="a raw job has no named arguments"):
        app.enqueue_raw("legacy", b"1", unique=Unique(by="a"))
    with pytest.raises(ConfigError, match="a raw job has no named arguments"):
        app.handler(queue="legacy", unique=Unique(key=lambda a: a))(lambda job: None)


# ── what a second call gets ──


def test_a_rejected_call_gets_the_existing_job(app: App) -> None:
    @app.task(queue="q", unique=Unique(on_conflict="reject"))
    def f(a: int) -> None: ...

    first = f.enqueue(1)
    with pytest.raises(DuplicateJob, match=rf"is already in the queue 'q': {first.id}.*app.handle") as caught:
        f.enqueue(1)
    assert app.handle(caught.value.id, caught.value.queue) == first
    assert not f.enqueue(2).existing


def test_each_job_of_a_bulk_call_gets_its_own_answer(app: App) -> None:
    @app.task(unique=Unique(on_conflict="reject"))
    def f(a: int) -> None: ...

    @app.task(unique=Unique(by="a", replace="arguments"))
    def g(a: int, b: int) -> None: ...

    with pytest.raises(EnqueueManyError) as caught:
        app.enqueue_many([f.job(1), f.job(1), g.job(1, 1), g.job(1, 2)])
    one, none, three, four = caught.value.handles
    assert none is None
    assert isinstance(caught.value.errors[1], DuplicateJob)
    assert caught.value.errors[1].id == one.id
    assert four == three
    assert (three.existing, four.existing) == (False, True)
    job = three.job()
    assert job is not None
    assert job.spec.payload == b'{"a":1,"b":2}'


def test_a_replacing_call_pushes_the_run_time_on(app: App) -> None:
    @app.task(unique=Unique(by="user", on_conflict="replace"))
    def digest(user: int, upto: int) -> None: ...

    later = digest.using(delay="30s")
    first = later.enqueue(1, upto=1)
    before = first.job()
    again = digest.using(delay="60s").enqueue(1, upto=2)
    after = again.job()
    assert again == first
    assert again.existing
    assert before is not None
    assert after is not None
    assert (after.state, after.spec.payload) == (State.SCHEDULED, b'{"user":1,"upto":2}')
    assert after.run_at >= before.run_at + 30_000
    assert digest.enqueue(1, upto=3) == first
    assert first.status() is State.AVAILABLE


async def test_async_calls_give_the_same_error(app: App) -> None:
    @app.task(unique=Unique(on_conflict="reject"))
    def f(a: int) -> None: ...

    first = await f.aenqueue(1)
    with pytest.raises(DuplicateJob, match=first.id):
        await f.aenqueue(1)
    with pytest.raises(EnqueueManyError):
        await app.aenqueue_many([f.job(1), f.job(2)])
