"""The thread pool: each call returns once, and an interrupt hits only its own call."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.errors import AttemptCancelled, AttemptTimeout, ConfigError
from penstock.worker.pools import CallThreadPool, Done, thread_pool


class Ends:
    """Collects what a pool reports."""

    def __init__(self) -> None:
        self.all: list[Done] = []
        self._came = asyncio.Event()

    def __call__(self, batch: list[Done]) -> None:
        self.all += batch
        self._came.set()

    async def wait_for(self, n: int) -> list[Done]:
        async with asyncio.timeout(60):
            while len(self.all) < n:
                self._came.clear()
                await self._came.wait()
        return self.all

    async def one(self, ticket: Any) -> Done:
        async with asyncio.timeout(60):
            while not (found := [done for done in self.all if done[0] is ticket]):
                self._came.clear()
                await self._came.wait()
        assert len(found) == 1
        return found[0]


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads change places every few microseconds, so that a race is met and not only possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def pool_of(size: int) -> tuple[CallThreadPool, Ends]:
    ends = Ends()
    pool = CallThreadPool(size, ends)
    pool.start()
    return pool, ends


def spin(started: threading.Event) -> None:
    """Python code that runs until somebody interrupts it."""
    started.set()
    while True:
        time.sleep(0.001)


async def started(event: threading.Event) -> None:
    await asyncio.get_running_loop().run_in_executor(None, event.wait, 20)
    assert event.is_set()


async def test_every_call_comes_back_once_with_its_value_or_its_error() -> None:
    pool, ends = pool_of(4)

    def work(i: int) -> int:
        if i % 10 == 0:
            raise ValueError(i)
        return i * i

    for i in range(1000):
        pool.submit(i, lambda i=i: work(i))
    done = await ends.wait_for(1000)
    assert sorted(ticket for ticket, _, _ in done) == list(range(1000))
    for ticket, value, error in done:
        if ticket % 10:
            assert (value, error) == (ticket * ticket, None)
        else:
            assert value is None
            assert repr(error) == f"ValueError({ticket})"
    assert pool.busy == 0
    assert pool.close(5)


async def test_threads_start_when_they_are_needed_and_never_more_than_the_size() -> None:
    before = set(threading.enumerate())

    def started() -> int:  # threads of earlier tests may end meanwhile
        return len(set(threading.enumerate()) - before)

    pool, ends = pool_of(3)
    assert started() == 0
    gate = threading.Event()
    names: set[str] = set()

    def work() -> None:
        names.add(threading.current_thread().name)
        assert threading.current_thread().daemon
        gate.wait(20)

    pool.submit("first", work)
    assert started() == 1
    for ticket in range(9):
        pool.submit(ticket, work)
    assert started() == 3
    gate.set()
    await ends.wait_for(10)
    assert names <= {"penstock-thread-1", "penstock-thread-2", "penstock-thread-3"}
    assert pool.close(5)
    assert started() == 0


async def test_results_that_come_together_wake_the_loop_once() -> None:
    batches: list[int] = []
    pool = CallThreadPool(2, lambda batch: batches.append(len(batch)))
    pool.start()
    for i in range(50):
        pool.submit(i, int)
    until = time.monotonic() + 60
    while sum(batches) + len(pool._ended) < 50 and time.monotonic() < until:
        time.sleep(0.001)  # the loop is not let go: what ends meanwhile has to wait for it
    while sum(batches) < 50:
        await asyncio.sleep(0)
    assert batches == [50]
    pool.close(5)


async def test_a_call_sees_its_own_context_and_never_another_calls() -> None:
    mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="none")
    pool, ends = pool_of(1)
    mark.set("loop")
    own = contextvars.copy_context()

    def sets() -> str:
        before = mark.get()
        mark.set("leaked")
        return before

    pool.submit("own", sets, own)
    pool.submit("bare", sets)
    pool.submit("after", sets)
    values = {ticket: value for ticket, value, _ in await ends.wait_for(3)}
    assert values == {"own": "loop", "bare": "none", "after": "none"}
    assert mark.get() == "loop"
    pool.close(5)


async def test_the_clock_starts_when_the_call_starts_not_when_it_is_submitted() -> None:
    pool, ends = pool_of(1)
    running, gate = threading.Event(), threading.Event()

    def first() -> None:
        running.set()
        gate.wait(20)

    before = time.monotonic()
    pool.submit("first", first)
    pool.submit("second", lambda: spin(running))
    await started(running)
    began = pool.started_at("first")
    assert began is not None
    assert before <= began <= time.monotonic()
    assert pool.started_at("second") is None
    running.clear()
    freed = time.monotonic()
    gate.set()
    await started(running)
    later = pool.started_at("second")
    assert later is not None
    assert later >= freed
    assert pool.started_at("first") is None
    assert pool.interrupt("second", AttemptTimeout)
    await ends.wait_for(2)
    pool.close(5)


async def test_an_interrupt_is_raised_inside_the_call() -> None:
    pool, ends = pool_of(2)
    running, cleaned = threading.Event(), threading.Event()

    def work() -> None:
        try:
            spin(running)
        except Exception:
            pytest.fail("`except Exception` must not swallow an interrupt")
        finally:
            cleaned.set()

    pool.submit("job", work)
    await started(running)
    assert pool.interrupt("job", AttemptTimeout)
    _, _, error = await ends.one("job")
    assert isinstance(error, AttemptTimeout)
    assert cleaned.is_set()
    assert not pool.interrupt("job", AttemptTimeout)
    assert pool.close(5)


async def test_a_call_is_interrupted_once_and_only_while_it_runs() -> None:
    pool, ends = pool_of(1)
    running, go_on, swallowed = threading.Event(), threading.Event(), threading.Event()

    def stubborn() -> str:
        try:
            spin(running)
        except AttemptCancelled:
            swallowed.set()
        go_on.wait(20)
        return "done all the same"

    pool.submit("job", stubborn)
    pool.submit("waits", lambda: None)
    await started(running)
    assert not pool.interrupt("waits", AttemptCancelled)
    assert pool.interrupt("job", AttemptCancelled)
    await started(swallowed)
    assert not pool.interrupt("job", AttemptTimeout)
    go_on.set()
    assert await ends.one("job") == ("job", "done all the same", None)
    assert await ends.one("waits") == ("waits", None, None)
    pool.close(5)


_PROFILED = """
import sys
from penstock.worker.pools.thread_pool import _RAISED, _close

