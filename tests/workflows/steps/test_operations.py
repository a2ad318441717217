"""Operations of a flow at the same time, in loops, under timeouts; what is misused, and what is set aside."""

from __future__ import annotations

import asyncio
import functools
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock import App, State, current_job
from penstock.client.handle import Handle
from penstock.core.errors import ArgumentError
from penstock.testing import inline
from penstock.workflows import current_flow, current_sync_flow, failures
from tests.workflows.steps.conftest import ended


def names_of(app: App, handle: Handle[Any]) -> set[str]:
    """The names of the stored operations."""
    return {step.name for step in app.store.sync.steps(handle.job().ref)}


class SoldOut(Exception):
    """An error whose constructor takes other arguments than the text."""

    def __init__(self, item: str, wanted: int) -> None:
        super().__init__(f"no {item}")
        self.item, self.wanted = item, wanted


# ── at the same time ──


def test_branches_number_for_themselves(app: App) -> None:
    @app.task
    async def work() -> list[dict[str, Any]]:
        flow = current_flow()

        async def slow() -> str:
            await flow.step("x", str, 1)
            await flow.sleep("1h")
            return await flow.step("y", str, "slow")

        async def fast() -> str:
            await flow.sleep("30m")
            return await flow.step("y", str, "fast")

        return [await flow.branches(a=slow(), b=fast) for _ in range(2)]

    with inline(app) as box:
        handle = ended(box, work)
        assert handle.result(timeout=1) == [{"a": "slow", "b": "fast"}] * 2
        names = names_of(app, handle)
    assert {"!step/a/y", "!step/b/y", "!step/a#2/y", "!sleep/a/", "!sleep/b#2/"} <= names


def test_branches_in_threads(app: App) -> None:
    @app.task
    def work() -> Any:
        flow = current_sync_flow()

        def slow() -> str:
            flow.sleep("1h")
            return flow.step("y", str, "slow")

        found = flow.branches(a=slow, b=lambda: flow.step("y", str, "fast"))
        return found, flow.first(go=lambda: flow.wait_for("go"), late=lambda: flow.sleep("2h"))

    with inline(app) as box:
        handle = ended(box, work)
        assert handle.result(timeout=1) == ({"a": "slow", "b": "fast"}, ("late", None))
        assert {"!step/a/y", "!step/b/y", "!sleep/late/"} <= names_of(app, handle)


def test_all_branches_run_to_their_end_before_an_error_is_raised(app: App, ran: list[Any]) -> None:
    @app.task(max_attempts=1)
    async def work() -> str:
        flow = current_flow()

        async def fails(what: str) -> None:
            raise ValueError(what)

        try:
            await flow.branches(a=fails("a"), b=flow.step("b", asyncio.sleep, 0.02))
        except ValueError as error:
            ran.append(str(error))
        try:
            await flow.branches(a=fails("a"), b=fails("b"))
        except* ValueError as group:
            ran.append(len(group.exceptions))
        return "done"

    with inline(app) as box:
        handle = ended(box, work)
        assert handle.result(timeout=1) == "done"
        assert "!step/b/b" in names_of(app, handle)
    assert ran == ["a", 2]


@pytest.mark.parametrize("early", [True, False])
def test_the_first_of_several_waits_is_stored(app: App, early: bool) -> None:
    @app.task
    async def work() -> list[Any]:
        flow = current_flow()
        found = await flow.first(go=flow.wait_for("go"), late=flow.sleep("1h"))
        await flow.sleep("1d")
        return list(found)

    with inline(app) as box:
        handle = work.enqueue()
        box.run()
        if early:
            app.signal("go", data=7)
        box.advance("2h")
        assert app.signal("go", data=8) == "stored", "nothing waits for it any more"
        box.run_all()
        assert handle.result(timeout=1) == (["go", 7] if early else ["late", None])


def test_a_release_that_no_longer_has_the_winner_is_parked(app: App, ran: list[Any]) -> None:
    @app.task
    async def work() -> None:
        flow = current_flow()
        ran.append("run")
        await flow.first(**{"late" if len(ran) < 3 else "other": flow.sleep("1h")})
        await flow.sleep("1h")

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.advance("150m")
        assert handle.status() is State.PARKED
        assert "'late'" in (handle.job().reason or "")


