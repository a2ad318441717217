"""`inline(app)`: jobs run inside the test, and the clock moves on request."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from unittest.mock import ANY

import pytest

from penstock import (
    App,
    ConfigError,
    Discard,
    JobCompleted,
    RateLimited,
    ResultTimeout,
    Retry,
    Snooze,
    State,
    Unique,
    current_job,
)
from penstock.core import clock
from penstock.inspector import Inspector, JobAct
from penstock.stores.contract import JobFilter
from penstock.testing import (
    AttemptFailed,
    NothingRuns,
    StillRunning,
    arun_all,
    assert_enqueued,
    assert_not_enqueued,
    enqueued,
    inline,
    run_all,
)
from penstock.workflows import chain, chord, current_flow, immutable

MORNING = datetime(2026, 11, 20, 8, 0, tzinfo=UTC)


class Shop:
    """An app with a few tasks and the list of what they did."""

    def __init__(self) -> None:
        self.app = app = App("sqlite:///must-not-be-made.db", retry="10s")
        did: list[object] = []
        self.did = did

        @app.task
        async def welcome(user: int, lang: str = "en") -> str:
            did.append((user, lang))
            return f"welcome {user}"

        @app.task(max_attempts=3)
        def flaky(fails: int) -> None:
            did.append(("flaky", current_job().attempt))
            if current_job().attempt <= fails:
                raise ValueError("out of paper")

        @app.task
        async def nap() -> None:
            did.append("nap")
            if len(did) < 3:
                raise Snooze("1h")

        @app.task
        async def chain(n: int) -> None:
            did.append(n)
            if n:
                await chain.using(delay="1m").aenqueue(n - 1)

        self.welcome, self.flaky, self.nap, self.chain = welcome, flaky, nap, chain


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.chdir(tmp_path)
    return Shop()


# ── running ──────────────────────────────────────────────────────────────────────────────────────


def test_what_is_due_runs_and_what_is_not_stays(shop: Shop) -> None:
    with inline(shop.app) as box:
        handle = shop.welcome.enqueue(1)
        later = shop.welcome.using(delay="5m").enqueue(2)
        assert shop.did == []
        assert box.run().completed == 1
        assert shop.did == [(1, "en")]
        assert handle.result() == "welcome 1"
        assert later.status() is State.SCHEDULED


def test_delayed_jobs_run_when_their_time_comes_and_not_before(shop: Shop) -> None:
    with inline(shop.app, clock=MORNING) as box:
        shop.welcome.using(delay="5m").enqueue(1)
        shop.welcome.using(run_at=MORNING + timedelta(minutes=6)).enqueue(2)
        box.advance("299s")
        assert shop.did == []
        box.advance("1s")
        assert shop.did == [(1, "en")]
        box.advance("10m")
        assert shop.did == [(1, "en"), (2, "en")]
        assert box.now == MORNING + timedelta(minutes=15)


def test_time_that_passes_costs_no_time(shop: Shop) -> None:
    """Whoever waited for it would be here tomorrow."""
    with inline(shop.app) as box:
        shop.chain.enqueue(50)
        box.advance("24h")
    assert shop.did == list(range(50, -1, -1))


def test_each_job_runs_at_its_own_instant_while_time_passes() -> None:
    app = App("memory://")
    seen: list[datetime] = []
    with inline(app, clock=MORNING) as box:

        @app.task
        async def note() -> None:
            seen.append(box.now)

        for minutes in (3, 1, 2):
            note.using(delay=minutes * 60).enqueue()
        box.advance("10m")
    assert seen == [MORNING + timedelta(minutes=m) for m in (1, 2, 3)]


def test_retries_run_by_their_policy(shop: Shop) -> None:
    with inline(shop.app, raises=False) as box:
        handle = shop.flaky.enqueue(2)
        assert box.run().failed == 1
        assert handle.status() is State.RETRYABLE
        assert box.advance("9s").attempts == 0
        assert box.advance("1s").failed == 1
        assert box.advance("10s").completed == 1
    assert shop.did == [("flaky", 1), ("flaky", 2), ("flaky", 3)]


def test_a_job_that_fails_for_good_is_dead(shop: Shop) -> None:
    with inline(shop.app, raises=False) as box:
        handle = shop.flaky.enqueue(9)
        ran = box.run_all()
        assert (ran.failed, ran.dead, ran.completed) == (3, 1, 0)
        assert handle.status() is State.DEAD
        assert [error.message for _, _, error in ran.errors] == ["out of paper"] * 3


def test_a_failure_is_not_swallowed(shop: Shop) -> None:
    with inline(shop.app) as box:
        shop.flaky.enqueue(1)
        with pytest.raises(AttemptFailed, match=r"attempt 1\): ValueError: out of paper") as raised:
            box.run()
        assert "flaky (job " in str(raised.value)
        assert 'raise ValueError("out of paper")' in str(raised.value)
        assert len(raised.value.errors) == 1


@pytest.mark.parametrize("chosen", [Retry("later"), Discard("no use")])
def test_an_outcome_that_the_task_chose_is_no_surprise(chosen: Exception) -> None:
    app = App("memory://")

    @app.task(max_attempts=2)
    async def choosy() -> None:
        if current_job().attempt == 1:
            raise chosen

    with inline(app) as box:
        choosy.enqueue()
        assert box.run_all().failed == 1


def test_run_all_lets_time_pass_until_nothing_is_left(shop: Shop) -> None:
    with inline(shop.app, clock=MORNING) as box:
        shop.chain.enqueue(3)
        shop.nap.enqueue()
        box.run_all()
        assert sorted(map(str, shop.did)) == ["0", "1", "2", "3", "nap", "nap"]
        assert box.now == MORNING + timedelta(hours=1)


def test_a_job_that_snoozes_for_ever_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.testing.inline_app._MAX_STEPS", 20)
    app = App("memory://")

    @app.task
    async def forever() -> None:
        raise Snooze("1d")

    with inline(app) as box:
        forever.enqueue()
        with pytest.raises(StillRunning, match="forever"):
            box.run_all()


def test_a_job_that_hangs_is_reported() -> None:
    app = App("memory://")

    @app.task
    async def hang() -> None:
        import asyncio

        await asyncio.Event().wait()

    with inline(app, patience="100ms") as box:
        hang.enqueue()
        with pytest.raises(StillRunning, match="hang"):
            box.run()


def test_jobs_run_one_after_another_in_their_order(shop: Shop) -> None:
    with inline(shop.app) as box:
        for user in range(20):
            shop.welcome.using(priority=user).enqueue(user)
        box.run()
    assert shop.did == [(user, "en") for user in range(19, -1, -1)]


def test_any_queue_is_served_also_one_that_a_task_thinks_of(shop: Shop) -> None:
    with inline(shop.app) as box:

        @shop.app.task
        async def branch() -> None:
            await shop.welcome.using(queue="new-one").aenqueue(3)

        branch.enqueue()
        assert box.run().completed == 2
    assert shop.did == [(3, "en")]


def test_a_paused_queue_stays_as_it_is(shop: Shop) -> None:
    with inline(shop.app) as box:
        handle = shop.welcome.enqueue(1)
        import asyncio

        asyncio.run(shop.app.store.settings("default", paused=True))
        assert box.run().attempts == 0
        assert handle.status() is State.AVAILABLE


def test_all_events_are_delivered_when_a_run_is_over(shop: Shop) -> None:
    heard: list[str] = []
    shop.app.on(JobCompleted)(lambda event: heard.append(event.id))
    with inline(shop.app) as box:
        ids = [shop.welcome.enqueue(n).id for n in range(5)]
        box.run()
        assert heard == ids
        ids.append(shop.welcome.enqueue(9).id)
        box.run()
        assert heard == ids


def test_hooks_and_middleware_take_part(shop: Shop) -> None:
    @shop.app.on_startup
    async def up() -> None:
        shop.did.append("up")

    @shop.app.around_attempt
    async def around(job, call):  # type: ignore[no-untyped-def]
        shop.did.append("before")
        return await call()

    with inline(shop.app) as box:
        shop.welcome.enqueue(1)
        box.run()
    assert shop.did == ["up", "before", (1, "en")]


# ── the block ────────────────────────────────────────────────────────────────────────────────────


def test_the_apps_own_store_is_back_after_the_block_and_was_never_touched(shop: Shop, tmp_path: Path) -> None:
    before = shop.app.store
    box = inline(shop.app)
    with box:
        assert shop.app.store is not before
        shop.welcome.enqueue(1)
    assert shop.app.store is before
    box.close()
    assert shop.app.store is before
    assert list(tmp_path.iterdir()) == []


def test_blocks_nest(shop: Shop) -> None:
    with inline(shop.app) as outer:
        shop.welcome.enqueue(1)
        with inline(shop.app) as inner:
            shop.welcome.enqueue(2)
            assert len(enqueued(shop.app)) == 1
            inner.run()
        assert len(enqueued(shop.app)) == 1
        outer.run()
    assert shop.did == [(2, "en"), (1, "en")]


async def test_in_an_event_loop_the_async_twins_do_it(shop: Shop) -> None:
    with inline(shop.app) as box:
        await shop.welcome.aenqueue(1)
        await shop.welcome.using(delay="5m").aenqueue(2)
        assert (await box.arun()).completed == 1
        assert (await box.aadvance("5m")).completed == 1
        await shop.chain.aenqueue(1)
        assert (await box.arun_all()).completed == 2
        with pytest.raises(ConfigError, match=r"await box\.arun\(\)"):
            box.run()


# ── asking what was enqueued ─────────────────────────────────────────────────────────────────────


def test_a_call_is_found_by_its_arguments_however_they_were_written(shop: Shop) -> None:
    with inline(shop.app) as box:
        handle = shop.welcome.using(delay="5m", queue="mail", priority=3).enqueue(42, lang="de")
        job = box.assert_enqueued(shop.welcome, 42, "de", queue="mail", delay=300, priority=3)
        assert (job.id, job.handle, job.queue, job.delay) == (handle.id, handle, "mail", timedelta(minutes=5))
        assert_enqueued(shop.app, shop.welcome)
        assert_enqueued(shop.app, "welcome", user=42, lang=ANY)
        assert_enqueued(shop.app, shop.welcome.name, count=1)
        assert_not_enqueued(shop.app, shop.welcome, 42)
        assert_not_enqueued(shop.app, shop.welcome, 42, "de", queue="default")
        assert_not_enqueued(shop.app, shop.flaky)


def test_defaults_count_as_given(shop: Shop) -> None:
    with inline(shop.app):
        shop.welcome.enqueue(1)
        assert_enqueued(shop.app, shop.welcome, 1, lang="en")


def test_a_job_that_was_replaced_is_found_by_what_it_was_last_asked_for(shop: Shop) -> None:
    with inline(shop.app) as box:
        debounced = shop.welcome.using(unique=Unique(by="user", on_conflict="replace"), delay="30s")
        debounced.enqueue(1, lang="de")
        debounced.enqueue(1, lang="fr")
        box.assert_enqueued(shop.welcome, 1, lang="fr", count=1)
        box.assert_not_enqueued(shop.welcome, 1, lang="de")
        box.advance("30s")
        assert shop.did == [(1, "fr")]


def test_a_job_that_has_run_was_enqueued_all_the_same(shop: Shop) -> None:
    with inline(shop.app) as box:
        shop.flaky.enqueue(0)  # keeps nothing
        box.run()
        box.assert_enqueued(shop.flaky, 0)
        box.clear()
        box.assert_not_enqueued(shop.flaky)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (
            lambda s: assert_enqueued(s.app, s.flaky, 1),
            "flaky(1) was not enqueued; of other tasks there were:",
        ),
        (
            lambda s: assert_enqueued(s.app, s.welcome, 2),
            "welcome(2) was not enqueued; of this task there were:\n"
            "  welcome(1, 'de') with queue='default', delay='5m'",
        ),
        (
            lambda s: assert_enqueued(s.app, s.welcome, queue="low"),
            "welcome(…) with queue='low' was not enqueued; of this task",
        ),
        (lambda s: assert_enqueued(s.app, s.welcome, count=2), "was enqueued 1 time(s), not 2:"),
        (lambda s: assert_not_enqueued(s.app, s.welcome), "welcome(…) should not have been enqueued"),
    ],
)
def test_a_failed_question_says_what_was_there(shop: Shop, ask, says: str) -> None:  # type: ignore[no-untyped-def]
    with inline(shop.app):
        shop.welcome.using(delay="5m").enqueue(1, "de")
        with pytest.raises(AssertionError) as raised:
            ask(shop)
        assert str(raised.value).startswith(says) or says in str(raised.value)


def test_a_question_that_makes_no_sense_is_refused(shop: Shop) -> None:
    with inline(shop.app):
        with pytest.raises(ConfigError, match="unexpected keyword argument 'langue'"):
            assert_enqueued(shop.app, shop.welcome, 1, langue="de")
        with pytest.raises(ConfigError, match="no task 'wellcome'"):
            assert_enqueued(shop.app, "wellcome")
    with pytest.raises(ConfigError, match=r"inside `with penstock\.testing\.inline"):
        assert_enqueued(shop.app, shop.welcome)


def test_a_parameter_of_the_task_comes_before_a_fact_of_the_job() -> None:
    app = App("memory://")

    @app.task
    def move(queue: str) -> None: ...

    with inline(app):
        move.enqueue(queue="checkout")
        assert_enqueued(app, move, queue="checkout")
        assert_not_enqueued(app, move, queue="default")


# ── run_all ──────────────────────────────────────────────────────────────────────────────────────


def test_run_all_runs_an_apps_jobs_where_they_are() -> None:
    app = App("memory://")
    did: list[int] = []

    @app.task
    def note(n: int) -> None:
        did.append(n)

    note.enqueue(1)
    note.using(delay=0.05, queue="other").enqueue(2)
    far = note.using(delay="1h").enqueue(3)
    run_all(app)
    assert did == [1, 2]
    assert far.status() is State.SCHEDULED


async def test_run_all_in_a_loop_and_in_a_block(shop: Shop) -> None:
    with inline(shop.app):
        await shop.welcome.using(delay="1h").aenqueue(1)
        await arun_all(shop.app)
        assert shop.did == [(1, "en")]
        with pytest.raises(ConfigError, match="arun_all"):
            run_all(shop.app)


def test_only_a_given_time_that_passes_enqueues_periodic_jobs(shop: Shop) -> None:
    @shop.app.periodic("*/1 * * * *")
    @shop.app.task(name="tick")
    def tick() -> None: ...

    # at half a minute: what is due within a second of the end would be enqueued, too
    with inline(shop.app, clock=MORNING + timedelta(seconds=30)) as box:
        box.run()
        box.run_all()
        assert box.enqueued("tick") == []
        box.advance("5m")
        assert len(box.enqueued("tick")) == 5


def test_periodic_jobs_run_while_time_passes_each_at_its_instant(shop: Shop) -> None:
    ran: list[datetime] = []

    @shop.app.periodic("*/1 * * * *")
    @shop.app.task(name="recurs", queue="own")
    def recurs() -> None:
        ran.append(box.now)

    with inline(shop.app, clock=MORNING) as box:
        box.run_all()
        assert ran == [], "what has no end is let go on by advance alone"
        box.advance("5m")
        assert ran == [MORNING + timedelta(minutes=n) for n in range(1, 6)]
        assert len(box.enqueued("recurs")) >= 5
        box.advance("59s")
        assert len(ran) == 5
        box.advance("1s")
        assert len(ran) == 6


def test_a_rate_is_kept_to_the_millisecond_while_time_passes() -> None:
    app = App("sqlite:///must-not-be-made.db")
    began: list[int] = []

    @app.task(max_attempts=1)
    async def call() -> None:
        began.append(round((box.now - MORNING).total_seconds() * 1000))

    with inline(app, clock=MORNING, patience="5s", concurrency=5) as box:
        app.queue("default").settings(rate="1/s")
        for _ in range(3):
            call.enqueue()
        box.run()
        box.advance("995ms")
        assert began == [0]
        box.advance("5ms")
        assert began == [0, 1_000]
        box.run_all()
        assert began == [0, 1_000, 2_000]


def test_a_high_rate_gives_nothing_ahead_either() -> None:
    app = App("sqlite:///must-not-be-made.db")
    began: list[int] = []

    @app.task(max_attempts=1)
    async def call() -> None:
        began.append(round((box.now - MORNING).total_seconds() * 1000))

    with inline(app, clock=MORNING, patience="5s") as box:
        app.queue("default").settings(rate="200/s", burst=1)
        for _ in range(4):
            call.enqueue()
        box.run_all()
    assert began == [0, 5, 10, 15]


# ── results that nobody works on ─────────────────────────────────────────────────────────────────


def test_a_result_that_nobody_works_on_is_refused_with_the_way_out(shop: Shop) -> None:
    with inline(shop.app) as box:
        handle = shop.welcome.enqueue(1)
        for wait in (
            handle.result,
            partial(handle.result, timeout="1m"),
            partial(shop.app.results, [handle]),
        ):
            with pytest.raises(NothingRuns, match=r"call box\.run\(\)"):
                wait()
        box.run()
        assert handle.result() == "welcome 1"


async def test_so_is_one_that_is_awaited(shop: Shop) -> None:
    with inline(shop.app) as box:
        handle = await shop.welcome.aenqueue(1)
        with pytest.raises(NothingRuns, match=r"await box\.arun\(\)"):
            await handle.aresult()
        with pytest.raises(ResultTimeout):
            await handle.aresult(timeout=0)
        result, _ = await asyncio.gather(handle.aresult(), box.arun())
        assert result == "welcome 1"


@pytest.mark.parametrize("key", [True, False])
def test_the_clock_moves_for_throttled_jobs(key: bool) -> None:
    app = App("sqlite:///must-not-be-made.db")
    did: list[tuple[str, int]] = []

    @app.task(concurrency_key="host", max_attempts=1)
    async def call(host: str) -> None:
        did.append((host, current_job().attempt))
        if len(did) == 1:
            raise RateLimited("1h", key=key)

    with inline(app, clock=MORNING, patience="5s") as jobs:
        for host in ("slow", "slow", "quick"):
            call.enqueue(host)
        ran = jobs.run()
        assert did == ([("slow", 1), ("quick", 1)] if key else [("slow", 1)])
        assert (ran.completed, ran.failed) == (len(did) - 1, 0)
        jobs.run_all()
        assert Counter(did) == {("slow", 1): 3, ("quick", 1): 1}
        assert jobs.now == MORNING + timedelta(hours=1)


# ── flows, headers, bulk acts ──


def test_an_enqueued_job_has_its_headers() -> None:
    app = App("memory://")

    @app.task(headers={"tenant": "a"})
    def work() -> None: ...

    @app.task
    def plain() -> None: ...

    with inline(app) as box:
        work.using(headers={"trace": "1"}).enqueue()
        plain.enqueue()
        assert [job.headers for job in box.enqueued()] == [{"tenant": "a", "trace": "1"}, {}]


def test_the_jobs_of_a_flow_are_listed_when_they_are_enqueued() -> None:
    app = App("memory://")

    @app.task(max_attempts=1)
    def double(x: int, by: int = 2) -> int:
        return x * by

    @app.task
    def total(numbers: list[int], unit: str = "") -> int:
        return sum(numbers)

    @app.task
    def note(text: str) -> None: ...

    with inline(app) as box:
        chord([double.job(1), double.job(2)], total.partial(unit="m")).on_error(note.job("no")).enqueue()
        assert [job.args for job in box.enqueued()] == [(1,), (2,)]
        box.assert_enqueued(double, 2)
        box.assert_not_enqueued(total)
        box.run()
        assert [job.kwargs for job in box.enqueued(total)] == [{"unit": "m"}]
        box.assert_not_enqueued(note)
    with inline(app, raises=False) as box:
        chain(double.job(1, by=3), immutable(double.job(1, by=4))).enqueue()
        box.clear()
        box.run()
        box.assert_enqueued(double, 1, by=4, count=1)


def test_real_time_that_a_flow_spends_moves_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still while a job runs: a timer is due at the time of the block."""
    app, runs, passed = App("memory://"), [], clock.lease_seconds

    @app.task
    async def work() -> None:
        runs.append(box.now)
        monkeypatch.setattr(clock, "lease_seconds", lambda: passed() + 0.6)  # it spends 0.6 s of real time
        await current_flow().sleep("1m")

    with inline(app) as box:
        began = box.now
        work.enqueue()
        box.run_all()
    assert runs == [began, began + timedelta(minutes=1)]


