"""A call that a child has claimed or that lies ready in it: what recycling, deaths and failed starts cost."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.core.ids import mint
from penstock.core.job import Job, NewJob, State
from penstock.worker.pools import (
    CallRefused,
    ChildBroken,
    ChildDied,
    ChildLimits,
    ChildOptions,
    NoChild,
    ProcessCall,
    ProcessPool,
)
from penstock.worker.pools.connection import ChildConnection, write_ready
from penstock.worker.pools.messages import ChannelBroken
from penstock.worker.pools.shared_state import CallPage, CallTokens, Claims
from penstock.worker.shared_lease_table import LeaseTable
from penstock.worker.supervisor.lost_work import final_entries
from tests.worker import process_tasks as tasks
from tests.worker.conftest import until
from tests.worker.test_calls_in_flight import Ends, ends, pool, result, submit
from tests.worker.test_processes import APP, text_of

__all__ = ["ends", "pool"]  # fixtures

#: A child is larger than this after `keep(150)`, and smaller before.
LIMIT = 150 << 20


# ── recycling ────────────────────────────────────────────────────────────────────────────────────


async def test_a_recycled_child_gets_the_rest_of_a_call_that_it_has_claimed(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)  # arguments go through the socket
    pool = ProcessPool(1, APP, ChildOptions(limits=ChildLimits(memory=LIMIT)), events=ends)
    try:
        await pool.prestart(1)
        tickets = [submit(pool, tasks.keep, 150)]
        tickets += [submit(pool, tasks.lengthen, "x" * 900_000, 1) for _ in range(2)]
        pool.dispatch()
        (child,) = pool._group.active
        assert child._tokens is not None
        peek = socket.MSG_PEEK
        while child._tokens.child_end.recv(8, peek) != (3).to_bytes(8, "little"):
            time.sleep(0.001)  # the loop does not run: the second call is claimed, and most of it is unsent
        await ends.until(tickets)
        assert [len(result(tasks.lengthen, ends.of[one])) for one in tickets[1:]] == [900_000] * 2
        assert len({child.pid for child in pool._group.active}) == 1
    finally:
        pool.close(5)


async def test_a_successor_waits_until_the_recycled_child_has_ended_its_call(
    ends: Ends, tmp_path: Path
) -> None:
    pool = ProcessPool(1, APP, ChildOptions(limits=ChildLimits(memory=LIMIT)), events=ends)
    try:
        await pool.prestart(1)
        enough = tmp_path / "enough"
        grow = submit(pool, tasks.keep, 150)
        naps = [submit(pool, tasks.nap_until, str(enough)) for _ in range(2)]
        pool.dispatch()
        (child,) = pool._group.active
        assert child._page is not None
        while child._page.begun < 2:  # the loop does not run: the worker learns of both together
            time.sleep(0.001)
        await until(lambda: pool._group.has_idle(child), "the child is retired, and its successor is ready")
        assert child in pool._group.retired
        enough.touch()
        await ends.until([grow, *naps])
        first, second = (result(tasks.nap_until, ends.of[one]) for one in naps)
        assert first[0] != second[0]
        assert first[2] <= second[1], "one after the other"
    finally:
        pool.close(5)


# ── deaths ───────────────────────────────────────────────────────────────────────────────────────


async def claim_and_die(pool: ProcessPool) -> None:
    """Let the only child die after it has claimed the next call, before it begins."""
    (child,) = pool._group.active
    os.kill(child.pid, signal.SIGSTOP)
    assert child._tokens is not None
    pool.dispatch()
    assert child._tokens.child_end.recv(8), "claimed in the child's name"
    os.kill(child.pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        while child in pool._group.active:
            await asyncio.sleep(0.005)


async def test_a_claimed_call_that_had_not_begun_runs_in_the_next_child(
    pool: ProcessPool, ends: Ends
) -> None:
    calls = [submit(pool, tasks.add, n) for n in range(3)]
    await claim_and_die(pool)
    await ends.until(calls)
    assert [result(tasks.add, ends.of[one]) for one in calls] == [1, 2, 3]


async def test_a_call_at_whose_claim_a_second_child_dies_has_failed(pool: ProcessPool, ends: Ends) -> None:
    submit(pool, tasks.add, 1)
    call = pool._waiting[0]
    call.was_claimed = True
    await claim_and_die(pool)
    await ends.until([call.ticket])
    assert isinstance(ends.of[call.ticket], ChildDied)


async def test_a_killed_call_that_had_not_begun_does_not_return(pool: ProcessPool, ends: Ends) -> None:
    (child,) = pool._group.active
    assert child._tokens is not None
    os.kill(child.pid, signal.SIGSTOP)
    call = submit(pool, tasks.add, 1)
    pool.dispatch()
    assert child._tokens.child_end.recv(8)
    assert pool.kill(call)
    await ends.until([call])
    assert "killed by its worker" in str(ends.of[call])


async def test_a_failed_start_costs_one_call_and_releases_the_others(ends: Ends) -> None:
    pool = ProcessPool(2, "tests.worker.broken_app:app", events=ends)
    try:
        calls = [submit(pool, tasks.add, n) for n in range(50)]
        pool.dispatch()
        await ends.until(calls)
        charged = [end for end in ends.of.values() if not isinstance(end, NoChild)]
        assert all(isinstance(end, ChildBroken) for end in ends.of.values())
        assert 1 <= len(charged) <= 2, "as many as children have failed"
        assert pool.lacks_resources
        late = submit(pool, tasks.add, 1)
        pool.dispatch()
        await ends.until([late])
        assert isinstance(ends.of[late], NoChild)
    finally:
        pool.close(5)


def test_a_child_without_its_worker_claims_nothing_more() -> None:
    tokens, orphan = CallTokens(), False
    claims = Claims(os.dup(tokens.child_end.fileno()), lambda: orphan)
    tokens.give([1, 2])
    assert claims.next() == 1
    orphan = True
    assert claims.next() is None
    tokens.close()
    claims._socket.close()


def test_the_calls_of_a_dead_worker_that_have_not_started_cannot_start() -> None:
    table = LeaseTable.create(20)
    slots = table.put_many(
        [Job(NewJob(mint(), "x"), State.RUNNING, attempt=1, token="t") for _ in range(2)], 1
    )
    ready, runs = ((slot, table.number(slot)) for slot in slots)
    assert table.try_start_entry(*runs, 0)
    assert [entry.started for entry in final_entries(table)] == [False, True]
    assert not table.try_start_entry(*ready, 0)
    table.close()


# ── calls that lie ready ─────────────────────────────────────────────────────────────────────────


async def watch(pool: ProcessPool, every: float = 0.01) -> None:
    """As a worker does: what leaves the pool is submitted again when there is room."""
    left: list[ProcessCall] = []
    while True:
        left += pool.watch(time.monotonic())
        while left and pool.room(left[0].expected) > 0:
            pool.submit(left.pop(0))
            pool.dispatch()
        await asyncio.sleep(every)


async def test_calls_behind_many_short_ones_move_to_an_idle_child(ends: Ends) -> None:
    pool = ProcessPool(2, APP, events=ends)
    try:
        await pool.prestart(2)
        naps: list[str] = []
        for n in range(200):
            naps.append(submit(pool, tasks.nap, 0.02))  # more of them than run while anybody is stopped
            submit(pool, tasks.add, n)
        pool.dispatch()
        watcher = asyncio.create_task(watch(pool))
        await ends.until(naps)
        watcher.cancel()
        pids = [result(tasks.nap, ends.of[one])[0] for one in naps]
        assert min(pids.count(pid) for pid in set(pids)) >= 3
        assert len(set(pids)) == 2
    finally:
        pool.close(5)


async def test_only_as_many_calls_wait_as_children_start(ends: Ends) -> None:
    pool = ProcessPool(2, APP, events=ends)
    try:
        calls = [submit(pool, tasks.add, n) for n in range(30)]
        pool.dispatch()
        assert [call.ticket for call in pool.watch(time.monotonic())] == calls[2:]
        await ends.until(calls[:2])
    finally:
        pool.close(5)


async def test_calls_killed_together_are_taken_back_once_and_the_others_sent_once(
    pool: ProcessPool, ends: Ends, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = submit(pool, tasks.hang, str(tmp_path / "pid"))
    behind = [submit(pool, tasks.lengthen, "x" * 15_000, 1) for _ in range(100)]
    pool.dispatch()
    await text_of(tmp_path / "pid")
    sent: list[bytes] = []
    send = ChildConnection.send
    monkeypatch.setattr(
        ChildConnection, "send", lambda self, messages: (sent.extend(messages), send(self, messages))[1]
    )
    for one in behind[:50]:
        assert pool.kill(one)
    await asyncio.sleep(0)
    assert len(sent) <= 50
    for one in behind[50:90]:  # one after the other
        assert pool.kill(one)
        await asyncio.sleep(0)
    connection = pool._group.active[0]._connection
    assert connection is not None
    assert connection.unsent <= 2 << 20
    pool.kill(hangs)
    await ends.until([hangs, *behind])
    assert {len(result(tasks.lengthen, ends.of[one])) for one in behind[90:]} == {15_000}


async def test_a_call_that_was_just_submitted_does_not_leave_the_pool(ends: Ends) -> None:
    pool = ProcessPool(1, APP, events=ends)
    try:
        call = submit(pool, tasks.add, 1)
        assert pool.watch(time.monotonic()) == [], "a child starts for it"
        await ends.until([call])
    finally:
        pool.close(5)


class Leases(Ends):
    """Knows when leases end."""

    def __init__(self) -> None:
        super().__init__()
        self.ends_at: dict[Any, float] = {}

    def lease_end(self, call: ProcessCall) -> float:
        return self.ends_at.get(call.ticket, call.until)


async def test_a_call_whose_lease_ended_while_it_waited_is_not_dispatched() -> None:
    ends = Leases()
    pool = ProcessPool(1, APP, events=ends)
    try:
        lost, extended = submit(pool, tasks.add, 1), submit(pool, tasks.add, 2, until=0.0)
        ends.ends_at = {lost: 0.0, extended: math.inf}
        pool.dispatch()
        await ends.until([lost, extended])
        assert isinstance(ends.of[lost], CallRefused)
        assert result(tasks.add, ends.of[extended]) == 3
    finally:
        pool.close(5)


# ── descriptors and memory ───────────────────────────────────────────────────────────────────────


async def test_programs_of_a_task_get_no_descriptor_of_its_child(ends: Ends) -> None:
    table = LeaseTable.create(20)
    pool = ProcessPool(1, APP, events=ends, table=table.fileno())
    try:
        call = submit(pool, tasks.inheritable)
        pool.dispatch()
        await ends.until([call])
        assert result(tasks.inheritable, ends.of[call]) == []
    finally:
        pool.close(5)
        table.close()


def mapped(name: str) -> int:
    with open("/proc/self/maps") as file:
        return file.read().count(name)


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs /proc")
async def test_the_memory_shared_with_a_child_is_freed_at_its_end(ends: Ends) -> None:
    gc.collect()
    before = mapped("penstock-child")
    gc.disable()
    try:
        pool = ProcessPool(2, APP, events=ends)
        await pool.prestart(2)
        assert mapped("penstock-child") > before
        pool.close(5)
        assert mapped("penstock-child") == before
    finally:
        gc.enable()


def test_a_time_that_does_not_belong_to_the_number_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    fd = CallPage.create()
    page = CallPage(fd)
    started = page.begin(5)
    assert page.current() == (5, started)
    page._numbers[0] = 6  # seen before its time, as a weakly ordered processor may show it
    with pytest.raises(ChannelBroken):
        page.current()
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", lambda _: page.begin(6))  # the late write arrives between two looks
        seen = page.current()
    assert seen is not None
    assert seen[0] == 6
    assert seen == page.current()
    page.close()
    os.close(fd)


def test_a_full_stderr_does_not_block() -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    filled = 0
    try:
        while True:
            filled += os.write(write_end, b"." * 4096)
    except BlockingIOError:
        pass
    os.set_blocking(write_end, True)
    assert write_ready(write_end, b"a" * 5000) == b"a" * 5000
    os.read(read_end, filled)
    assert write_ready(write_end, b"a" * 5000) == b""
    os.close(read_end)
    assert write_ready(write_end, b"a" * 5000) == b"", "nobody reads: dropped"
    os.close(write_end)


@pytest.fixture
def default_timeout() -> Any:
    socket.setdefaulttimeout(0.05)
    yield
    socket.setdefaulttimeout(None)


async def test_a_default_timeout_of_sockets_harms_no_child(default_timeout: None, ends: Ends) -> None:
    pool = ProcessPool(1, APP, events=ends)
    try:
        await pool.prestart(1)
        pids: Sequence[int] = pool.pids
        for _ in range(2):
            await asyncio.sleep(0.1)
            call = submit(pool, tasks.pid)
            pool.dispatch()
            await ends.until([call])
            assert [result(tasks.pid, ends.of[call])] == pids
    finally:
        pool.close(5)