@pytest.mark.parametrize("operation", ["sleep", "step", "gather", "wait_for"])
def test_the_same_name_in_two_tasks_is_refused_before_it_runs(
    app: App, operation: str, ran: list[Any]
) -> None:
    @app.task
    async def child() -> None:
        ran.append("child")

    @app.task
    async def work() -> None:
        flow = current_flow()
        calls: dict[str, Callable[[], Any]] = {
            "sleep": lambda: flow.sleep("1h"),
            "step": lambda: flow.step("a", ran.append, "step"),
            "gather": lambda: flow.gather([child.job()]),
            "wait_for": lambda: flow.wait_for("go"),
        }

        begun = asyncio.Event()

        async def first() -> None:
            begun.set()
            await calls[operation]()

        async def second() -> None:
            await begun.wait()
            await calls[operation]()

        await asyncio.gather(first(), second())

    with inline(app, raises=False) as box:
        handle = ended(box, work)
        assert handle.status() is State.DEAD
        for way_out in ("key=", "flow.branches", "asyncio.timeout"):
            assert way_out in (handle.job().reason or "")
    assert len(ran) <= 1


def test_keys_tell_tasks_apart(app: App) -> None:
    @app.task
    async def work() -> list[Any]:
        flow = current_flow()

        async def one(name: str) -> Any:
            await flow.sleep("1h", key=name)
            return await flow.step("a", str, name, key=name)

        return list(await asyncio.gather(*map(one, ["x", "y/#!"])))

    with inline(app) as box:
        handle = ended(box, work)
        assert handle.result(timeout=1) == ["x", "y/#!"]
        assert "!step/a=y%2F%23%21" in names_of(app, handle)


# ── loops ──


@pytest.mark.parametrize("threads", [False, True])
def test_a_break_ends_the_scope_of_a_loop_at_once(app: App, threads: bool) -> None:
    @app.task(retention="1d")
    async def work() -> None:
        flow = current_flow()
        async for row in flow.iterate("rows", range(3)):
            await flow.step("a", str, row)
            break
        await flow.step("a", str, "behind")

    @app.task(retention="1d")
    def in_thread() -> None:
        flow = current_sync_flow()
        for row in flow.iterate("rows", range(3)):
            flow.step("a", str, row)
            break
        flow.step("a", str, "behind")

    with inline(app) as box:
        handle = ended(box, in_thread if threads else work)
        assert {"!step/rows[1]/a", "!step/a"} <= names_of(app, handle)


def test_inner_cursors_go_with_the_items_of_the_outer_loop(app: App) -> None:
    @app.task
    async def work() -> int:
        flow = current_flow()
        async for row in flow.iterate("rows", range(20), every=0):
            async for _ in flow.iterate("cells", range(2), every=0):
                pass
            if row == 19:
                return len(current_job().job.checkpoint or flow.checkpoint or b"")
        return 0

    with inline(app) as box:
        assert ended(box, work).result(timeout=1) < 200


# ── failures and timeouts ──


def test_a_caught_failure_is_raised_again_with_its_class_and_attributes(app: App, ran: list[Any]) -> None:
    def reserve() -> None:
        ran.append("reserve")
        raise SoldOut("book", 3)

    @app.task
    async def work() -> list[Any]:
        flow = current_flow()
        try:
            await flow.step("reserve", reserve)
        except SoldOut as error:
            await flow.sleep("1h")
            return [str(error), error.item, error.wanted, len(error.args)]
        return []

    with inline(app) as box:
        assert ended(box, work).result(timeout=1) == ["no book", "book", 3, 1]
    assert ran == ["reserve"]


def test_a_failed_compensation_does_not_bring_back_what_it_compensates(app: App, ran: list[Any]) -> None:
    def reserve() -> None:
        ran.append("reserve")
        if ran == ["reserve"]:
            raise SoldOut("book", 3)

    def refund() -> None:
        ran.append("refund")
        if ran.count("refund") < 3:
            raise OSError("the bank is away")

    @app.task
    async def work() -> str:
        flow = current_flow()
        try:
            await flow.step("reserve", reserve)
        except SoldOut:
            await flow.step("refund", refund)
            return "refunded"
        return "reserved"

    with inline(app, raises=False) as box:
        assert ended(box, work).result(timeout=1) == "refunded"
    assert ran == ["reserve", "refund", "refund", "refund"]


@pytest.mark.parametrize("wrapped", ["itself", "cause", "context", "group"])
def test_a_failure_that_ends_the_attempt_is_forgotten(app: App, ran: list[Any], wrapped: str) -> None:
    def fails() -> str:
        ran.append("try")
        if len(ran) < 3:
            raise OSError("not yet")
        return "done"

    @app.task
    async def work() -> str:
        flow = current_flow()
        try:
            return await flow.step("a", fails)
        except OSError as error:
            if wrapped == "itself":
                raise
            if wrapped == "context":
                raise ValueError("wrapped")  # noqa: B904
            if wrapped == "group":
                raise ExceptionGroup("wrapped", [error]) from None
            raise ValueError("wrapped") from error

    with inline(app, raises=False) as box:
        assert ended(box, work).result(timeout=1) == "done"
    assert len(ran) == 3