@pytest.mark.parametrize("run_in", ["async", "thread"])
def test_an_attempt_that_ran_into_its_deadline_is_the_last(run_in: str) -> None:
    """Deadlines and timeouts end attempts in real time, while the clock of the block stands still."""
    app, runs = App("memory://"), []

    async def waits() -> None:
        runs.append(run_in)
        await asyncio.sleep(60)

    def works() -> None:
        runs.append(run_in)
        while True:
            time.sleep(0.01)

    task = app.task(name="hangs", retry=0.05)(waits if run_in == "async" else works)
    with inline(app, raises=False) as box:
        handle = task.using(deadline=box.now + timedelta(seconds=0.3)).enqueue()
        ran = box.run_all()
        (job,) = app.store.sync.get([handle.ref])
    assert (len(runs), ran.dead, ran.failed) == (1, 1, 1)
    assert job is not None
    assert job.reason == "its deadline has passed"


def test_the_error_of_a_node_names_its_task() -> None:
    app = App("memory://")

    @app.task(max_attempts=1)
    def fail(x: int = 0) -> int:
        raise ValueError("no luck")

    with inline(app, raises=False) as box:
        chain(fail.job()).enqueue()
        ((_, task, error),) = box.run().errors
        assert task == fail.name
        assert error.message == "no luck"


@pytest.mark.parametrize("from_a_job", [False, True])
def test_a_bulk_act_runs_with_the_jobs(from_a_job: bool) -> None:
    app = App("memory://", retention="1h")

    @app.task(max_attempts=1)
    def work(x: int) -> int:
        if fails:
            raise ValueError("not yet")
        return x

    @app.task
    async def retry_all() -> None:
        await Inspector(app.store).bulk.start(JobAct.RETRY, JobFilter(states=(State.DEAD,)), by="me")

    fails = True
    with inline(app, raises=False) as box:
        handles = [work.enqueue(n) for n in range(250)]
        assert box.run().dead == 250
        fails = False
        if from_a_job:
            retry_all.enqueue()
        else:
            asyncio.run(retry_all.function())
        assert box.run().completed == 250 + from_a_job
        assert {handle.status() for handle in handles} == {State.COMPLETED}
