"""Children that send or show what no child sends: the child is replaced, its job is judged, others go on."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.app.app import App
from penstock.config import load
from penstock.core.job import Job, NewJob, State
from penstock.maintenance.service import ProblemLog
from penstock.worker.pools.messages import (
    ChannelBroken,
    Frames,
    FunctionReturned,
    Ready,
    frame,
    from_child,
    to_child,
)
from penstock.worker.pools.shared_state import Arena, CallPage, CallTokens
from penstock.worker.shared_lease_table import ChildState, LeaseTable
from penstock.worker.supervisor.lease_keeper import LeaseKeeper
from penstock.worker.supervisor.worker_process import WorkerProcess
from tests.worker.conftest import at_work, ended
from tests.worker.process_tasks import add, scribble

pytestmark = pytest.mark.system


def made(app: App, task: Any, **options: Any) -> Any:
    """This task of the module, on the app's store."""
    return app.task(name=task.name, run_in="process", retention="1h", **options)(task.function)


@pytest.mark.parametrize(
    ("where", "cause"),
    [
        ("socket", "it sent bytes that are no message"),
        ("message", "it sent a message that cannot be read"),
        ("outcome", "it sent an outcome that cannot be read"),
        ("other call", "it sent the end of a call that it does not have"),
        ("place", "it sent the place of a result where none can be"),
        ("page", "it shows a call that it was not given: its shared memory was overwritten"),
    ],
)
async def test_a_broken_child_is_replaced_and_its_job_judged(app: App, where: str, cause: str) -> None:
    broken = await made(app, scribble, max_attempts=1, timeout="1m").aenqueue(where)
    async with at_work(app) as worker:
        job = await ended(broken)
        good = await made(app, add).aenqueue(1, 2)
        assert await good.aresult(10) == 3
        assert worker._services is not None
        assert worker._services.slots.lost == 0
    assert (job.state, job.attempt) == (State.DEAD, 1)
    assert job.errors[0].kind == "ChildDied"
    assert f"killed by its worker: {cause}" in job.errors[0].message


async def test_a_child_that_reads_what_is_for_its_host_is_replaced(app: App) -> None:
    """It has taken a part of a token or of an order, so that the next ones are unreadable."""
    task, quick = made(app, scribble, retry=0.01, max_attempts=3), made(app, add)
    async with at_work(app):
        handles = [await task.aenqueue("read"), *[await quick.aenqueue(n, 1) for n in range(20)]]
        for handle in handles:
            assert (await ended(handle)).ended


async def test_a_child_whose_socket_a_task_has_closed_begins_nothing_behind_it(app: App) -> None:
    task, quick = made(app, scribble, max_attempts=1), made(app, add)
    async with at_work(app, config=load({"process_slots": 1}, env={}, file=Path("/dev/null")).config):
        for warm in (await task.aenqueue("files"), await quick.aenqueue(1, 1)):
            await ended(warm)  # from now on, calls are known to be short
        broken, *behind = await app.aenqueue_many(
            [task.job("close"), *[quick.job(n, 1) for n in range(20)]],
        )
        for handle in behind:
            job = await ended(handle)
            assert (job.state, job.attempt, job.errors) == (State.COMPLETED, 1, ())
        error = (await ended(broken)).errors[0]
        assert "exit code 0" in error.message
        assert "a task has closed the socket to its worker" in error.traceback


@pytest.mark.skipif(sys.version_info < (3, 13), reason="Python before 3.13 keeps the files of maps open")
async def test_the_files_of_shared_memory_are_not_open_in_a_child(app: App) -> None:
    """A task that writes to any descriptor it finds changes no memory of its worker."""
    handle = await made(app, scribble).aenqueue("files")
    async with at_work(app):
        assert await handle.aresult(10) == "0"


# ── the channels alone ───────────────────────────────────────────────────────────────────────────


def test_bytes_that_are_no_frame_are_unreadable_at_once() -> None:
    """A length alone could be any number: the reader would wait for its four gigabytes."""
    frames = Frames()
    assert len(frames.feed(frame(Ready()))) == 1
    with pytest.raises(ChannelBroken, match="no message"):
        frames.feed(frame(Ready())[:-1] + frame(Ready()) + b"x")


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x91\xa5Never", b"\x92\xa8Progressed\x01", b"\xff" * 40])
def test_a_body_that_is_no_message_is_unreadable(body: bytes) -> None:
    with pytest.raises(ChannelBroken):
        from_child(body)
    with pytest.raises(ChannelBroken):
        to_child(body)


