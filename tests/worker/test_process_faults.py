"""Process tasks whose processes die in every way: each attempt is charged once, its neighbours none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from penstock import App
from penstock.config import load
from penstock.core.job import State
from penstock.worker.pools import ProcessCall
from penstock.worker.pools.fork_starter import ForkStarter
from penstock.worker.pools.starters import SpawnStarter
from tests.worker import process_tasks as tasks
from tests.worker.conftest import at_work, ended, until

NEIGHBOURS = 40


def config(**knobs: Any) -> Any:
    knobs.setdefault("process_slots", 2)
    return load(knobs, env={}, file=Path("/dev/null")).config


def made(app: App, task: Any, **options: Any) -> Any:
    """This task of the module, on the app's store."""
    options.setdefault("retention", "1h")
    return app.task(name=task.name, run_in="process", **options)(task.function)


@pytest.mark.parametrize(
    ("task", "arguments", "kind", "message"),
    [
        (tasks.die, ("kill",), "ChildDied", "killed by SIGKILL"),
        (tasks.die, ("segv",), "ChildDied", "killed by SIGSEGV"),
        (tasks.die, ("exit",), "ChildDied", "exit code 3"),
        (tasks.exhaust, (1 << 30,), "MemoryError", ""),
        (tasks.never_return, (), "Timeout", "the attempt timed out after 0.3 s"),
    ],
    ids=["SIGKILL", "SIGSEGV", "os._exit", "out of memory", "a call in C that never returns"],
)
async def test_a_fault_is_charged_once_and_costs_no_neighbour_an_attempt(
    app: App, task: Any, arguments: tuple[Any, ...], kind: str, message: str
) -> None:
    quick = made(app, tasks.add)
    options = {"timeout": 0.3} if task is tasks.never_return else {}
    faulty = made(app, task, max_attempts=2, retry=0.01, **options)
    async with at_work(app, config=config()):
        warm = [await quick.aenqueue(n) for n in range(4)]
        for handle in warm:
            await ended(handle)  # from now on, calls are known to be short
        first = [await quick.aenqueue(n) for n in range(NEIGHBOURS)]
        bad = await faulty.aenqueue(*arguments)
        behind = [await quick.aenqueue(n) for n in range(NEIGHBOURS)]
        for handle in [*first, *behind]:
            job = await ended(handle)
            assert (job.state, job.attempt, job.errors) == (State.COMPLETED, 1, ())
        dead = await ended(bad)
    assert (dead.state, dead.attempt) == (State.DEAD, 2)
    assert [error.kind for error in dead.errors] == [kind] * 2
    for error in dead.errors:
        assert error.message.startswith(message)


async def test_a_crash_names_its_task_and_keeps_the_last_lines_of_stderr(
    app: App, capfd: pytest.CaptureFixture[str]
) -> None:
    crashes = made(app, tasks.die_with_words, max_attempts=1)
    async with at_work(app, config=config(process_slots=1)):
        job = await ended(await crashes.aenqueue("kill", "famous last words"))
    (error,) = job.errors
    assert error.message == f"killed by SIGKILL while it ran {tasks.die_with_words.name}"
    assert error.traceback == "famous last words\nand by a library"
    assert "famous last words" in capfd.readouterr().err


async def test_a_fork_beside_threads_harms_no_call(app: App) -> None:
    forks, quick = made(app, tasks.fork_beside_threads), made(app, tasks.add)
    async with at_work(app, config=config()):
        handles = [await forks.aenqueue() for _ in range(3)]
        beside = [await quick.aenqueue(n) for n in range(NEIGHBOURS)]
        assert [await handle.aresult(60) for handle in handles] == [7, 7, 7]
        assert [await handle.aresult(60) for handle in beside] == list(range(1, NEIGHBOURS + 1))


