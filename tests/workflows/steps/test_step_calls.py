"""Where the functions of steps run: plain ones in threads, if wanted in processes, async ones on the loop."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from penstock import App, State, Worker, current_job
from penstock.config import Config
from penstock.core.errors import StepFailed
from penstock.retry import fixed
from penstock.testing import inline
from penstock.workflows import current_flow, current_sync_flow
from tests.workflows.steps import step_functions as functions
from tests.workflows.steps.conftest import Running, until

VALUE: ContextVar[str] = ContextVar("VALUE", default="none")


async def test_a_plain_function_does_not_block_the_event_loop(app: App) -> None:
    go = threading.Event()

    @app.task
    async def work() -> bool:
        flow = current_flow()
        asyncio.get_running_loop().call_soon(go.set)  # only a loop that runs sets it
        return await flow.step("wait", go.wait, 60)

    with inline(app) as box:
        handle = await work.aenqueue()
        await box.arun_all()
        assert await handle.aresult(timeout=1) is True


def test_a_thread_has_the_context_and_the_job_of_its_task(app: App) -> None:
    def look() -> list[str]:
        return [VALUE.get(), current_job().id, threading.current_thread().name.rpartition("-")[0]]

    @app.task
    async def work() -> list[str]:
        VALUE.set("set by the task")
        return await current_flow().step("look", look)

    with inline(app) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.result(timeout=1) == ["set by the task", handle.id, "penstock-step"]


def test_a_function_may_run_on_the_event_loop(app: App) -> None:
    @app.task
    async def work() -> list[bool]:
        flow, here = current_flow(), threading.get_ident()

        async def own() -> bool:
            return threading.get_ident() == here

        return [
            await flow.step("plain", lambda: threading.get_ident() == here),
            await flow.step("here", lambda: threading.get_ident() == here, run_in="async"),
            await flow.step("async", own),
            await flow.step("lambda", lambda: own()),
        ]

    with inline(app) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.result(timeout=1) == [False, True, True, True]


async def test_the_timeout_of_the_attempt_interrupts_the_thread(running: Running, ran: list[Any]) -> None:
    def slow() -> None:
        try:
            for _ in range(6_000):
                time.sleep(0.01)
        except BaseException as error:
            ran.append(type(error).__name__)
            raise

    @running.app.task(timeout=0.2, max_attempts=1)
    async def work() -> None:
        await current_flow().step("slow", slow)

    await running.start()
    handle = await work.aenqueue()
    await until(handle.astatus, State.DEAD)
    assert ran == ["AttemptTimeout"]
    await running.stop()


def test_a_timeout_of_the_code_leaves_the_function_alone_and_the_flow_waits_for_it(
    app: App, ran: list[Any]
) -> None:
    go = threading.Event()

    def charge(loop: asyncio.AbstractEventLoop, limit: asyncio.Timeout) -> None:
        loop.call_soon_threadsafe(limit.reschedule, 0)  # over as soon as the function runs
        go.wait(60)
        ran.append("charged")

    @app.task
    async def work() -> str:
        flow = current_flow()
        try:
            async with asyncio.timeout(None) as limit:
                await flow.step("charge", charge, asyncio.get_running_loop(), limit)
        except TimeoutError:
            go.set()
            await flow.sleep("1h")
            ran.append("resumed")
        return "done"

    with inline(app) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.result(timeout=1) == "done"
    assert ran == ["charged", "resumed"]


def test_undo_functions_run_in_threads_too(app: App, ran: list[Any]) -> None:
    @app.task(max_attempts=1)
    async def work() -> None:
        flow = current_flow()
        await flow.step("a", str, 1, undo=lambda _: ran.append(threading.current_thread().name[:13]))
        raise OSError

    with inline(app, raises=False) as box:
        work.enqueue()
        box.run_all()
    assert ran == ["penstock-step"]


# ── ends of threads ──


async def test_a_function_that_has_not_begun_at_the_timeout_of_the_code_never_runs(
    app: App, ran: list[Any]
) -> None:
    go = threading.Event()

    @app.task(max_attempts=1)
    async def work() -> bool:
        flow = current_flow()

        async def holds_the_thread() -> None:
            await flow.step("hold", go.wait, 60)

        async def waits_behind_it() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await flow.step("late", ran.append, "late")
            go.set()

        await flow.branches(a=holds_the_thread(), b=waits_behind_it())
        await flow.step("next", ran.append, "next")  # the same thread has passed the late one
        return True

    worker = Worker(app, concurrency=1)
    run = asyncio.ensure_future(worker.run())
    handle = await work.aenqueue()
    await until(handle.astatus, State.COMPLETED)
    worker.stop()
    await run
    assert ran == ["next"]


async def test_a_function_has_the_grace_of_threads_to_notice(app: App, ran: list[Any]) -> None:
    def heeds() -> None:
        while not current_job().cancelled:
            time.sleep(0.01)
        ran.append("noticed")

    @app.task(timeout=0.1, max_attempts=1)
    async def work() -> None:
        await current_flow().step("heeds", heeds)

    await _dead_of(app, work, Config(thread_grace=60_000, kill_grace=600_000))
    assert ran == ["noticed"]


async def test_code_goes_on_after_the_thread_has_ended_though_it_is_interrupted_again(
    app: App, ran: list[Any]
) -> None:
    again = threading.Event()

    def cleans_up() -> None:
        try:
            while True:
                time.sleep(0.01)
        finally:
            ran.append(again.wait(60))

    @app.task(timeout=0.1, max_attempts=1)
    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        seen: list[int] = []

        def look() -> None:
            if task.cancelling() > 1:
                again.set()
            elif not seen:
                asyncio.get_running_loop().call_later(0.01, look)

        look()
        try:
            await current_flow().step("cleans up", cleans_up)
        finally:
            seen.append(1)
            ran.append("the code goes on")

    await _dead_of(app, work, Config(thread_grace=0, cleanup_grace=100))
    assert ran == [True, "the code goes on"]


async def test_an_interrupt_ends_also_what_nobody_waits_for_before_the_next_attempt(
    running: Running, ran: list[Any]
) -> None:
    def slow(loop: asyncio.AbstractEventLoop, limit: asyncio.Timeout) -> None:
        loop.call_soon_threadsafe(limit.reschedule, 0)  # over as soon as the function runs
        try:
            for _ in range(6_000):
                time.sleep(0.01)
        finally:
            ran.append("ended")

    @running.app.task(timeout=1, max_attempts=2, retry=fixed("10ms"))
    async def work() -> bool:
        ran.append(current_job().attempt)
        if current_job().attempt == 1:
            try:
                async with asyncio.timeout(None) as limit:
                    await current_flow().step("slow", slow, asyncio.get_running_loop(), limit)
            except TimeoutError:
                await asyncio.Event().wait()
        return True

    await running.start()
    handle = await work.aenqueue()
    await until(handle.astatus, State.COMPLETED)
    await running.stop()
    assert ran == [1, "ended", 2]


async def test_a_job_completes_after_what_nobody_waits_for(running: Running, ran: list[Any]) -> None:
    go = threading.Event()

    def charge(loop: asyncio.AbstractEventLoop, limit: asyncio.Timeout) -> None:
        loop.call_soon_threadsafe(limit.reschedule, 0)  # over as soon as the function runs
        go.wait(60)
        ran.append("charged")

    @running.app.task
    async def work() -> bool:
        try:
            async with asyncio.timeout(None) as limit:
                await current_flow().step("charge", charge, asyncio.get_running_loop(), limit)
        except TimeoutError:
            ran.append("returns")
            threading.Timer(0.1, go.set).start()
        return True

    await running.start()
    handle = await work.aenqueue()
    await until(handle.astatus, State.COMPLETED)
    assert ran == ["returns", "charged"]
    await running.stop()


async def _dead_of(app: App, task: Any, config: Config) -> None:
    """Run a job of this task to its death."""
    worker = Worker(app, concurrency=2, config=config)
    run = asyncio.ensure_future(worker.run())
    handle = await task.aenqueue()
    await until(handle.astatus, State.DEAD)
    worker.stop()
    await run


# ── processes ──


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_step_in_a_process(app: App, kind: str, ran: list[Any]) -> None:
    def outcomes(step: Callable[..., Any]) -> list[Any]:
        return [
            step("add", functions.add, 1, right=2, run_in="process"),
            step("pid", functions.own_pid, run_in="process"),
            step("refuse", functions.refuse, run_in="process"),
        ]

    @app.task
    async def work() -> list[Any]:
        first, second, third = outcomes(current_flow().step)
        found = [await first, await second]
        try:
            await third
        except functions.Refused as error:
            found += [error.item, error.wanted]
        return found

    @app.task
    def in_thread() -> list[Any]:
        flow = current_sync_flow()
        found = [flow.step("add", functions.add, 1, right=2, run_in="process")]
        found.append(flow.step("pid", functions.own_pid, run_in="process"))
        try:
            flow.step("refuse", functions.refuse, run_in="process")
        except functions.Refused as error:
            found += [error.item, error.wanted]
        return found

    with inline(app) as box:
        handle = (work if kind == "async" else in_thread).enqueue()
        box.run_all()
        total, pid, item, wanted = handle.result(timeout=1)
    assert (total, item, wanted) == (3, "book", 3)
    assert pid != os.getpid()


def test_a_process_that_dies_is_a_failure_that_may_be_tried_again(app: App, tmp_path: Path) -> None:
    @app.task(max_attempts=1)
    async def work() -> str:
        flow = current_flow()
        mark = str(tmp_path / "mark")
        await flow.step("once", functions.die_once, mark, run_in="process", attempts=2, retry_delay="10ms")
        return await flow.step("die", functions.die, run_in="process")

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.status() is State.DEAD
        message = handle.job().errors[-1].message
    assert "the process of die ended without an answer: killed by SIGKILL" in message


def test_what_cannot_go_to_a_process_is_refused_before_it_runs(app: App, ran: list[Any]) -> None:
    @app.task
    async def work() -> None:
        await current_flow().step("a", lambda: ran.append(1), run_in="process")

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.status() is State.DEAD
        assert "cannot run in a process" in (handle.job().reason or "")
    assert not ran


async def test_an_interrupted_step_kills_its_process(running: Running, tmp_path: Path) -> None:
    path = tmp_path / "pid"

    @running.app.task(max_attempts=1)
    async def work() -> None:
        await current_flow().step("a", functions.sleeps, str(path), run_in="process")

    async def begun() -> bool:
        return path.exists() and bool(path.read_text())

    async def gone() -> bool:
        return not Path(f"/proc/{path.read_text()}").exists()

    await running.start()
    handle = await work.aenqueue()
    await until(begun, True)
    await handle.acancel()
    await until(handle.astatus, State.CANCELLED)
    await until(gone, True)
    await running.stop()


@pytest.mark.parametrize(
    ("name", "why"), [("later", "returns a coroutine"), ("add", "cannot run in a process: ")]
)
def test_a_call_that_cannot_go_to_a_process_is_refused_before_it_runs(app: App, name: str, why: str) -> None:
    @app.task
    async def work() -> None:
        await current_flow().step("a", getattr(functions, name), object(), right=1, run_in="process")

    with inline(app, raises=False) as box:
        handle = work.enqueue()
        box.run_all()
        assert handle.status() is State.DEAD
        job = handle.job()
    assert job is not None
    assert why in (job.reason or "")


def test_a_process_knows_its_job_and_ends_without_waiting_for_processes_of_its_own(app: App) -> None:
    @app.task(max_attempts=1)
    async def work() -> list[Any]:
        flow = current_flow()
        found: list[Any] = [await flow.step("id", functions.own_job, run_in="process")]
        try:
            await flow.step("fork", functions.dies_beside_a_child, run_in="process")
        except StepFailed as error:
            found.append(str(error))
        return found

    with inline(app) as box:
        handle = work.enqueue()
        box.run_all()
        id, why = handle.result(timeout=1)
    assert id == handle.id
    assert "the process of dies_beside_a_child ended without an answer" in why


async def test_the_process_of_a_sync_flow_is_killed_with_its_job(running: Running, tmp_path: Path) -> None:
    path = tmp_path / "pid"

    @running.app.task(max_attempts=1)
    def work() -> None:
        current_sync_flow().step("a", functions.sleeps, str(path), run_in="process")

    async def begun() -> bool:
        return path.exists() and bool(path.read_text())

    await running.start()
    handle = await work.aenqueue()
    await until(begun, True)
    await handle.acancel()
    await until(handle.astatus, State.CANCELLED)

    async def gone() -> bool:  # and waited for
        return not Path(f"/proc/{path.read_text()}").exists()

    await until(gone, True)
    await running.stop()


async def test_a_timeout_of_the_code_leaves_a_process_alone(running: Running, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"

    @running.app.task(max_attempts=1)
    async def work() -> bool:
        task = asyncio.ensure_future(
            current_flow().step("a", functions.charges, str(begun), run_in="process")
        )
        while not begun.exists():
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        go.touch()
        return task.cancelled()

    await running.start()
    handle = await work.aenqueue()
    await until(handle.astatus, State.COMPLETED)
    assert begun.read_text() == "charged"
    await running.stop()


def test_a_process_ends_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    program = """
import asyncio, sys
from penstock import App, Worker
from penstock.workflows import current_flow
from tests.workflows.steps import step_functions

app = App("memory://")

@app.task
async def work():
    await current_flow().step("a", step_functions.sleeps, sys.argv[1], run_in="process")

async def main():
    await work.aenqueue()
    await Worker(app).run()

if __name__ == "__main__":
    asyncio.run(main())
"""
    file = tmp_path / "program.py"
    file.write_text(program)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    worker = subprocess.Popen([sys.executable, str(file), str(path)], env=environment)
    try:
        wait_until(lambda: path.exists() and bool(path.read_text()))
    finally:
        worker.kill()
        worker.wait()
    wait_until(lambda: not Path(f"/proc/{path.read_text()}").exists())


def wait_until(look: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not look():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_an_unknown_place_is_refused(app: App) -> None:
    @app.task
    async def work() -> None:
        await current_flow().step("a", str, run_in="somewhere")

    @app.task
    def in_thread() -> None:
        current_sync_flow().step("a", str, run_in="async")

    with inline(app, raises=False) as box:
        handles = [work.enqueue(), in_thread.enqueue()]
        box.run_all()
        reasons = [handle.job().reason or "" for handle in handles]
    assert "is none of async, thread, process" in reasons[0]
    assert "has no event loop" in reasons[1]