def test_a_place_outside_of_the_results_is_unreadable() -> None:
    page = CallPage.create()
    arena = CallPage.arena(page)
    assert isinstance(arena, Arena)
    for place in ((0, 10), (-5, 10), (1 << 40, 10), (4096 + (8 << 20), -1), (4096 + (8 << 20), 5 << 20)):
        with pytest.raises(ChannelBroken):
            arena.take_result(1, place)
    arena.close()
    os.close(page)


def test_a_part_of_a_token_is_unreadable() -> None:
    tokens = CallTokens()
    tokens.give([1, 2])
    assert tokens.child_end.recv(3, socket.MSG_DONTWAIT) == b"\x01\0\0"
    with pytest.raises(ChannelBroken, match="part of a token"):
        tokens.take_back()
    tokens.close()


def test_shared_memory_cannot_be_truncated() -> None:
    """Its readers would be killed by SIGBUS."""
    table, page = LeaseTable.create(2), CallPage.create()
    for fd in (table.fileno(), page):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
    table.close()
    os.close(page)


# ── the lease table of a worker process ──────────────────────────────────────────────────────────


class Child:
    """A worker process as the supervisor sees it."""

    def __init__(self) -> None:
        self.id, self.pid = "w", os.getpid()
        self.table = LeaseTable.create(2)
        self.table.announce("w", ChildState.RUNNING)
        job = Job(NewJob("1", "t", queue="q"), State.RUNNING, token="k", generation=1)
        assert self.table.try_start(self.table.put(job, 10**18))
        self.looked_ns = self.extended_ns = 0
        self.extending = None
        self.killed: list[str] = []

    def kill(self, cause: str) -> None:
        self.killed.append(cause)


@pytest.mark.parametrize(
    ("at", "garbage", "what"),
    [
        (0, b"\xff" * 64, "its first word"),
        (0, bytes(64), "its first word"),
        (8, b"\xff" * 8, "the pid"),
        (32, b"A" * 8, "the header"),
        (16, b"\xff" * 8, "a time"),
        (-1, b"\xff", "row 0"),
    ],
)
def test_a_worker_process_with_a_damaged_table_is_replaced(at: int, garbage: bytes, what: str) -> None:
    child = Child()
    keeper = LeaseKeeper(load({}, env={}).config, cast(ProblemLog, None))
    group = cast(Any, None)
    if at < 0:  # the first letter of the id
        at = child.table._map[:].index(b"1qk")
    child.table._map[at : at + len(garbage)] = garbage
    for _ in range(2):
        child.looked_ns = 0
        keeper.check(lambda: cast(Any, None), cast(Any, child), group)
    assert child.killed
    assert f"its lease table was overwritten ({what})" in child.killed[0]
    child.table.header()
    child.table.entries()  # nobody who still reads it fails
    child.table.close()


def test_messages_come_whole_through_frames_of_any_pieces() -> None:
    messages = [Ready(), FunctionReturned(1, 0.0, 0.0, 0.0, b"x" * 300), Ready()]
    data = b"".join(map(frame, messages))
    frames, found = Frames(), []
    for piece in (data[i : i + 7] for i in range(0, len(data), 7)):
        found += [from_child(body) for body in frames.feed(piece)]
    assert found == messages


@pytest.mark.parametrize("sent", [b"nonsense\n", b'{"type":"Never"}\n', b"x" * ((1 << 20) + 1)])
async def test_a_worker_process_that_sends_what_cannot_be_read_is_replaced(sent: bytes) -> None:
    child = object.__new__(WorkerProcess)
    child._control, other = socket.socketpair()
    killed: list[str] = []
    child.kill = killed.append  # type: ignore[method-assign]
    writing = asyncio.to_thread(other.sendall, sent)
    receiving = child._receive(lambda _: None, lambda _: None)
    async with asyncio.timeout(10):
        await asyncio.gather(writing, receiving)
    assert killed
    assert killed[0].startswith("killed by its supervisor: it sent")
    for end in (child._control, other):
        end.close()
