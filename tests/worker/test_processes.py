"""Child processes: they run, can be killed, and their deaths are explained."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from penstock.app.app import App
from penstock.config import load
from penstock.core.ids import mint
from penstock.core.job import Job, NewJob, Progress, State
from penstock.core.outcomes import Cancelled, DecodingFailed, Raised, Snoozed
from penstock.errors import ConfigError
from penstock.worker import Worker
from penstock.worker.pools import (
    ChildBroken,
    ChildDied,
    ChildFailed,
    ChildLimits,
    ChildOptions,
    EncodedResult,
    ProcessPool,
    process_pool,
)
from penstock.worker.pools.child_process import ChildProcess
from tests.worker import process_tasks as tasks

APP = "tests.worker.process_tasks:app"
NOW = 1_700_000_000_000


@pytest_asyncio.fixture
async def pool() -> AsyncIterator[ProcessPool]:
    pool = ProcessPool(2, APP)
    yield pool
    pool.close(5)


def job_of(task: Any, *args: Any, **spec: Any) -> Job:
    payload = task.args.encode(args, {})
    spec.setdefault("retention", 60_000)  # else no result would be made
    new = NewJob(mint(), task.name, payload, **spec)
    return Job(new, State.RUNNING, attempt=2, token="t" * 24)


def reference(task: Any) -> tuple[str, str]:
    return task.function.__module__, task.function.__qualname__


async def run(pool: ProcessPool, task: Any, *args: Any, ticket: Any = None, **options: Any) -> Any:
    async with asyncio.timeout(60):
        end = await pool.run(ticket or object(), job_of(task, *args), reference(task), now=NOW, **options)
    assert isinstance(end, EncodedResult)
    return None if end.result is None else task.result.decode(end.result)


async def failure(pool: ProcessPool, task: Any, *args: Any) -> Any:
    with pytest.raises(ChildFailed) as caught:
        await run(pool, task, *args)
    return caught.value.outcome


async def text_of(path: Path) -> str:
    """What a task has written, as soon as it has."""
    async with asyncio.timeout(60):
        while not path.exists() or not path.read_text():
            await asyncio.sleep(0.005)
    return path.read_text()


async def until_gone(pid: int) -> None:
    async with asyncio.timeout(60):
        while _lives(pid):
            await asyncio.sleep(0.005)


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


# ── it runs ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_task_runs_in_another_process_and_its_result_comes_back(pool: ProcessPool) -> None:
    assert await run(pool, tasks.add, 2, 3) == 5
    assert await run(pool, tasks.pid) != os.getpid()
    assert await run(pool, tasks.nothing) is None


async def test_a_child_runs_many_jobs_and_children_start_when_they_are_needed(pool: ProcessPool) -> None:
    assert pool.pids == []
    first = [await run(pool, tasks.pid) for _ in range(20)]
    assert len(set(first)) == 1 == len(pool.pids)
    many = await asyncio.gather(*(run(pool, tasks.pid) for _ in range(20)))
    assert set(many) <= set(pool.pids)
    assert len(pool.pids) <= 2


async def test_big_arguments_and_results_pass_through(pool: ProcessPool) -> None:
    assert await run(pool, tasks.lengthen, "ä" * 200_000, 2) == "ä" * 400_000


async def test_the_task_knows_its_job_its_time_and_its_apps_state(pool: ProcessPool) -> None:
    job = job_of(tasks.facts, queue="mail")
    end = await pool.run("t", job, reference(tasks.facts), seconds=30)
    assert msgspec.json.decode(end.result or b"") == {
        "id": job.id,
        "task": tasks.facts.name,
        "queue": "mail",
        "attempt": 2,
        "remaining": True,
        "state": True,
        "argv": sys.argv[0],
    }
    assert (await run(pool, tasks.facts))["remaining"] is None


async def test_a_raw_handler_gets_the_job_as_it_came(pool: ProcessPool) -> None:
    new = NewJob("x", "anything", b"\x00\x01", queue="raw", retention=1_000)
    job = Job(new, State.RUNNING, attempt=1, token="t")
    end = await pool.run("t", job, (tasks.raw.__module__, "raw"))
    assert msgspec.json.decode(end.result or b"") == "anything 1 b'\\x00\\x01'"


async def test_without_an_app_spec_the_functions_own_module_is_asked() -> None:
    pool = ProcessPool(1)
    assert await run(pool, tasks.add, 1) == 2
    assert (await run(pool, tasks.facts))["state"]
    pool.close(5)


async def test_the_start_is_reported_when_the_function_starts(pool: ProcessPool) -> None:
    heard: list[float | None] = []
    ticket = object()
    before = time.monotonic()
    await run(pool, tasks.add, 1, ticket=ticket, on_start=lambda: heard.append(pool.started_at(ticket)))
    assert len(heard) == 1
    assert heard[0] is not None
    assert before < heard[0] <= time.monotonic()
    assert pool.started_at(ticket) is None
    assert pool.busy == 0


async def test_progress_events_are_rate_limited_and_the_last_one_always_comes(pool: ProcessPool) -> None:
    heard: list[Progress] = []
    await run(pool, tasks.tell, 20_000, on_progress=heard.append)
    assert heard[0] == Progress(0, 20_000)
    assert heard[-1] == Progress(20_000, 20_000, "done")
    assert {type(number) for p in heard for number in (p.done, p.of)} == {int}
    assert len(heard) < 100
    assert [p.done for p in heard] == sorted(p.done for p in heard)


async def test_what_a_task_prints_does_not_disturb_the_talk_with_the_worker(
    pool: ProcessPool, capfd: pytest.CaptureFixture[str]
) -> None:
    assert await run(pool, tasks.noisy, 100_000) == "quiet"
    out, err = capfd.readouterr()
    assert "x" * 100_000 in out
    assert "and to stderr" in err


# ── it fails ─────────────────────────────────────────────────────────────────────────────────────


async def test_an_exception_comes_back_as_the_outcome_it_means(pool: ProcessPool) -> None:
    raised = await failure(pool, tasks.fail, "value")
    assert isinstance(raised, Raised)
    assert (raised.error.kind, raised.error.message, raised.error.attempt) == ("ValueError", "it is wrong", 2)
    assert NOW <= raised.error.at < NOW + 600_000
    assert 'raise ValueError("it is wrong")' in raised.error.traceback
    assert "penstock/worker" not in raised.error.traceback
    assert (await failure(pool, tasks.fail, "retry")).delay == 1500
    assert await failure(pool, tasks.fail, "snooze") == Snoozed(120_000)
    assert (await failure(pool, tasks.fail, "discard")).final
    assert await failure(pool, tasks.fail, "cancel") == Cancelled("not wanted")
    assert (await failure(pool, tasks.fail, "exit")).error.kind == "SystemExit"
    assert "Unshowable" in (await failure(pool, tasks.fail, "unshowable")).error.message
    assert len(pool.pids) == 1, "no failure of a task costs its process"


async def test_a_retry_function_is_asked_where_the_exception_is(pool: ProcessPool) -> None:
    assert (await failure(pool, tasks.fail_with_own_rule)).delay == 14_000


async def test_a_payload_that_does_not_fit_is_undecodable(pool: ProcessPool) -> None:
    job = Job(NewJob("x", tasks.add.name, b'{"a":"two"}'), State.RUNNING, attempt=1, token="t")
    with pytest.raises(ChildFailed) as caught:
        await pool.run("t", job, reference(tasks.add))
    assert isinstance(caught.value.outcome, DecodingFailed)


async def test_a_module_that_cannot_be_imported_is_the_jobs_failure_not_the_childs() -> None:
    pool = ProcessPool(1)
    job = Job(NewJob("x", "no.such"), State.RUNNING, attempt=1, token="t")
    for _ in range(2):
        with pytest.raises(ChildFailed, match=r"ModuleNotFoundError.*no_such_module"):
            await pool.run("t", job, ("no_such_module", "f"))
    with pytest.raises(ChildFailed, match=r"'no\.such' is not found in a child process"):
        await pool.run("t", job, ("json", "dumps"))
    assert await run(pool, tasks.add, 1) == 2
    assert len(pool.pids) == 1
    pool.close(5)


@pytest.mark.parametrize("app", ["no_such_module:app", "tests.worker.broken_app:app"])
async def test_an_app_that_cannot_start_is_reported_once_without_a_restart_loop(
    app: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawned = []
    real = process_pool.ChildProcess.open
    monkeypatch.setattr(
        process_pool.ChildProcess, "open", lambda child, *args: (spawned.append(1), real(child, *args))[1]
    )
    pool = ProcessPool(2, app)
    with caplog.at_level(logging.ERROR):
        for _ in range(20):
            with pytest.raises(ChildBroken, match=r"could not start: .*(no_such_module|out of order)"):
                await run(pool, tasks.add, 1)
    assert len(spawned) == 1
    assert sum("the next one waits" in r.getMessage() for r in caplog.records) == 1
    assert pool.busy == 0
    pool.close(5)


# ── it dies ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("segv", "killed by SIGSEGV"),
        ("exit", "exit code 3"),
        ("kill", "killed by SIGKILL"),
        ("hang up", "killed by its worker: it had closed its socket"),
    ],
)
async def test_the_death_of_a_child_is_reported_at_once_with_its_cause_and_the_next_job_runs(
    pool: ProcessPool, how: str, cause: str
) -> None:
    await run(pool, tasks.add, 1)
    with pytest.raises(ChildDied) as caught:
        await run(pool, tasks.die, how)
    assert caught.value.cause.startswith(cause)
    assert not isinstance(caught.value, ChildBroken)
    assert caught.value.killed == (how == "hang up")
    assert await run(pool, tasks.add, 1) == 2


async def test_a_death_is_seen_though_a_fork_still_holds_the_socket(
    pool: ProcessPool, tmp_path: Path
) -> None:
    try:
        with pytest.raises(ChildDied, match="exit code 4"):
            await run(pool, tasks.fork_and_die, str(tmp_path / "fork"))
    finally:
        fork = int((tmp_path / "fork").read_text())
        assert _lives(fork)
        os.kill(fork, signal.SIGKILL)


async def test_a_child_that_dies_as_soon_as_it_is_ready_takes_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle_message = ChildProcess._handle_message

    def die_on_ready(child: ChildProcess, message: Any) -> None:
        handle_message(child, message)
        assert child._process is not None
        os.kill(child.pid, signal.SIGKILL)
        child._exited()

    monkeypatch.setattr(ChildProcess, "_handle_message", die_on_ready)
    pool = ProcessPool(1, APP)
    try:
        with pytest.raises(ChildBroken, match="as soon as it was ready"):
            await run(pool, tasks.add, 1)
        assert pool.pids == []
    finally:
        pool.close()


async def test_a_killed_job_is_gone_with_its_helpers(pool: ProcessPool, tmp_path: Path) -> None:
    ticket, started = object(), tmp_path / "started"
    running = asyncio.ensure_future(run(pool, tasks.hang_with_helper, str(started), ticket=ticket))
    pid = int(await text_of(tmp_path / "started.own"))
    helpers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert len(helpers) == 1
    assert pool.started_at(ticket) is not None
    assert pool.kill(ticket)
    with pytest.raises(ChildDied, match="killed by its worker") as caught:
        await running
    assert caught.value.killed
    assert not _lives(pid)
    await until_gone(int(helpers[0]))
    assert not pool.kill(ticket)
    assert await run(pool, tasks.add, 1) == 2


async def test_a_job_that_waits_for_a_child_can_be_killed_too(tmp_path: Path) -> None:
    pool = ProcessPool(1, APP)
    first = asyncio.ensure_future(run(pool, tasks.hang, str(tmp_path / "a"), ticket="first"))
    await text_of(tmp_path / "a")
    second = asyncio.ensure_future(run(pool, tasks.add, 1, ticket="second"))
    await asyncio.sleep(0)
    assert pool.busy == 2
    assert pool.kill("second")
    with pytest.raises(ChildDied, match="before it began"):
        await second
    third = asyncio.ensure_future(run(pool, tasks.add, 1))
    pool.kill("first")
    with pytest.raises(ChildDied):
        await first
    assert await third == 2
    pool.close(5)


async def test_cancelling_the_wait_kills_the_job(pool: ProcessPool, tmp_path: Path) -> None:
    running = asyncio.ensure_future(run(pool, tasks.hang, str(tmp_path / "pid")))
    pid = int(await text_of(tmp_path / "pid"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until_gone(pid)
    assert await run(pool, tasks.add, 1) == 2


async def test_an_idle_child_that_dies_costs_nobody_a_job(pool: ProcessPool) -> None:
    pid = await run(pool, tasks.pid)
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        while pid in pool.pids:
            await asyncio.sleep(0.005)
    assert await run(pool, tasks.pid) != pid


async def test_helpers_that_a_job_left_behind_do_not_outlive_the_child(pool: ProcessPool) -> None:
    helper = await run(pool, tasks.start_helper)
    assert _lives(helper)
    with pytest.raises(ChildDied):
        await run(pool, tasks.die, "exit")
    await until_gone(helper)


async def test_children_end_after_their_share_of_jobs() -> None:
    pool = ProcessPool(1, APP, ChildOptions(limits=ChildLimits(jobs=3)))
    pids = [await run(pool, tasks.pid) for _ in range(7)]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 1]
    await until_gone(pids[0])
    pool.close(5)


async def test_a_child_that_has_grown_too_large_ends_between_two_jobs_and_none_is_lost() -> None:
    pool = ProcessPool(1, APP, ChildOptions(limits=ChildLimits(memory=200 << 20)))
    try:
        small = [await run(pool, tasks.keep, 1) for _ in range(3)]
        assert len(set(small)) == 1
        assert await run(pool, tasks.keep, 250) == small[0], "its job ends, whatever it takes"
        after = await asyncio.gather(*(run(pool, tasks.keep, 1) for _ in range(4)))
        assert len(set(after)) == 1
        assert after[0] != small[0]
        await until_gone(small[0])
    finally:
        pool.close(5)


async def test_a_child_that_was_replaced_is_so_before_the_next_job_comes() -> None:
    pool = ProcessPool(1, APP, ChildOptions(limits=ChildLimits(jobs=1)))
    try:
        first = await run(pool, tasks.pid)
        async with asyncio.timeout(60):
            while not pool.pids or first in pool.pids:
                await asyncio.sleep(0.01)
        (second,) = pool.pids
        assert await run(pool, tasks.pid) == second
    finally:
        pool.close(5)


async def test_the_settings_reach_the_children_of_a_worker(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/jobs.db?durability=normal")
    task = app.task(name=tasks.pid.name, run_in="process")(tasks.pid.function)
    handles = [await task.aenqueue() for _ in range(4)]
    knobs = {"process_slots": 1, "max_jobs_per_child": 2, "max_memory_per_child": "1GB"}
    worker = Worker(app, burst=True, config=load(knobs, env={}, file=Path("/dev/null")).config)
    await worker.run()
    pids = [await handle.aresult(60) for handle in handles]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [2, 2]
    app.close()


async def test_prestarted_children_wait_for_their_first_job(pool: ProcessPool) -> None:
    assert await pool.prestart(2) == 2
    pids = set(pool.pids)
    assert await run(pool, tasks.pid) in pids
    assert await pool.prestart(9) == 2


# ── it belongs to its worker ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_to_the_whole_service_does_not_end_a_child(pool: ProcessPool, number: int) -> None:
    assert await run(pool, tasks.signals_reach, int(number)) == "alive; programs ignore it: False"


async def test_a_child_has_a_process_group_of_its_own(pool: ProcessPool) -> None:
    pid = await run(pool, tasks.pid)
    assert os.getpgid(pid) == pid != os.getpgrp()


async def test_a_child_inherits_no_socket_but_its_own(pool: ProcessPool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        os.set_inheritable(server.fileno(), True)
        ours = os.readlink(f"/proc/self/fd/{server.fileno()}")
        theirs = await run(pool, tasks.open_sockets)
    assert theirs
    assert ours not in theirs


async def test_closing_runs_shutdown_hooks_in_idle_children_and_kills_busy_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = tmp_path / "finished"
    monkeypatch.setenv("TEST_FINISHED", str(finished))
    pool = ProcessPool(2, APP)
    assert await pool.prestart(2) == 2
    running = asyncio.ensure_future(run(pool, tasks.hang, str(tmp_path / "pid")))
    busy = int(await text_of(tmp_path / "pid"))
    (idle,) = set(pool.pids) - {busy}
    pool.close(10)
    assert not _lives(busy)
    assert not _lives(idle)
    assert finished.read_text() == f"{idle}\n"
    with pytest.raises(ChildDied, match="killed by its worker"):
        await running


WORKER = """
import asyncio, sys
from penstock.core.job import Job, NewJob, State
from penstock.worker.pools import ProcessPool
from tests.worker import process_tasks as tasks

