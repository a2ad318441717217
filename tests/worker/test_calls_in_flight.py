"""Several calls lie ready in each child: those that have not begun are taken back, no death costs them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from penstock.core.ids import mint
from penstock.core.job import Job, NewJob, State
from penstock.worker.pools import (
    CallEnd,
    CallRefused,
    ChildDied,
    ChildLimits,
    ChildOptions,
    EncodedResult,
    PoolEvents,
    ProcessCall,
    ProcessPool,
    epoch_of,
)
from penstock.worker.shared_lease_table import LeaseTable
from tests.worker import process_tasks as tasks
from tests.worker.test_processes import APP, text_of

#: An expectation (s) by which many calls fit into one child.
SHORT = 0.0001


class Ends(PoolEvents):
    """Keeps what the pool reports."""

    def __init__(self) -> None:
        self.of: dict[Any, EncodedResult | Exception | None] = {}
        self.starts: list[Any] = []
        self.changed = asyncio.Event()

    def started(self, call: ProcessCall) -> None:
        self.starts.append(call.ticket)

    def ended(self, batch: list[CallEnd]) -> None:
        for call, result, error in batch:
            assert call.ticket not in self.of, "reported twice"
            self.of[call.ticket] = error or result
        self.changed.set()

    async def until(self, tickets: Sequence[Any]) -> None:
        async with asyncio.timeout(60):
            while not set(tickets) <= set(self.of):
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest_asyncio.fixture
async def pool(ends: Ends) -> AsyncIterator[ProcessPool]:
    """One child, which is ready."""
    pool = ProcessPool(1, APP, events=ends)
    await pool.prestart(1)
    yield pool
    pool.close(5)


def submit(pool: ProcessPool, task: Any, *args: Any, **options: Any) -> str:
    options.setdefault("expected", SHORT)
    new = NewJob(mint(), task.name, task.args.encode(args, {}), retention=60_000)
    job = Job(new, State.RUNNING, attempt=1, token="t" * 24)
    function = task.function
    pool.submit(
        ProcessCall(new.id, job, (function.__module__, function.__qualname__), epoch_of(0), **options)
    )
    return new.id


def result(task: Any, end: EncodedResult | Exception | None) -> Any:
    assert isinstance(end, EncodedResult), end
    return task.result.decode(end.result)


async def test_many_calls_are_sent_together_and_end_in_their_order(pool: ProcessPool, ends: Ends) -> None:
    tickets = [submit(pool, tasks.add, n) for n in range(100)]
    pool.dispatch()
    await ends.until(tickets)
    assert [result(tasks.add, end) for end in ends.of.values()] == list(range(1, 101))
    assert list(ends.of) == tickets
    assert pool.busy == 0


@pytest.mark.parametrize("how", ["segv", "exit", "kill", "hang up"])
async def test_the_death_of_a_child_ends_the_call_that_ran_and_none_beside_it(
    pool: ProcessPool, ends: Ends, how: str
) -> None:
    before = [submit(pool, tasks.add, n) for n in range(5)]
    crash = submit(pool, tasks.die, how)
    behind = [submit(pool, tasks.add, n) for n in range(20)]
    pool.dispatch()
    await ends.until([*before, crash, *behind])
    assert isinstance(ends.of[crash], ChildDied)
    assert [result(tasks.add, ends.of[one]) for one in before] == list(range(1, 6))
    assert [result(tasks.add, ends.of[one]) for one in behind] == list(range(1, 21))


async def test_a_killed_call_costs_none_beside_it(pool: ProcessPool, ends: Ends, tmp_path: Path) -> None:
    hangs = submit(pool, tasks.hang, str(tmp_path / "pid"))
    behind = [submit(pool, tasks.add, n) for n in range(20)]
    pool.dispatch()
    await text_of(tmp_path / "pid")
    assert pool.kill(hangs)
    await ends.until([hangs, *behind])
    assert "killed by its worker" in str(ends.of[hangs])
    assert [result(tasks.add, ends.of[one]) for one in behind] == list(range(1, 21))


async def test_a_call_that_has_not_begun_can_be_withdrawn_alone(
    pool: ProcessPool, ends: Ends, tmp_path: Path
) -> None:
    hangs = submit(pool, tasks.hang, str(tmp_path / "pid"))
    first, second, third = (submit(pool, tasks.add, n) for n in range(3))
    pool.dispatch()
    await text_of(tmp_path / "pid")
    assert pool.kill(second)
    assert "before it began" in str(ends.of[second])
    assert not pool.kill(second)
    pool.kill(hangs)
    await ends.until([hangs, first, third])
    assert (result(tasks.add, ends.of[first]), result(tasks.add, ends.of[third])) == (1, 3)


async def test_calls_behind_a_long_one_move_to_a_free_child_or_leave_the_pool(
    ends: Ends, tmp_path: Path
) -> None:
    pool = ProcessPool(2, APP, events=ends)
    try:
        await pool.prestart(2)
        hangs = [submit(pool, tasks.hang, str(tmp_path / name)) for name in "ab"]
        pool.dispatch()
        for name in "ab":
            await text_of(tmp_path / name)
        children = {child.pid: child for child in pool._group.active}
        behind = [submit(pool, tasks.add, n) for n in range(10)]
        pool.dispatch()
        assert sum(len(child.calls) for child in children.values()) == 12
        assert [call.ticket for call in pool.watch(time.monotonic() + 1)] == behind
        assert ends.starts == hangs
        assert pool.room(SHORT) == 0
        assert pool.busy == 2
    finally:
        pool.close(5)


async def test_taken_back_calls_have_not_begun_and_the_others_end(pool: ProcessPool, ends: Ends) -> None:
    tickets = [submit(pool, tasks.add, n) for n in range(120)]
    pool.dispatch()
    back = [call.ticket for call in pool.take_back()]
    assert back == tickets[len(tickets) - len(back) :], "the last ones, in order"
    await ends.until(tickets[: len(tickets) - len(back)])
    assert not set(back) & set(ends.of)
    again = submit(pool, tasks.add, 7)
    pool.dispatch()
    await ends.until([again])
    assert not set(back) & set(ends.of)


async def test_a_call_of_unknown_duration_has_a_child_of_its_own(
    pool: ProcessPool, ends: Ends, tmp_path: Path
) -> None:
    hangs = submit(pool, tasks.hang, str(tmp_path / "pid"), expected=None)
    pool.dispatch()
    assert pool.room(SHORT) == 0
    await text_of(tmp_path / "pid")
    pool.kill(hangs)
    await ends.until([hangs])
    assert pool.room(None) == 1


async def test_a_call_whose_lease_was_revoked_is_refused_and_one_that_starts_is_marked(ends: Ends) -> None:
    table = LeaseTable.create(20)
    slots = table.put_many(
        [Job(NewJob(mint(), "x"), State.RUNNING, attempt=1, token="t") for _ in range(2)], 1
    )
    pool = ProcessPool(1, APP, events=ends, table=table.fileno())
    try:
        revoked, starts = table.entries()
        assert table.revoke([revoked]) == [revoked]
        entries = [(slot, table.number(slot)) for slot in slots]
        refused = submit(pool, tasks.add, 1, entry=entries[0])
        runs = submit(pool, tasks.add, 2, entry=entries[1], seconds=100)
        late = submit(pool, tasks.add, 3, until=0.0)
        pool.dispatch()
        await ends.until([refused, runs, late])
        assert isinstance(ends.of[refused], CallRefused)
        assert isinstance(ends.of[late], CallRefused)
        assert result(tasks.add, ends.of[runs]) == 3
        found = {entry.slot: entry for entry in table.entries()}
        assert not found[revoked.slot].started
        assert found[starts.slot].started
        assert found[starts.slot].deadline_ns > time.monotonic_ns()
    finally:
        pool.close(5)
        table.close()


async def test_a_child_gets_no_more_calls_than_it_may_run(ends: Ends) -> None:
    pool = ProcessPool(1, APP, ChildOptions(limits=ChildLimits(jobs=5)), events=ends)
    try:
        tickets = [submit(pool, tasks.pid) for _ in range(12)]
        pool.dispatch()
        await ends.until(tickets)
        pids = [result(tasks.pid, ends.of[one]) for one in tickets]
        assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [5, 5, 2]
    finally:
        pool.close(5)


async def test_large_arguments_lie_ready_in_bounds(pool: ProcessPool, ends: Ends) -> None:
    tickets = [submit(pool, tasks.lengthen, "x" * 900_000, 1) for _ in range(24)]
    pool.dispatch()
    assert sum(len(child.calls) for child in pool._group.active) <= 10
    await ends.until(tickets)
    assert {len(result(tasks.lengthen, ends.of[one])) for one in tickets} == {900_000}


async def test_large_results_come_back_whole_and_their_memory_is_used_again(
    pool: ProcessPool, ends: Ends
) -> None:
    sizes = [70_000 + 40_000 * n for n in range(10)]
    tickets = [submit(pool, tasks.lengthen, "x" * size, 2) for size in sizes]
    pool.dispatch()
    await ends.until(tickets)
    assert [len(result(tasks.lengthen, ends.of[one])) for one in tickets] == [2 * size for size in sizes]
    (child,) = pool._group.active
    assert child._arena is not None
    assert child._arena._taken == []