def test_a_failure_that_was_caught_before_the_attempt_failed_stays(app: App, ran: list[Any]) -> None:
    def fails() -> None:
        ran.append("try")
        raise OSError("no")

    @app.task
    async def work() -> str:
        flow = current_flow()
        try:
            await flow.step("a", fails)
        except OSError:
            pass
        if current_job().attempt == 1:
            raise ValueError("something else")
        return "done"

    with inline(app, raises=False) as box:
        assert ended(box, work).result(timeout=1) == "done"
    assert ran == ["try"]


@pytest.mark.parametrize("how", ["timeout", "wait_for"])
def test_a_step_that_was_cut_off_is_cut_off_in_each_run(
    app: App, ran: list[Any], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "_CUT_GRACE", 60)  # later runs may be as slow as they like

    async def slow() -> None:
        ran.append("charge")
        await asyncio.Event().wait()

    @app.task
    async def work() -> str:
        flow = current_flow()
        await flow.step("begin", str, 1)  # what is stored was read then: the next step begins at once
        try:
            if how == "wait_for":
                await asyncio.wait_for(flow.step("charge", slow), 0.05)
            else:
                async with asyncio.timeout(0.05):
                    await flow.step("charge", slow)
        except TimeoutError:
            await flow.sleep("1h")
            return "gave up"
        return "charged"

    with inline(app) as box:
        assert ended(box, work).result(timeout=1) == "gave up"
    assert ran == ["charge"]


def test_a_task_group_fails_in_the_same_way_in_each_run(app: App, ran: list[Any]) -> None:
    async def fails() -> None:
        ran.append("fails")
        raise SoldOut("book", 1)

    async def slow() -> None:
        ran.append("slow")
        await asyncio.Event().wait()

    @app.task
    async def work() -> str:
        flow = current_flow()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(flow.step("b", slow))
                group.create_task(flow.step("a", fails))
        except* SoldOut:
            ran.append("caught")
        await flow.sleep("1h")
        return "done"

    with inline(app) as box:
        assert ended(box, work).result(timeout=1) == "done"
    assert ran[:2] == ["slow", "fails"], "once each"
    assert len(ran) > 3
    assert set(ran[2:]) == {"caught"}, "in each run"


# ── what the code asks for ──


def test_what_differs_from_run_to_run_is_said_so(app: App) -> None:
    @app.task
    async def work() -> list[float]:
        flow = current_flow()
        number = await flow.step("a", abs, random.random(), changing=True)
        await flow.step("b", lambda _: None, object())  # cannot be compared
        await flow.sleep(random.random() * 1000, changing=True)
        await flow.sleep("1h")
        return [number, await flow.step("a", abs, random.random(), changing=True)]

    with inline(app) as box:
        assert len(ended(box, work).result(timeout=1)) == 2


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (lambda flow: flow.step("a", str, 1), lambda flow: flow.step("a", str, 2), "the arguments of str"),
        (lambda flow: flow.step("a", str, 1), lambda flow: flow.step("a", int, 1), "it was str, and is int"),
        (lambda flow: flow.sleep("1m"), lambda flow: flow.sleep("1d"), "the arguments of sleep"),
        (
            lambda flow: flow.step("a", functools.partial(int, base=8), "7"),
            lambda flow: flow.step("a", functools.partial(int, base=10), "7"),
            "the arguments of int",
        ),
    ],
    ids=["arguments", "function", "duration", "partial"],
)
def test_a_release_that_asks_for_something_else_is_parked(
    app: App, before: Callable[[Any], Any], after: Callable[[Any], Any], says: str, ran: list[Any]
) -> None:
    @app.task
    async def work() -> None:
        flow = current_flow()
        ran.append("run")
        await (before if len(ran) == 1 else after)(flow)
        await flow.sleep("2h", key="second")

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.advance("3h")
        assert handle.status() is State.PARKED
        reason = handle.job().reason or ""
        assert "the code no longer asks what is stored" in reason
        assert says in reason


def test_a_flow_that_began_without_a_version_is_not_of_the_next(app: App, ran: list[Any]) -> None:
    @app.task
    async def work() -> None:
        ran.append("run")
        flow = current_flow(version=None if len(ran) == 1 else "2")
        await flow.sleep("1h")

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.advance("2h")
        assert handle.status() is State.PARKED
        assert "without a version" in (handle.job().reason or "")


