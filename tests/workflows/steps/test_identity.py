"""What an operation answers belongs to it: the smallest program for each way in which it could be another's.

Each flow is suspended by a wait for a signal, so that its function runs again with what is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import App, State, current_job
from penstock.client.handle import Handle
from penstock.core.job import Job
from penstock.errors import Cancel, Discard, JobExists
from penstock.retry import Fixed
from penstock.testing import FaultyStore
from penstock.workflows import current_flow, current_sync_flow
from tests.workflows.conftest import app as app  # on all stores; the folder's own fixture has three
from tests.workflows.conftest import in_a_burst

SOON = Fixed(1)


@pytest.fixture
def sold(ran: list[Any]) -> Callable[[int], str]:
    """A function of a step: each call is an effect."""

    def sell(n: int) -> str:
        ran.append(n)
        return f"sold {n}"

    return sell


async def ended(app: App, handle: Handle[Any], *signals: str) -> Job:
    """The job, after a run to its first wait and a run after each signal."""
    await in_a_burst(app)
    for name in signals:
        job = await handle.ajob()
        assert job is not None
        assert job.state is State.SUSPENDED, (job.state, job.reason, job.errors)
        await app.asignal(name, flow=handle.id)
        await in_a_burst(app)
    job = await handle.ajob()
    assert job is not None
    return job


async def answer(app: App, handle: Handle[Any], *signals: str) -> Any:
    """The result of the job, as above."""
    job = await ended(app, handle, *signals)
    assert job.state is State.COMPLETED, (job.state, job.reason, job.errors)
    return await handle.aresult(timeout=1)


async def reason(app: App, handle: Handle[Any], state: State, *signals: str) -> str:
    """Why the job is in this state, as above."""
    job = await ended(app, handle, *signals)
    assert job.state is state, (job.state, job.reason, job.errors)
    return job.reason or job.errors[-1].message


# ── behind a loop ──


async def test_a_step_behind_a_loop_is_its_own(app: App, ran: list[Any], sold: Any) -> None:
    @app.task
    async def work() -> str:
        flow = current_flow()
        async for n in flow.iterate("rows", [1, 2], every=0):
            await flow.step("sell", sold, n)
        await flow.wait_for("go")
        return await flow.step("sell", sold, 3)

    assert await answer(app, await work.aenqueue(), "go") == "sold 3"
    assert ran == [1, 2, 3]


async def test_a_gather_behind_a_loop_is_its_own(app: App) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    @app.task
    async def work() -> list[int]:
        flow = current_flow()
        async for n in flow.iterate("rows", [1, 2], every=0):
            await flow.gather([double.job(n)])
        await flow.wait_for("go")
        return await flow.gather([double.job(5)])

    assert await answer(app, await work.aenqueue(), "go") == [10]


async def test_a_sleep_behind_a_loop_is_not_skipped(app: App) -> None:
    @app.task
    async def work() -> None:
        flow = current_flow()
        async for _ in flow.iterate("rows", [1], every=0):
            await flow.sleep("1ms")
        await flow.wait_for("go")
        await flow.sleep("1h")

    assert (await ended(app, await work.aenqueue(), "go")).state is State.SUSPENDED


async def test_a_loop_in_a_thread_numbers_for_itself(app: App, ran: list[Any], sold: Any) -> None:
    @app.task
    def work() -> str:
        flow = current_sync_flow()
        for n in flow.iterate("rows", [1, 2], every=0):
            flow.step("sell", sold, n)
            if n == 1:
                break
        flow.wait_for("go")
        return flow.step("sell", sold, 3)

    assert await answer(app, await work.aenqueue(), "go") == "sold 3"
    assert ran == [1, 3]


async def test_what_follows_a_loop_in_tasks_is_not_in_the_loop(app: App, ran: list[Any], sold: Any) -> None:
    @app.task
    async def work() -> list[str]:
        flow = current_flow()
        async for n in flow.iterate("rows", [1], every=0):
            await flow.step("sell", sold, n)
        found = await asyncio.gather(flow.step("a", sold, 2), flow.step("b", sold, 3))
        await flow.wait_for("go")
        return list(found)

    assert await answer(app, await work.aenqueue(), "go") == ["sold 2", "sold 3"]
    assert sorted(ran) == [1, 2, 3]


async def test_an_item_of_a_changed_list_has_its_own_steps(app: App, ran: list[Any], sold: Any) -> None:
    rows = [2, 3]

    def source(after: int | None) -> Iterator[tuple[int, int]]:
        return iter([(row, row) for row in rows if after is None or row > after])

    @app.task
    async def work() -> list[str]:
        flow = current_flow()
        found = []
        async for n in flow.iterate("rows", source):
            found.append(await flow.step("sell", sold, n))
            await flow.wait_for("go")
        return found

    handle = await work.aenqueue()
    assert (await ended(app, handle)).state is State.SUSPENDED
    rows.insert(0, 1)
    assert await answer(app, handle, "go", "go", "go") == ["sold 1", "sold 2", "sold 3"]
    assert sorted(ran) == [1, 2, 3]


# ── at the same time ──


async def test_waits_in_tasks_get_the_signals_of_their_keys(app: App) -> None:
    @app.task
    async def work() -> list[Any]:
        flow = current_flow()

        async def later(key: str) -> Any:
            await flow.step("before", str, key)
            return await flow.wait_for("packed", key=key)

        return list(await asyncio.gather(later("A"), flow.wait_for("packed", key="B")))

    handle = await work.aenqueue()
    assert (await ended(app, handle)).state is State.SUSPENDED
    await app.asignal("packed", key="B", data="of B")
    await in_a_burst(app)
    await app.asignal("packed", key="A", data="of A")
    assert await answer(app, handle) == ["of A", "of B"]


async def test_branches_have_answers_of_their_own(app: App) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    @app.task
    async def work() -> Any:
        flow = current_flow()

        async def a() -> list[int]:
            await flow.step("before", str, 1)
            await flow.wait_for("go")
            return await flow.gather([double.job(1)])

        async def b() -> list[int]:
            return await flow.gather([double.job(2)])

        return await flow.branches(a=a, b=b)

    assert await answer(app, await work.aenqueue(), "go") == {"a": [2], "b": [4]}


async def test_one_identity_in_two_tasks_is_refused_before_it_runs(
    app: App, ran: list[Any], sold: Any
) -> None:
    @app.task(max_attempts=1)
    async def work() -> None:
        flow = current_flow()

        async def one(n: int) -> None:
            await flow.step("sell", sold, n)

        await one(1)
        await asyncio.gather(one(2), one(3))

    why = await reason(app, await work.aenqueue(), State.DEAD)
    for way in ("key=", "flow.branches", "asyncio.timeout"):
        assert way in why
    assert ran == [1]


async def test_the_first_of_a_signal_and_a_timer_stays_the_first(app: App, ran: list[Any], sold: Any) -> None:
    @app.task
    async def work() -> Any:
        flow = current_flow()
        name, _ = await flow.first(packed=flow.wait_for("packed"), late=flow.sleep("1ms"))
        sale = await flow.step("sell", sold, 1)
        await flow.wait_for("go")
        return name, sale, await flow.step("sell", sold, 2)

    handle = await work.aenqueue()
    assert (await ended(app, handle)).state is State.SUSPENDED
    await app.asignal("packed", flow=handle.id)
    assert list(await answer(app, handle, "go")) == ["late", "sold 1", "sold 2"]
    assert ran == [1, 2]


# ── another release ──


async def test_a_new_gather_does_not_take_the_results_of_another(app: App, ran: list[Any]) -> None:
    @app.task
    async def mail(to: str) -> str:
        ran.append(to)
        return to

    release = ["ann"]

    @app.task
    async def work() -> list[Any]:
        flow = current_flow()
        found = [await flow.gather([mail.job(to)]) for to in release]
        await flow.wait_for("go")
        return found

    handle = await work.aenqueue()
    assert (await ended(app, handle)).state is State.SUSPENDED
    release[:] = ["bob", "ann"]
    why = await reason(app, handle, State.PARKED, "go")
    assert "no longer asks what is stored" in why
    assert "key" in why
    assert ran == ["ann"]


async def test_gathers_with_keys_may_be_added(app: App, ran: list[Any]) -> None:
    @app.task
    async def mail(to: str) -> str:
        ran.append(to)
        return to

    release = ["ann"]

    @app.task
    async def work() -> list[Any]:
        flow = current_flow()
        found = [await flow.gather([mail.job(to)], key=to) for to in release]
        await flow.wait_for("go")
        return found

    handle = await work.aenqueue()
    assert (await ended(app, handle)).state is State.SUSPENDED
    release[:] = ["bob", "ann"]
    assert await answer(app, handle, "go") == [["bob"], ["ann"]]
    assert ran == ["ann", "bob"]


async def test_a_step_that_asks_for_something_else_parks_its_job(app: App, ran: list[Any], sold: Any) -> None:
    wanted = [1, 2]

    @app.task
    async def work() -> str:
        flow = current_flow()
        sale = await flow.step("sell", sold, wanted.pop(0))
        await flow.wait_for("go")
        return sale

    why = await reason(app, await work.aenqueue(), State.PARKED, "go")
    assert "no longer asks what is stored" in why
    assert ran == [1]


async def test_arguments_that_change_are_allowed_where_the_code_says_so(
    app: App, ran: list[Any], sold: Any
) -> None:
    wanted = [1, 2]

    @app.task
    async def work() -> str:
        flow = current_flow()
        sale = await flow.step("sell", sold, wanted.pop(0), changing=True)
        await flow.wait_for("go")
        return sale

    assert await answer(app, await work.aenqueue(), "go") == "sold 1"
    assert ran == [1]


# ── failures ──


class SoldOut(Exception):
    """No more of it."""


async def test_a_failure_that_was_caught_stays_one(app: App, ran: list[Any]) -> None:
    stock = [0, 5]

    def reserve() -> str:
        ran.append("reserve")
        if not stock.pop(0):
            raise SoldOut("none left")
        return "reserved"

    @app.task
    async def work() -> str:
        flow = current_flow()
        try:
            found = await flow.step("reserve", reserve)
        except SoldOut:
            found = await flow.step("refund", str, "refunded")
        await flow.wait_for("go")
        return found

    assert await answer(app, await work.aenqueue(), "go") == "refunded"
    assert ran == ["reserve"]


@pytest.mark.parametrize("how", ["itself", "chained", "in a group"])
async def test_a_failure_that_ends_its_attempt_is_tried_again(app: App, ran: list[Any], how: str) -> None:
    def charge() -> str:
        ran.append("charge")
        if len(ran) < 3:
            raise SoldOut("not yet")
        return "charged"

    @app.task(max_attempts=3, retry=SOON)
    async def work() -> str:
        flow = current_flow()
        try:
            return await flow.step("charge", charge)
        except SoldOut as error:
            if how == "chained":
                raise ValueError("no charge") from error
            if how == "in a group":
                raise ExceptionGroup("no charge", [error]) from None
            raise

    assert await answer(app, await work.aenqueue()) == "charged"
    assert len(ran) == 3


async def test_a_step_that_was_cut_off_stays_cut_off(app: App, ran: list[Any]) -> None:
    hangs = asyncio.Event()

    async def charge() -> str:
        ran.append("charge")
        hangs.set()
        await asyncio.sleep(60)
        return "charged"

    @app.task
    async def work() -> str:
        flow = current_flow()
        try:
            async with asyncio.timeout(None) as limit:
                until = asyncio.create_task(hangs.wait())
                until.add_done_callback(lambda _: limit.reschedule(0) if not limit.expired() else None)
                found = await flow.step("charge", charge)
        except TimeoutError:
            found = "too late"
        await flow.wait_for("go")
        return found

    assert await answer(app, await work.aenqueue(), "go") == "too late"
    assert ran == ["charge"]


async def test_a_failure_that_was_caught_stays_one_when_the_attempt_ends_otherwise(
    app: App, ran: list[Any]
) -> None:
    """What the handler calls in tasks of its own is going on, too."""

    def reserve() -> str:
        ran.append("reserve")
        raise SoldOut("none left")

    def broken() -> str:
        ran.append("broken")
        if ran.count("broken") == 1:
            raise OSError("once")
        return "mended"

    @app.task(max_attempts=3, retry=SOON)
    async def work() -> str:
        flow = current_flow()
        try:
            return await flow.step("reserve", reserve)
        except SoldOut:
            (found,) = await asyncio.gather(flow.step("other", broken))
            return found

    assert await answer(app, await work.aenqueue()) == "mended"
    assert ran == ["reserve", "broken", "broken"]


async def test_what_an_outage_has_cut_off_is_not_skipped(app: App, ran: list[Any], sold: Any) -> None:
    """The tasks of a TaskGroup are cancelled, one of them in a loop: the next attempt goes through all."""
    faulty = FaultyStore(app.store)
    app.use_store(faulty.store)
    hangs = asyncio.Event()

    async def slow(n: int) -> None:
        ran.append(n)
        hangs.set()
        if ran.count(n) == 1 and n == 1:
            await asyncio.sleep(60)

    @app.task(max_attempts=3, retry=SOON)
    async def work() -> list[int]:
        flow = current_flow()

        async def loop() -> None:
            async for n in flow.iterate("rows", [1, 2], every=0):
                await flow.step("slow", slow, n)

        async def beside() -> None:
            await hangs.wait()
            faulty.lose_reply("record_steps", times=int(ran == [1]))
            await flow.step("beside", sold, 3)

        async with asyncio.TaskGroup() as group:
            group.create_task(loop())
            group.create_task(beside())
        return sorted(ran)

    assert await answer(app, await work.aenqueue()) == [1, 1, 2, 3]


async def test_an_outage_does_not_win(app: App) -> None:
    """The reply to a wait is lost: the timer still counts, and nobody waits for the signal for ever."""
    faulty = FaultyStore(app.store)
    app.use_store(faulty.store)

    @app.task(max_attempts=3, retry=SOON)
    async def work() -> str:
        flow = current_flow()
        if current_job().attempt == 1:
            faulty.lose_reply("await_signals")
        name, _ = await flow.first(packed=flow.wait_for("packed"), late=flow.sleep("20ms"))
        return name

    assert await answer(app, await work.aenqueue()) == "late"


# ── children ──


async def test_a_gather_does_not_adopt_a_foreign_job(app: App, ran: list[Any]) -> None:
    @app.task(retention="1h")
    async def pay(order: int) -> int:
        ran.append(order)
        return order

    @app.task(max_attempts=1)
    async def work() -> list[int]:
        return await current_flow().gather([pay.using(id="order-7").job(7)])

    foreign = await pay.using(id="order-7").aenqueue(1)
    await in_a_burst(app)
    job = await ended(app, await work.aenqueue())
    assert job.state is State.DEAD
    assert job.errors[-1].kind == JobExists.__name__
    assert await foreign.aresult(timeout=1) == 1
    assert ran == [1]


async def test_a_gather_finds_its_own_jobs_again(app: App, ran: list[Any]) -> None:
    @app.task
    async def pay(order: int) -> int:
        ran.append(order)
        return order

    @app.task
    async def work() -> list[int]:
        flow = current_flow()
        found = await flow.gather([pay.using(id="order-7").job(7)])
        await flow.wait_for("go")
        return found

    assert await answer(app, await work.aenqueue(), "go") == [7]
    assert ran == [7]


# ── undoing ──


@pytest.mark.parametrize(
    "end", [Discard, Cancel, ValueError, SystemExit, asyncio.CancelledError, GeneratorExit]
)
async def test_steps_are_undone_at_every_end_that_is_no_success(
    app: App, ran: list[Any], sold: Any, end: type[BaseException]
) -> None:
    @app.task(max_attempts=1)
    async def work() -> None:
        flow = current_flow()
        for n in (1, 2):
            await flow.step("sell", sold, n, undo=lambda sale: ran.append(f"not {sale}"))
        raise end("planned")

    state = State.CANCELLED if end is Cancel else State.DEAD
    assert await reason(app, await work.aenqueue(), state)
    assert ran == [1, 2, "not sold 2", "not sold 1"]


# ── versions ──


async def test_the_version_counts_though_a_helper_has_asked_for_the_flow_before(app: App) -> None:
    versions = ["1", "2"]

    @app.task
    async def work() -> str:
        current_flow()
        flow = current_flow(version=versions.pop(0))
        await flow.wait_for("go")
        return "done"

    why = await reason(app, await work.aenqueue(), State.PARKED, "go")
    assert "version '1'" in why


async def test_a_flow_that_began_without_a_version_does_not_become_one_of_another(app: App) -> None:
    versions: list[str | None] = [None, "2"]

    @app.task
    async def work() -> str:
        flow = current_flow(version=versions.pop(0))
        await flow.wait_for("go")
        return "done"

    why = await reason(app, await work.aenqueue(), State.PARKED, "go")
    assert "without a version" in why