async def main():
    pool = ProcessPool(1, "tests.worker.process_tasks:app")
    payload = tasks.hang.args.encode((sys.argv[1],), {})
    job = Job(NewJob("x", tasks.hang.name, payload), State.RUNNING, attempt=1, token="t")
    await pool.run("t", job, (tasks.__name__, "hang"))

asyncio.run(main())
"""


async def test_children_die_with_their_worker(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    path_here = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path_here}
    with subprocess.Popen([sys.executable, "-c", WORKER, str(path)], env=env) as worker:
        pid = int(await text_of(path))
        assert _lives(pid)
        worker.kill()
    await until_gone(pid)


SCRIPT = """
import asyncio, os, sys
from penstock import App
from penstock.core.job import Job, NewJob, State
from penstock.worker.pools import ProcessPool

app = App("memory://")

@app.task(run_in="process")
def double(n: int) -> int:
    return 2 * n

async def main():
    pool = ProcessPool(1, app.spec)
    new = NewJob("x", double.name, double.args.encode((21,), {}), retention=1_000)
    job = Job(new, State.RUNNING, attempt=1, token="t")
    end = await pool.run("t", job, (double.function.__module__, "double"))
    print(end.result.decode())
    pool.close(5)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["file", "module"])
def test_a_task_in_a_script_runs_and_the_scripts_guard_holds(tmp_path: Path, how: str) -> None:
    (tmp_path / "my_script.py").write_text(SCRIPT)
    command = ["my_script.py"] if how == "file" else ["-m", "my_script"]
    ran = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("42\n", "", 0)