@pytest.mark.parametrize(("start", "starter"), [("fork", ForkStarter), ("spawn", SpawnStarter)])
async def test_a_successor_that_cannot_be_started_costs_no_job(
    app: App, monkeypatch: pytest.MonkeyPatch, start: str, starter: Any
) -> None:
    quick, crash = made(app, tasks.add), made(app, tasks.die, max_attempts=1)
    async with at_work(app, config=config(process_start=start)):
        assert await (await quick.aenqueue(1)).aresult(60) == 2
        started, refused = starter.start, 0

        async def limited(*args: Any) -> Any:
            nonlocal refused
            refused += 1
            if refused <= 2:
                raise OSError(11, os.strerror(11))
            return await started(*args)

        monkeypatch.setattr(starter, "start", limited)
        dead = await crash.aenqueue("kill")
        handles = [await quick.aenqueue(n) for n in range(NEIGHBOURS)]
        for handle in handles:
            job = await ended(handle)
            assert (job.state, job.attempt, job.errors) == (State.COMPLETED, 1, ())
        assert (await ended(dead)).state is State.DEAD


async def test_jobs_fetched_while_no_child_can_start_run_once_one_can(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = made(app, tasks.add)
    async with at_work(app, config=config()) as worker:
        for n in range(2):
            await (await quick.aenqueue(n)).aresult(60)  # from the second on, calls are known to be short
        assert worker._services is not None
        parts = worker._services
        processes = parts.executor._processes
        await until(lambda: not (parts.slots.running or parts.slots.started.is_set()), "the watch sleeps")
        monkeypatch.setattr(processes, "lacks_resources", lambda: True)
        handles = [await quick.aenqueue(n) for n in range(3)]
        await until(lambda: bool(parts.executor.admission.backlog), "jobs wait for a child")
        monkeypatch.undo()
        assert [await handle.aresult(60) for handle in handles] == [1, 2, 3]


async def test_children_have_the_niceness_and_the_processors_of_their_settings(app: App) -> None:
    rank = made(app, tasks.rank)
    cpu = min(os.sched_getaffinity(0))
    async with at_work(app, config=config(process_nice=3, process_cpus=str(cpu))):
        assert await (await rank.aenqueue()).aresult(60) == (min(19, os.nice(0) + 3), [cpu])


async def test_a_worker_asks_a_queue_of_process_tasks_for_no_more_than_its_free_process_slots(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = made(app, tasks.add)
    async with at_work(app, config=config(concurrency=20)) as worker:
        assert await (await quick.aenqueue(1)).aresult(60) == 2  # from now on, calls are known to be short
        assert worker._services is not None
        store = worker._services.fetcher._store
        fetch, free = store.fetch, []

        async def noted(shares: Any, **options: Any) -> Any:
            free.extend(share.free for share in shares)
            return await fetch(shares, **options)

        monkeypatch.setattr(store, "fetch", noted)
        handles = [await quick.aenqueue(n) for n in range(NEIGHBOURS)]
        assert [await handle.aresult(60) for handle in handles] == list(range(1, NEIGHBOURS + 1))
        monkeypatch.setattr(store, "fetch", fetch)
    assert free
    assert set(free) <= {1, 2}


async def test_a_call_may_start_until_its_lease_ends_counted_from_its_last_extension(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    nap = made(app, tasks.nap)
    async with at_work(app, config=config(lease="1500ms", heartbeat="100ms")) as worker:
        handle = await nap.aenqueue(1.0)
        assert worker._services is not None
        leases = worker._services.leased_jobs
        await until(lambda: any(leased.extended for leased in leases), "its lease was extended")
        (leased,) = leases
        assert leased.extended > leased.fetched
        processes = worker._services.executor._processes
        call = ProcessCall(leased, leased.job, ("", ""), 0)
        assert processes.lease_end(call) == leased.extended + 1.5
        leased.extended = 0.0
        assert processes.lease_end(call) == leased.fetched + 1.5
        await handle.aresult(60)
