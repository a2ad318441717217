"""Odd programs: timeouts around several operations, pieces that are given up, tasks that never begin."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock import App, Discard, current_job
from penstock.core.job import Ref
from penstock.core.step_names import split_value, with_head
from penstock.stores.contract import StepEdit
from penstock.testing import inline
from penstock.workflows import branching, current_flow, current_sync_flow, failures
from penstock.workflows.failures import Failures
from tests.workflows.steps.conftest import ended

Slow = Callable[[int], Any]


# ── a timeout around several operations ──


async def by_group(flow: Any, slow: Slow) -> None:
    async with asyncio.TaskGroup() as group:
        for number in (1, 2):
            group.create_task(flow.step("a", slow, number, key=number))


async def by_gather(flow: Any, slow: Slow) -> None:
    await asyncio.gather(flow.step("a", slow, 1), flow.step("b", slow, 2))


async def by_wait(flow: Any, slow: Slow) -> None:
    task = asyncio.create_task(flow.step("a", slow, 1))
    _done, late = await asyncio.wait([task], timeout=0.1)
    for one in late:
        one.cancel()
        await asyncio.wait([one])
        raise TimeoutError


async def by_branches(flow: Any, slow: Slow) -> None:
    await flow.branches(x=flow.branches(a=flow.step("a", slow, 1), b=flow.step("a", slow, 2)))


async def by_branch_that_sleeps(flow: Any, slow: Slow) -> None:
    await flow.branches(a=flow.step("a", slow, 1), b=flow.sleep("1h"))


async def by_first(flow: Any, slow: Slow) -> None:
    await flow.first(a=flow.step("a", slow, 1), b=flow.sleep("1h"))


TOGETHER = [by_group, by_gather, by_wait, by_branches, by_branch_that_sleeps, by_first]


@pytest.mark.parametrize("together", TOGETHER)
def test_what_a_timeout_has_cut_off_together_stays_cut_off(
    app: App, ran: list[Any], together: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "_CUT_GRACE", 60)  # later runs may be as slow as they like

    async def slow(number: int) -> None:
        ran.append(number)
        await asyncio.Event().wait()

    @app.task(max_attempts=1)
    async def work() -> str:
        flow = current_flow()
        found = "all"
        try:
            async with asyncio.timeout(0.2):
                await together(flow, slow)
        except TimeoutError:
            found = "timeout"
        ran.append(found)
        await flow.sleep("1m")
        return found

    with inline(app) as box:
        assert ended(box, work).result(timeout=1) == "timeout"
    assert [one for one in ran if one != "timeout"] == sorted({1, 2}.intersection(ran)), "once each"
    assert ran.count("timeout") >= 2, "before the sleep and after it; how often it is resumed is not promised"


@pytest.mark.parametrize("together", [one for one in TOGETHER if one is not by_wait])  # it raises another
def test_what_was_cut_off_together_is_tried_again_if_the_attempt_ends_with_it(
    app: App, ran: list[Any], together: Any
) -> None:
    limits: list[asyncio.Timeout] = []

    async def slow(number: int) -> None:
        ran.append(number)
        if current_job().attempt == 2:
            return
        if number == 1:
            limits[-1].reschedule(asyncio.get_running_loop().time())
        await asyncio.Event().wait()

    @app.task(max_attempts=2)
    async def work() -> str:
        async with asyncio.timeout(None) as limit:
            limits.append(limit)
            await together(current_flow(), slow)
        return "done"

    with inline(app, raises=False) as box:
        assert ended(box, work).result(timeout=1) == "done"
    assert ran.count(1) == 2


def test_what_a_failed_group_cuts_off_is_never_stored(
    app: App, ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies at the end of the attempt would leave a task that counts as cancelled for good."""
    stored: list[list[str]] = []
    forget = Failures.forget

    def looks(failures: Failures, error: BaseException) -> Any:
        stored.append([name for name in failures._memory._names() if name.endswith("!cut")])
        return (yield from forget(failures, error))

    monkeypatch.setattr(Failures, "forget", looks)

    async def waits(flow: Any, begun: asyncio.Event) -> None:
        begun.set()
        ran.append(await flow.wait_for("go", timeout="1h"))

    async def fails(begun: asyncio.Event) -> None:
        await begun.wait()
        if current_job().attempt == 1:
            raise ValueError("not stored: it is no operation's")

    @app.task(max_attempts=2)
    async def work() -> str:
        flow, begun = current_flow(), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(waits(flow, begun))
            group.create_task(fails(begun))
        return "done"

    with inline(app, raises=False) as box:
        assert ended(box, work).result(timeout=1) == "done"
    assert stored == [[]]
    assert ran == [None]