def test_a_task_typed_at_a_prompt_is_refused_with_the_way_out() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert "put it into a file" in ran.stderr


def test_a_script_without_a_guard_does_not_become_a_worker_in_its_children(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text(SCRIPT.replace('if __name__ == "__main__":', "if True:"))
    ran = subprocess.run(
        [sys.executable, "bare.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert "put the start under `if __name__ ==" in ran.stderr


async def test_a_child_that_never_gets_ready_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_SLOW_START", "yes")
    pool = ProcessPool(1, "tests.worker.broken_app:app", ChildOptions(start_timeout=0.5))
    with pytest.raises(ChildBroken, match=r"start-up hooks took more than 0\.5 s"):
        await run(pool, tasks.add, 1)
    assert pool.pids == []
    pool.close(5)


async def test_a_pool_says_what_is_wrong_with_its_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="size=0"):
        ProcessPool(0)
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(ChildBroken, match="which Python"):
        await run(ProcessPool(1), tasks.add, 1)


@pytest.mark.skipif(sys.platform == "win32", reason="no uvloop")
def test_it_works_under_uvloop_as_well(tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        pool = ProcessPool(1, APP)
        assert await run(pool, tasks.lengthen, "x" * 300_000, 2) == "x" * 600_000
        with pytest.raises(ChildDied, match="exit code 3"):
            await run(pool, tasks.die, "exit")
        running = asyncio.ensure_future(run(pool, tasks.hang, str(tmp_path / "pid"), ticket="t"))
        await text_of(tmp_path / "pid")
        pool.kill("t")
        with pytest.raises(ChildDied, match="killed by its worker"):
            await running
        assert await run(pool, tasks.add, 1) == 2
        pool.close(5)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