_close([_RAISED])
sys.setprofile(lambda *_: None)
(lambda: None)()
sys.setprofile(None)
"""


def test_an_interrupt_that_comes_too_late_leaves_no_mark_in_the_interpreter() -> None:
    """In CPython 3.11 the first call under a profiler hung."""
    subprocess.run([sys.executable, "-c", _PROFILED], check=True, timeout=60)


@pytest.mark.slow
async def test_an_interrupt_that_comes_too_late_does_not_reach_the_next_call(restless: None) -> None:
    """20 000 short calls, interrupts fired at random at whatever runs: each is hit by its own or by none."""
    aimed: set[int] = set()
    wrong: list[str] = []
    total, hits = 20_000, 0
    fin = asyncio.Event()
    rng = random.Random(7)
    left = iter(range(64, total))
    open_: dict[int, int] = {}

    def work(i: int) -> int:
        for _ in range(i % 3):
            time.sleep(0)  # lets the loop in, which shoots
        return i

    def submit(i: int) -> None:
        open_[i] = i
        pool.submit(i, lambda: work(i))

    def on_done(batch: list[Done]) -> None:
        nonlocal hits
        for ticket, value, error in batch:
            del open_[ticket]
            if isinstance(error, AttemptTimeout):
                hits += 1
                if ticket not in aimed:
                    wrong.append(f"{ticket} was hit and never aimed at")
            elif error is not None or value != ticket:
                wrong.append(f"{ticket} ended with {value!r}, {error!r}")
            if (i := next(left, None)) is not None:
                submit(i)
        if not open_:
            fin.set()

    pool = CallThreadPool(4, on_done)
    pool.start()
    for i in range(64):
        submit(i)
    threads = {worker.thread for worker in pool._workers}

    async def shoot() -> None:
        while not fin.is_set():
            for worker in pool._workers * 5:
                call = worker.call
                if call is not None and rng.random() < 0.5 and pool.interrupt(call[0], AttemptTimeout):
                    aimed.add(call[0])
            await asyncio.sleep(0)

    async with asyncio.timeout(60):
        await asyncio.gather(shoot(), fin.wait())
    assert wrong == []
    assert len(aimed) > 1000, "the test shot at too little to mean anything"
    assert 0 < hits <= len(aimed)
    assert all(thread.is_alive() for thread in threads)
    assert {worker.thread for worker in pool._workers} == threads
    assert pool.busy == 0
    assert pool.close(5)


async def test_an_interrupt_sent_while_its_call_ends_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worst moment, made to happen: the call ends between the decision to raise and the raise."""
    go_on, waits = threading.Event(), threading.Event()
    real_raise, real_sleep = thread_pool._raise_in, time.sleep
    assert real_raise is not None
    taken_back: list[int] = []

    def late_raise(ident: int, error: type[BaseException] | None) -> bool:
        if error is None:
            taken_back.append(ident)
            return real_raise(ident, None)
        go_on.set()
        assert waits.wait(60), "the thread must wait for the interrupt that is on its way"
        return real_raise(ident, error)

    def sleep(seconds: float) -> None:
        waits.set()
        real_sleep(seconds)

    pool, ends = pool_of(1)
    running = threading.Event()

    def work() -> str:
        running.set()
        go_on.wait(20)
        return "whole"

    pool.submit("job", work)
    pool.submit("next", lambda: sum(range(100_000)))
    await started(running)
    monkeypatch.setattr(thread_pool, "_raise_in", late_raise)
    monkeypatch.setattr(time, "sleep", sleep)
    assert pool.interrupt("job", AttemptTimeout)
    assert await ends.one("job") == ("job", "whole", None)
    assert await ends.one("next") == ("next", 4999950000, None)
    assert len(taken_back) <= 1
    assert pool.close(5)