def test_a_branch_does_nothing_new_behind_a_timeout_of_an_earlier_run(app: App, ran: list[Any]) -> None:
    async def slow() -> None:
        await asyncio.Event().wait()

    async def late() -> None:
        flow = current_flow()
        if not ran:
            await asyncio.Event().wait()
        await flow.step("late", ran.append, "late")

    @app.task
    async def work() -> str:
        flow = current_flow()
        try:
            async with asyncio.timeout(0.2):
                await flow.branches(a=flow.step("slow", slow), b=late)
        except TimeoutError:
            ran.append("timeout")
        await flow.sleep("1m")
        return "done"

    with inline(app) as box:
        assert ended(box, work).result(timeout=1) == "done"
    assert len(ran) > 1
    assert set(ran) == {"timeout"}, "in each run"


def test_a_timeout_of_a_group_counts_from_its_begin(
    app: App, ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later runs enter the group an hour before its timeout has passed: its tasks wait for it."""
    runs: list[int] = []
    had_ended: list[bool] = []  # of each run: whether the task had when the timeout passed
    begun = asyncio.Event()
    monkeypatch.setattr(failures, "_CUT_GRACE", 0)
    monkeypatch.setattr(Failures, "_age", lambda _failures: 3_600_000 if len(runs) == 1 else 0)

    async def long() -> None:
        ran.append("long")
        begun.set()
        await asyncio.Event().wait()

    @app.task(max_attempts=1)
    async def work() -> str:
        flow, found = current_flow(), "all"
        runs.append(1)
        try:
            async with asyncio.timeout(None) as limit:
                await flow.step("first", str, 1)
                async with asyncio.TaskGroup() as group:
                    task = group.create_task(flow.step("long", long))
                    await begun.wait()
                    for _ in range(20):
                        await asyncio.sleep(0)
                    had_ended.append(task.done())
                    limit.reschedule(asyncio.get_running_loop().time())
                    await asyncio.Event().wait()
        except TimeoutError:
            found = "timeout"
        await flow.sleep("1m")
        return found

    with inline(app) as box:
        assert ended(box, work).result(timeout=1) == "timeout"
    assert ran == ["long"]
    assert len(runs) > 1
    assert not any(had_ended)


async def test_a_cut_that_an_operator_has_replaced_is_a_cut(app: App, ran: list[Any]) -> None:
    @app.task(max_attempts=1)
    async def work() -> str:
        flow = current_flow()
        task = asyncio.create_task(flow.step("a", asyncio.Event().wait, changing=True))
        done, _late = await asyncio.wait([task], timeout=0.1)
        task.cancel()
        await asyncio.wait([task])
        ran.append("in time" if done else "late")
        await flow.sleep("1m")
        return "done"

    with inline(app) as box, pytest.MonkeyPatch.context() as patch:
        patch.setattr(failures, "_CUT_GRACE", 60)
        handle = await work.aenqueue()
        ref = Ref(handle.queue, handle.id)
        await box.arun()
        steps = await app.store.steps(ref)
        (cut,) = [step for step in steps if step.name.endswith("!cut")]
        head, _ = split_value(cut.value or b"")
        await app.store.edit_steps(ref, [StepEdit(cut.name, with_head(head, b"null"))])
        await box.arun_all()
        assert await handle.aresult(timeout=1) == "done"
    assert len(ran) > 1
    assert set(ran) == {"late"}, "in each run"


# ── tasks ──


def test_a_task_that_is_cancelled_before_it_begins_was_not_forgotten(app: App, ran: list[Any]) -> None:
    begun = asyncio.Event()

    async def slow() -> None:
        ran.append("slow")
        begun.set()
        await asyncio.Event().wait()

    @app.task(max_attempts=1)
    async def work() -> str:
        flow = current_flow()
        task = asyncio.create_task(flow.step("a", slow))
        await flow.step("b", begun.wait)  # stored: the next run cancels before the task begins
        task.cancel()
        await asyncio.wait([task])
        await flow.sleep("1m")
        return "done"

    with inline(app) as box:
        assert ended(box, work).result(timeout=1) == "done"
    assert ran == ["slow"]


# ── what first has given up ──


class Clock:
    """A clock that stands still between two turns of a test."""

    def __init__(self) -> None:
        self._now = 0.0
        self._read = asyncio.Event()

    def monotonic(self) -> float:
        self._read.set()
        return self._now

    async def turn(self, seconds: float) -> None:
        """Let it go on, and wait until somebody has read it."""
        self._now += seconds
        self._read.clear()
        await self._read.wait()


def test_what_was_given_up_is_undone_however_slow_its_code_is(
    app: App, ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the time from one operation to the next, and here takes more in all."""
    clock, far = Clock(), asyncio.Event()
    monkeypatch.setattr(branching, "time", clock)

    async def loser() -> None:
        flow = current_flow()
        for number in range(3):
            await flow.step("a", str, number, undo=ran.append)
            if far.is_set():
                await clock.turn(0.6 * branching._PASSING)
        far.set()
        await asyncio.Event().wait()

    async def other() -> None:
        await far.wait()

    @app.task
    async def work() -> None:
        flow = current_flow()
        await flow.first(loser=loser(), other=flow.step("other", other))
        await flow.sleep("1h")
        raise Discard("no")

    with inline(app, raises=False) as box:
        ended(box, work)
    assert ran == ["2", "1", "0"]


def test_a_timeout_while_the_others_are_given_up_does_not_change_who_was_first(app: App) -> None:
    """Who was first is stored by then: the run begins again, and nobody waits for what has ended."""

    @app.task(max_attempts=1)
    async def work() -> str:
        flow = current_flow()

        async def loser(limit: asyncio.Timeout) -> None:
            try:
                await flow.sleep("1d")
            finally:
                limit.reschedule(asyncio.get_running_loop().time())
                for _ in range(20):
                    await asyncio.sleep(0)

        try:
            async with asyncio.timeout(None) as limit:
                found, _ = await flow.first(loser=loser(limit), other=flow.sleep("1h"))
        except TimeoutError:
            found = "timeout"
        await flow.sleep("1m", key=found)
        return found

    with inline(app, patience="20s") as box:
        assert ended(box, work).result(timeout=1) == "other"


@pytest.mark.parametrize("end", ["fails", "cancelled"])
@pytest.mark.parametrize("how", ["won", "cut", "threads"])
def test_steps_that_were_given_up_are_undone_too(app: App, ran: list[Any], how: str, end: str) -> None:
    far = asyncio.Event()

    def undo(value: str) -> None:
        ran.append(value)

    async def loser() -> None:
        flow = current_flow()
        await flow.step("a", str, "loser", undo=undo)
        far.set()
        await flow.sleep("1d")

    async def slow(limit: asyncio.Timeout) -> None:
        await far.wait()
        limit.reschedule(asyncio.get_running_loop().time())
        await asyncio.Event().wait()

    def loser_in_thread() -> None:
        flow = current_sync_flow()
        flow.step("a", str, "loser", undo=undo)
        flow.sleep("1d")

    async def work() -> None:
        flow = current_flow()
        try:
            async with asyncio.timeout(None) as limit:
                other = flow.sleep("1h") if how == "won" else flow.step("slow", slow, limit, changing=True)
                await flow.first(loser=loser(), other=other)
        except TimeoutError:
            pass
        await flow.sleep("1m")
        await flow.step("last", str, "last", undo=undo)
        if end == "cancelled":
            await flow.sleep("1d")
        raise Discard("no")

    def work_in_thread() -> None:
        flow = current_sync_flow()
        flow.first(loser=loser_in_thread, other=lambda: flow.sleep("1h"))
        flow.sleep("1m")
        flow.step("last", str, "last", undo=undo)
        if end == "cancelled":
            flow.sleep("1d")
        raise Discard("no")

    task: Any = app.task(work_in_thread if how == "threads" else work)
    with inline(app, raises=False) as box:
        handle = task.enqueue()
        box.run()
        box.advance("2h")
        if end == "cancelled":
            handle.cancel()
        box.run_all()
    assert ran == ["last", "loser"]


def test_a_thread_that_is_given_up_does_not_go_on(app: App, ran: list[Any]) -> None:
    @app.task(timeout=20)
    def work() -> str:
        flow = current_sync_flow()

        def polls() -> None:
            while True:
                flow.step("poll", ran.append, "poll")
                flow.sleep(0.05)

        return flow.first(polls=polls, late=lambda: flow.sleep(0.3))[0]

    with inline(app) as box:
        assert ended(box, work).result(timeout=1) == "late"


@pytest.mark.parametrize("together", ["first", "branches"])
def test_a_thread_that_begins_to_wait_late_is_waited_for(app: App, ran: list[Any], together: str) -> None:
    """The flow is suspended for the shorter of two sleeps, though only the longer one had begun."""
    waits = threading.Event()

    @app.task
    def work() -> None:
        flow = current_sync_flow()

        def long() -> None:
            waits.set()
            flow.sleep("1d")

        def short() -> None:
            waits.wait(60)
            time.sleep(0.1)  # code of the user, between two operations
            flow.sleep("1h")
            ran.append("short")

        getattr(flow, together)(long=long, short=short)

    with inline(app) as box:
        work.enqueue()
        box.run()
        box.advance("2h")
    assert ran == ["short"]