def test_a_version_counts_though_a_helper_has_used_the_flow_before(app: App, ran: list[Any]) -> None:
    @app.task
    async def work() -> str:
        ran.append("run")
        await current_flow().step("audit", str, "by a helper")
        await current_flow(version="1" if len(ran) < 3 else "2").sleep("1h")
        await current_flow().sleep("1h")
        return "done"

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.advance("3h")
        assert handle.status() is State.PARKED
        assert "began with version '1'" in (handle.job().reason or "")


# ── misuse ──


def test_an_operation_that_is_never_awaited_fails_the_job(app: App) -> None:
    @app.task
    async def work() -> None:
        current_flow().sleep("1h")

    with inline(app, raises=False) as box:
        handle = ended(box, work)
        assert handle.status() is State.DEAD
        assert "sleep was never awaited" in (handle.job().reason or "")


def test_a_function_that_returns_while_a_step_runs_fails_the_job(app: App, ran: list[Any]) -> None:
    @app.task
    async def work() -> None:
        flow = current_flow()
        ran.append(asyncio.ensure_future(flow.step("a", asyncio.sleep, 0.05)))
        await asyncio.sleep(0)

    with inline(app, raises=False) as box:
        handle = ended(box, work)
        assert handle.status() is State.DEAD
        assert "await what it starts" in (handle.job().reason or "")


def test_a_thread_without_the_context_of_the_job_has_no_flow(app: App, ran: list[Any]) -> None:
    @app.task(retention="1d")
    def work() -> None:
        flow = current_sync_flow()

        def use() -> None:
            try:
                flow.step("a", ran.append, "ran")
            except Exception as error:
                ran.append(str(error))

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()

    with inline(app) as box:
        assert ended(box, work).status() is State.COMPLETED
    assert "copy_context" in ran[0]


# ── signals and stored values that do not fit ──


def test_a_signal_that_does_not_fit_is_set_aside_and_the_wait_goes_on(app: App) -> None:
    @app.task
    async def work() -> list[int]:
        numbers: list[int] = await current_flow().wait_for("go", of=list[int])
        await current_flow().sleep("1h")
        return numbers

    with inline(app) as box:
        app.signal("go", data={"no": "list"}, flow="order")
        handle = work.using(id="order").enqueue()
        box.run()
        assert handle.status() is State.SUSPENDED
        steps = app.store.sync.steps(handle.job().ref, names=["!wait/go!of"])
        assert [step.value for step in steps] == [b'{"type":"array","items":{"type":"integer"}}']
        app.signal("go", data=[7])
        box.run_all()
        assert handle.result(timeout=1) == [7]
        assert "!wait/go!aside1" in names_of(app, handle)


async def test_a_signal_that_does_not_fit_a_wait_is_not_sent(app: App) -> None:
    @app.task
    async def work(key: str) -> list[int]:
        numbers: list[int] = await current_flow().wait_for("go", key=key, of=list[int])
        return numbers

    with inline(app) as box:
        first, second = (work.using(id=id).enqueue("k") for id in ("first", "second"))
        await box.arun()
        with pytest.raises(ArgumentError, match=r"what job second waits for: .*`\$\[1\]`; nothing was sent"):
            app.signal("go", key="k", data=[1, "two"], flow="second")
        with pytest.raises(ArgumentError, match=r"expected array, got object; nothing was sent"):
            await app.asignal("go", key="k", data={})
        assert await app.store.signal_waiters("go", "k")
        assert await app.asignal("go", key="k", data={}, flow="another") == "stored"
        assert await app.asignal("go", key="other", data={}) == "stored"
        assert await app.asignal("go", key="k", data=[1], flow="second") == "received"
        await box.arun()
        assert await second.aresult(timeout=1) == [1]
        assert await app.asignal("go", key="k", data=[2]) == "received"
        await box.arun()
        assert await first.aresult(timeout=1) == [2]
        assert await app.asignal("go", key="k", data={}) == "stored", "no flow waits any more"


def test_a_stored_result_that_no_longer_fits_parks_the_job(app: App, ran: list[Any]) -> None:
    def first() -> str:
        return "text"

    def later() -> int:
        return 1

    later.__qualname__ = "first"

    @app.task
    async def work() -> None:
        ran.append("run")
        await current_flow().step("a", first if len(ran) == 1 else later)
        await current_flow().sleep("1h")

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.advance("2h")
        assert handle.status() is State.PARKED
        assert "no longer fits the code" in (handle.job().reason or "")
    assert len(ran) == 2, "no attempt is burnt"
