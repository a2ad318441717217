"""Crash points are recorded when they are passed, and a fault is injected once, at a chosen one."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from penstock import App, ConfigError, EnqueueUnknown, StoreUnavailable
from penstock.core.job import NewJob, Ref
from penstock.stores.memory import MemoryStore
from penstock.testing import CrashPoints, Point
from penstock.verify.crash_points import Boundary, kill_here


async def test_a_run_without_faults_leaves_its_points() -> None:
    points = CrashPoints(MemoryStore())
    await points.store.enqueue([NewJob("a", "t")])
    await points.store.get([Ref("default", "a")])
    await asyncio.sleep(0)
    assert {str(point) for point in points.passed} == {
        *("enqueue:1:before", "enqueue:1:lost", "enqueue:1:after"),
        *("get:1:before", "get:1:lost", "get:1:after"),
    }
    assert (points.calls("enqueue"), points.calls("settle")) == (1, 0)
    assert points.struck == []


async def test_before_the_send_nothing_is_done_and_the_next_call_works() -> None:
    points = CrashPoints(MemoryStore())
    points.at("enqueue:2:before")
    await points.store.enqueue([NewJob("a", "t")])
    with pytest.raises(StoreUnavailable, match="enqueue:2:before"):
        await points.store.enqueue([NewJob("b", "t")])
    assert await points.store.find("b") == []
    await points.store.enqueue([NewJob("b", "t")])
    assert len(await points.store.find("b")) == 1
    assert points.struck == [Point("enqueue", 2, Boundary.BEFORE)]


async def test_with_a_lost_reply_the_call_is_done_and_an_enqueue_is_unknown() -> None:
    points = CrashPoints(MemoryStore())
    points.at("enqueue:1:lost")
    with pytest.raises(EnqueueUnknown) as caught:
        await points.store.enqueue([NewJob("a", "t"), NewJob("b", "t")])
    assert caught.value.ids == ("a", "b")
    assert len(await points.store.find("a")) == 1


async def test_behind_the_answer_nothing_can_fail_and_so_no_fault_is_counted() -> None:
    points = CrashPoints(MemoryStore())
    points.at("enqueue:1:after")
    await points.store.enqueue([NewJob("a", "t")])
    await asyncio.sleep(0)
    assert Point("enqueue", 1, Boundary.AFTER) in points.passed
    assert points.struck == []


async def test_a_fault_of_ones_own_is_done_after_the_caller_has_its_answer() -> None:
    points, seen = CrashPoints(MemoryStore()), list[str]()
    points.at("enqueue:1:after", lambda: seen.append("harm"))
    await points.store.enqueue([NewJob("a", "t")])
    seen.append("answer")
    await asyncio.sleep(0)
    assert seen == ["answer", "harm"]


@pytest.mark.parametrize(("boundary", "stored"), [("before", 0), ("lost", 1)])
async def test_a_cancellation_at_a_point_takes_effect_there(boundary: str, stored: int) -> None:
    points = CrashPoints(MemoryStore())
    asking = asyncio.ensure_future(points.store.enqueue([NewJob("a", "t")]))
    points.at(f"enqueue:1:{boundary}", asking.cancel)
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert len(await points.store.find("a")) == stored


def test_the_sync_store_has_the_same_points() -> None:
    app = App("memory://")
    points = CrashPoints(app.store)
    app.use_store(points.store)

    @app.task
    def work() -> None: ...

    points.at("enqueue:1:lost")
    with pytest.raises(EnqueueUnknown):
        work.enqueue()
    work.enqueue()
    assert [str(point) for point in points.passed] == [
        *("enqueue:1:before", "enqueue:1:lost", "enqueue:2:before", "enqueue:2:lost")
    ]


async def test_a_process_that_is_cut_off_cannot_reach_the_store() -> None:
    points = CrashPoints(MemoryStore())
    points.cut_off()
    with pytest.raises(StoreUnavailable, match="cut this process off"):
        await points.store.queues()
    assert points.passed == []


def test_a_point_is_read_as_it_is_written() -> None:
    point = Point("settle", 12, Boundary.LOST)
    assert Point.of(str(point)) == point
    for text in ("settle", "settle:x:lost", "settle:1:never", "settle:1"):
        with pytest.raises(ConfigError, match="settle:2:lost"):
            Point.of(text)
    with pytest.raises(ConfigError, match="did you mean 'settle'"):
        CrashPoints(MemoryStore()).at("setle:1:lost")


def test_a_kill_leaves_nothing_to_run() -> None:
    code = "import atexit; atexit.register(print, 'end'); from penstock.verify.crash_points import kill_here"
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}\ntry: kill_here()\nfinally: print('on')"],
        capture_output=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (-signal.SIGKILL, b"")
    assert callable(kill_here)