@pytest.mark.slow
async def test_an_interrupt_hits_no_matter_which_bytecode_the_thread_is_at(restless: None) -> None:
    """As before with calls that never end by themselves: every single interrupt must end its call."""
    pool, ends = pool_of(4)
    for i in range(400):
        running = threading.Event()

        def work(running: threading.Event = running) -> None:
            running.set()
            while True:
                pass

        pool.submit(i, work)
        while not running.is_set():
            await asyncio.sleep(0)
        while not pool.interrupt(i, AttemptTimeout):
            await asyncio.sleep(0)
        assert isinstance((await ends.one(i))[2], AttemptTimeout)
    assert pool.lost == 0
    assert pool.close(5)


async def test_a_thread_that_does_not_react_is_replaced_and_its_late_end_dropped() -> None:
    pool, ends = pool_of(1)
    stuck, gate = threading.Event(), threading.Event()

    def never() -> str:
        stuck.set()
        gate.wait(20)
        return "too late"

    pool.submit("stuck", never)
    pool.submit("next", lambda: "ran")
    await started(stuck)
    assert pool.abandon("stuck")
    assert pool.lost == 1
    assert await ends.one("next") == ("next", "ran", None)
    assert pool.busy == 0
    gate.set()
    async with asyncio.timeout(60):
        while pool.late == 0:
            await asyncio.sleep(0.001)
    assert [ticket for ticket, _, _ in ends.all] == ["next"]
    pool.submit("again", lambda: threading.current_thread().name)
    assert (await ends.one("again"))[1] == "penstock-thread-2"
    assert not pool.abandon("again")
    assert pool.close(5)


