"""Periodic tasks: registration, and which jobs are due when."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from penstock import App, ArgumentError, ConfigError
from penstock.app.periodic import AHEAD, LATE, new_entry, next_tick, wait_ms
from penstock.core.job import NewJob, Ref
from penstock.core.schedule import Entry, Misfire, Overlap, Schedule

NOON = 1_700_049_600_000  # 2023-11-15 12:00 UTC
SECOND, MINUTE = 1_000, 60_000


def entry(schedule: Schedule | None = None, job: NewJob | None = None, **policies: Any) -> Entry:
    when = schedule or Schedule.of(every="1m")
    spec = new_entry("report", job or NewJob("", "t"), when, **policies)
    return Entry(spec, 1, NOON)


def instants(one: Entry, now: int) -> list[int]:
    """Of the jobs that are enqueued now, in seconds since noon."""
    tick = next_tick(one, now)
    return [] if tick is None else [((job.run_at or 0) - NOON) // SECOND for job in tick.jobs]


# ── what is due ──


def test_an_instant_is_enqueued_shortly_before_it_comes() -> None:
    one = entry()
    assert instants(one, NOON + MINUTE - AHEAD - 1) == []
    tick = next_tick(one, NOON + MINUTE - AHEAD)
    assert tick is not None
    assert (tick.watermark, tick.to, tick.not_before) == (NOON, NOON + MINUTE, NOON + MINUTE - AHEAD)
    (job,) = tick.jobs
    assert (job.id, job.run_at) == ("report@2023-11-15T12:01:00Z", NOON + MINUTE)


@pytest.mark.parametrize("overlap", ["skip", "replace"])
def test_where_the_job_before_decides_it_is_not_before_its_instant(overlap: str) -> None:
    one = entry(overlap=overlap)
    assert instants(one, NOON + MINUTE - 1) == []
    tick = next_tick(one, NOON + MINUTE)
    assert tick is not None
    assert tick.not_before == NOON + MINUTE


def test_how_long_nothing_has_to_be_done() -> None:
    assert wait_ms(entry(), NOON) == MINUTE - AHEAD
    assert wait_ms(entry(overlap="skip"), NOON + 5) == MINUTE - 5
    assert wait_ms(entry(), NOON + MINUTE) == 0
    assert wait_ms(replace(entry(), paused=True), NOON) is None
    assert wait_ms(entry(misfire="skip"), NOON + 10 * MINUTE + LATE + 1) == MINUTE - LATE - 1 - AHEAD


def test_a_paused_entry_enqueues_nothing() -> None:
    assert next_tick(replace(entry(), paused=True), NOON + 9 * MINUTE) is None


def test_what_comes_a_little_late_was_not_missed() -> None:
    assert instants(entry(misfire="skip"), NOON + MINUTE + LATE - 1) == [60]
    assert instants(entry(misfire="skip"), NOON + MINUTE + LATE) == []


@pytest.mark.parametrize(
    ("policies", "made_up_for"),
    [
        ({"misfire": "skip"}, []),
        ({"misfire": "once"}, [300]),
        ({"misfire": "all"}, [60, 120, 180, 240, 300]),
        ({"misfire": "all", "catch_up": 2}, [240, 300]),
    ],
)
def test_missed_instants_are_the_policys(policies: Any, made_up_for: list[int]) -> None:
    assert instants(entry(**policies), NOON + 5 * MINUTE + 30 * SECOND) == made_up_for
    assert instants(entry(**policies), NOON + 6 * MINUTE) == [*made_up_for, 360]


def test_many_missed_instants_come_in_pieces_and_none_is_left_out() -> None:
    one, now, found = entry(Schedule.of(every="1s"), misfire="all", catch_up=450), NOON + 3_600 * SECOND, []
    while (tick := next_tick(one, now)) is not None:
        assert len(tick.jobs) <= 200
        found += [job.run_at for job in tick.jobs]
        one = replace(one, watermark=tick.to)
    last = now + AHEAD
    assert found == list(range(now - LATE - 449 * SECOND, last + 1, SECOND))


def test_an_expiry_counts_from_the_instant_and_not_from_the_enqueue() -> None:
    tick = next_tick(entry(job=NewJob("", "t", expires_in=5_000)), NOON + MINUTE - AHEAD)
    assert tick is not None
    assert (tick.jobs[0].expires_in, tick.jobs[0].expires_at) == (None, NOON + MINUTE + 5_000)


def test_jitter_is_drawn_alike_by_all_and_never_early() -> None:
    one = entry(Schedule.of(every="1s"), jitter="10s", misfire="all", catch_up=200)
    tick = next_tick(one, NOON + 200 * SECOND)
    assert tick == next_tick(one, NOON + 200 * SECOND)
    assert tick is not None
    late = [(job.run_at or 0) - (NOON + n * SECOND) for n, job in enumerate(tick.jobs, 1)]
    assert 0 <= min(late) < 1_000
    assert 9_000 < max(late) <= 10_000


# ── registering ──


@pytest.fixture
def app() -> App:
    return App("memory://")


def test_a_task_recurs_by_a_decorator_above_it(app: App) -> None:
    @app.periodic("*/5 * * * *", tz="Europe/Berlin", args=[7], misfire="all", overlap="skip", jitter="1s")
    @app.task(name="shop.report", queue="low", priority=3, timeout="5s")
    def report(n: int) -> None: ...

    assert report.name == "shop.report", "it stays the task"
    (found,) = app.periodic_entries.values()
    assert found.ref == Ref("low", "shop.report")
    assert (found.job.payload, found.job.priority, found.job.timeout) == (b'{"n":7}', 3, 5_000)
    assert (found.misfire, found.overlap, found.jitter) == (Misfire.ALL, Overlap.SKIP, 1_000)
    assert found.schedule == Schedule("*/5 * * * *", "Europe/Berlin")
    assert found.by_code


def test_one_task_recurs_in_several_ways_under_several_names(app: App) -> None:
    @app.task(name="report")
    def report(full: bool = False) -> None: ...

    app.periodic(every="1h", task=report)
    app.periodic("@daily", task=report.using(queue="low"), kwargs={"full": True}, name="nightly")
    assert list(app.periodic_entries) == [Ref("default", "report"), Ref("low", "nightly")]
    assert app.queues() == ["default", "low"]
    with pytest.raises(
        ConfigError, match=r"has an entry 'report' already: give one of the two another name="
    ):
        app.periodic("@daily", task=report)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"misfire": "twice"}, "misfire='twice' is not one of skip, once, all"),
        ({"overlap": "skp"}, "did you mean 'skip'"),
        ({"catch_up": 0}, "catch_up=0 is not a whole number from 1"),
        ({"jitter": -1}, "jitter=-1 is negative"),
        ({"jitter": "x"}, "is not a duration"),
        ({"name": "a b"}, "name='a b' cannot be the name of a periodic entry"),
        ({"name": "a" * 101}, "use 1 to 100 of"),
        ({"every": "5m"}, "give one of the two"),
        ({"tz": "Europe/Berln"}, "did you mean 'Europe/Berlin'"),
        ({"args": "abc"}, "write args="),
        ({"kwargs": ["abc"]}, "kwargs=['abc'] is not a mapping"),
        ({"overlaps": "skip"}, "has no option 'overlaps' (did you mean 'overlap'?)"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_registered(app: App, options: Any, says: str) -> None:
    @app.task(name="t")
    def t() -> None: ...

    with pytest.raises(ConfigError) as caught:
        app.periodic("@daily", task=t, **options)
    assert says in str(caught.value)
    assert app.periodic_entries == {}


def test_arguments_that_do_not_fit_are_refused_when_it_is_registered(app: App) -> None:
    @app.task(name="t")
    def t(n: int) -> None: ...

    for wrong in ({}, {"args": ["x"]}, {"kwargs": {"m": 1}}):
        with pytest.raises(ArgumentError):
            app.periodic("@daily", task=t, **wrong)


def test_a_job_that_says_itself_when_it_is_due_is_refused(app: App) -> None:
    @app.task(name="t")
    def t() -> None: ...

    with pytest.raises(ConfigError, match="leave run_at= and delay= out"):
        app.periodic("@daily", task=t.using(delay=5))
    with pytest.raises(ConfigError, match="give it a name="):
        app.periodic("@daily", task=t.using(id="mine"))


def test_only_tasks_recur(app: App) -> None:
    with pytest.raises(ConfigError, match=r"write @app.periodic\(\.\.\.\) above @app.task"):

        @app.periodic("@daily")  # type: ignore[type-var]
        def plain() -> None: ...
