"""How child processes start: forked before or after the import of the app, or as new interpreters."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.worker.pools import ChildDied, ChildLimits, ChildOptions, ProcessPool, fork_starter
from penstock.worker.pools.calls import ChildBroken
from tests.worker import process_tasks as tasks
from tests.worker.test_processes import run, text_of, until_gone

STARTS = ["fork", "preload", "spawn"]
APP = "tests.worker.process_tasks:app"


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("start", STARTS)
async def test_a_pool_runs_calls_and_replaces_dead_children(start: str) -> None:
    pool = ProcessPool(2, APP, ChildOptions(start=start))
    assert await run(pool, tasks.add, 1, 2) == 3
    for how, cause in (("segv", "killed by SIGSEGV"), ("exit", "exit code 3"), ("kill", "killed by SIGKILL")):
        with pytest.raises(ChildDied, match=cause):
            await run(pool, tasks.die, how)
    assert await run(pool, tasks.add, 1, 2) == 3
    assert (parent_of(pool.pids[0]) == os.getpid()) is (start == "spawn")
    pool.close(5)


async def test_children_end_with_the_process_that_forked_them_and_others_follow(tmp_path: Path) -> None:
    pool = ProcessPool(1, APP)
    first = await run(pool, tasks.pid)
    server = parent_of(first)
    started = tmp_path / "started"
    hanging = asyncio.create_task(run(pool, tasks.hang, str(started)))
    await text_of(started)
    os.kill(server, signal.SIGKILL)
    with pytest.raises(ChildDied, match="SIGKILL"):
        await hanging
    await until_gone(first)
    second = await run(pool, tasks.pid)
    forker = parent_of(second)
    assert forker not in (server, os.getpid())
    pool.close(5)
    await until_gone(forker)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (
            "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
            "starts threads",
        ),
        ("import socket; pair = socket.socketpair()", "opens socket"),
        ("raise RuntimeError('out of order')", "cannot be imported"),
    ],
)
async def test_an_app_that_is_not_safe_to_fork_is_imported_after_the_fork(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    source: str,
    why: str,
) -> None:
    (tmp_path / "unsafe_app.py").write_text(f"from tests.worker.process_tasks import app\n{source}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    pool = ProcessPool(1, "unsafe_app:app", ChildOptions(start="preload"))
    if "raise" in source:
        with pytest.raises(ChildDied, match="out of order"):
            await run(pool, tasks.add, 1, 2)
    else:
        assert await run(pool, tasks.add, 1, 2) == 3
        assert await run(pool, tasks.add, 1, 2) == 3
    assert why in caplog.text
    assert caplog.text.count("process_start=preload") == 1
    pool.close(5)


async def test_a_preloaded_child_shares_the_import_of_the_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "imports"
    (tmp_path / "counted_app.py").write_text(
        f"import os\nfrom tests.worker.process_tasks import app\nopen({str(log)!r}, 'a').write('x')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    pool = ProcessPool(1, "counted_app:app", ChildOptions(start="preload"))
    for _ in range(3):
        with pytest.raises(ChildDied):
            await run(pool, tasks.die, "kill")
    assert log.read_text() == "x"
    pool.close(5)


async def test_a_preload_that_ends_the_process_fails_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app_that_exits.py").write_text("import os\nos._exit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    pool = ProcessPool(1, "app_that_exits:app", ChildOptions(start="preload"))
    async with asyncio.timeout(60):
        with pytest.raises(ChildBroken, match="has ended"):
            await run(pool, tasks.add, 1, 2)
    pool.close(5)


async def test_a_preload_that_hangs_is_replaced_after_its_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "app_that_hangs.py"
    module.write_text("import time\ntime.sleep(3600)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    pool = ProcessPool(2, "app_that_hangs:app", ChildOptions(start="preload", start_timeout=0.5))
    assert await pool.prestart(2) == 0
    module.write_text("from penstock import App\napp = App('memory://')\n")
    pool._options = replace(pool._options, start_timeout=30.0)
    assert await pool.prestart(1) == 1
    pool.close(5)


async def test_a_process_that_hangs_in_a_fork_is_replaced_and_its_children_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = ProcessPool(2, APP)
    started = tmp_path / "started"
    hanging = asyncio.create_task(run(pool, tasks.hang, str(started)))
    old = int(await text_of(started))
    server = parent_of(old)
    os.kill(server, signal.SIGSTOP)
    monkeypatch.setattr(fork_starter, "_FORK_WITHIN", 0.2)
    assert await pool.prestart(2) == 1
    monkeypatch.undo()
    assert await pool.prestart(2) == 2
    assert parent_of(await run(pool, tasks.pid)) not in (server, os.getpid())
    assert not hanging.done()
    os.kill(old, signal.SIGKILL)  # its end is seen, although the process that forked it reports none
    with pytest.raises(ChildDied, match="cause unknown"):
        await hanging
    await until_gone(server)
    pool.close(5)


async def test_many_deaths_and_closings_do_not_disturb_the_process_that_forks() -> None:
    pool = ProcessPool(4, APP)
    assert await run(pool, tasks.add, 1, 2) == 3
    server = parent_of(pool.pids[0])
    for _ in range(20):
        await pool.prestart(4)
        for child in list(pool._group.active):
            child.kill()
            if child.pid % 2:
                child.end(1.0)  # reaps it before its end is reported
                pool._group.active.remove(child)
        assert await run(pool, tasks.add, 1, 2) == 3
    assert {parent_of(pid) for pid in pool.pids} == {server}
    pool.close(5)


# ── replacement ──────────────────────────────────────────────────────────────────────────────────


async def children(pool: ProcessPool, n: int) -> list[int]:
    """The pids, once there are this many children."""
    async with asyncio.timeout(60):
        while len(pool.pids) < n:
            await asyncio.sleep(0.002)
    return pool.pids


@pytest.mark.parametrize("start", STARTS)
async def test_a_successor_is_ready_while_the_last_job_of_its_predecessor_runs(
    tmp_path: Path, start: str
) -> None:
    pool = ProcessPool(1, APP, ChildOptions(start=start, limits=ChildLimits(jobs=1)))
    for n in range(3):
        gate = tmp_path / str(n)
        last = asyncio.create_task(run(pool, tasks.pid_when, str(gate)))
        old, new = await children(pool, 2)
        gate.touch()
        assert await last == old
        assert pool.pids == [new]
    pool.close(5)


async def test_a_successor_is_ready_before_a_growing_child_reaches_its_limit() -> None:
    pool = ProcessPool(1, APP, ChildOptions(limits=ChildLimits(memory=240 << 20)))
    old = await run(pool, tasks.pid)
    await run(pool, tasks.keep, 205)
    _, new = await children(pool, 2)
    assert await run(pool, tasks.pid) == old, "a successor takes no calls before"
    await run(pool, tasks.keep, 60)
    assert pool.pids == [new]
    assert await run(pool, tasks.pid) == new
    pool.close(5)


async def test_a_waiting_successor_gets_no_place_beyond_the_size_of_the_pool(tmp_path: Path) -> None:
    pool = ProcessPool(1, APP, ChildOptions(limits=ChildLimits(jobs=1)))
    gates = [tmp_path / "0", tmp_path / "1"]
    first, second = (asyncio.create_task(run(pool, tasks.pid_when, str(gate))) for gate in gates)
    old, new = await children(pool, 2)
    gates[1].touch()
    assert pool.busy == 2
    gates[0].touch()
    assert (await first, await second) == (old, new)
    pool.close(5)


@pytest.mark.parametrize("start", STARTS)
async def test_a_spare_child_takes_the_place_of_one_that_dies(tmp_path: Path, start: str) -> None:
    pool = ProcessPool(1, APP, ChildOptions(start=start, spares=1))
    for n in range(2):
        started = tmp_path / str(n)
        hanging = asyncio.create_task(run(pool, tasks.hang, str(started)))
        pid = int(await text_of(started))
        (spare,) = {*await children(pool, 2)} - {pid}
        waiting = asyncio.create_task(run(pool, tasks.pid))
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ChildDied, match="SIGKILL"):
            await hanging
        assert await waiting == spare
    pool.close(5)