async def test_a_call_that_has_just_ended_is_not_abandoned() -> None:
    pool, ends = pool_of(1)
    pool.submit("quick", lambda: 1)
    until = time.monotonic() + 60
    while not pool._ended and time.monotonic() < until:
        time.sleep(0.001)  # ended in its thread; the loop has not heard of it yet
    assert not pool.abandon("quick")
    assert await ends.one("quick") == ("quick", 1, None)
    assert (pool.lost, pool.late) == (0, 0)
    pool.close(5)


async def test_run_gives_its_own_future_and_stays_out_of_the_batches() -> None:
    pool, ends = pool_of(2)
    assert await pool.run("a", lambda: 3) == 3
    with pytest.raises(KeyError):
        await pool.run("b", lambda: {}["x"])
    with pytest.raises(RuntimeError, match="StopIteration"):
        await pool.run("c", lambda: next(iter(())))
    running = threading.Event()
    future = pool.run("d", lambda: spin(running))
    await started(running)
    assert pool.started_at("d") is not None
    assert pool.interrupt("d", AttemptCancelled)
    with pytest.raises(AttemptCancelled):
        await future
    assert ends.all == []
    assert pool.busy == 0
    pool.close(5)


async def test_an_idle_thread_keeps_nothing_of_its_last_call_alive() -> None:
    class Big:
        pass

    def work(made: Callable[[], Big]) -> Big:
        return made()

    pool, ends = pool_of(1)
    refs: list[weakref.ref[Big]] = []

    def make() -> Big:
        big = Big()
        refs.append(weakref.ref(big))
        return big

    pool.submit("job", lambda: work(make))
    await ends.wait_for(1)
    ends.all.clear()
    async with asyncio.timeout(60):
        while refs[0]() is not None:
            gc.collect()
            await asyncio.sleep(0.001)
    pool.close(5)


async def test_close_waits_at_most_for_its_timeout() -> None:
    pool, _ = pool_of(1)
    running, gate = threading.Event(), threading.Event()

    def work() -> None:
        running.set()
        gate.wait(20)

    pool.submit("job", work)
    await started(running)
    assert not pool.close(0.05)
    gate.set()


def test_a_loop_that_is_closed_before_a_call_ends_leaves_no_error_behind() -> None:
    gate = threading.Event()
    running = threading.Event()
    pools: list[CallThreadPool] = []

    async def main() -> None:
        pool, _ = pool_of(1)
        pools.append(pool)
        pool.submit("job", lambda: (running.set(), gate.wait(20)))
        await started(running)

    asyncio.run(main())
    gate.set()
    thread = pools[0]._workers[0].thread
    thread.join(60)
    assert not thread.is_alive()


def test_a_pool_says_what_is_wrong_with_its_use() -> None:
    with pytest.raises(ConfigError, match="size=0"):
        CallThreadPool(0, lambda batch: None)
    with pytest.raises(ConfigError, match="start"):
        CallThreadPool(1, lambda batch: None).submit("x", int)


async def test_unstarted_calls_can_be_taken_back() -> None:
    pool, ends = pool_of(1)
    gate, began = threading.Event(), threading.Event()

    def stay() -> None:
        began.set()
        gate.wait(20)

    pool.submit("runs", stay)
    await started(began)
    awaited = pool.run("awaited", lambda: "ran")
    pool.submit("first", stay)
    pool.submit("second", stay)
    assert pool.take_back() == ["first", "second"]
    gate.set()
    assert await awaited == "ran"
    await ends.one("runs")
    assert [ticket for ticket, _, _ in ends.all] == ["runs"]
    assert pool.busy == 0
    assert pool.close(5)
