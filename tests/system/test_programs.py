"""Programs with an embedded worker: scripts, packages, and processes that fork."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from penstock.core.job import State
from tests.system.conftest import PATIENCE, Place

_SCRIPT = '''\
"""A program that is its own tasks, its own producer and its own worker."""

import asyncio
import json
import os

from penstock import App, Worker, current_job

app = App("sqlite:///script.db")


@app.task(run_in="process")
def square(n: int) -> list[int]:
    return [n * n, os.getpid(), current_job().attempt]


@app.task
def halve(n: int) -> int:
    return n // 2


@app.task
async def double(n: int) -> int:
    return 2 * n


async def main() -> None:
    squares = [await square.aenqueue(n) for n in range(6)]
    others = [await halve.aenqueue(8), await double.aenqueue(8)]
    await Worker(app, burst=True).run()
    results = [await handle.aresult(timeout=10) for handle in squares]
    assert all(pid != os.getpid() for _, pid, _ in results), "not in processes of their own"
    print(json.dumps([[n for n, _, _ in results], [await handle.aresult(timeout=10) for handle in others]]))
'''


def _run(
    place: Place, *command: str, timeout: float = PATIENCE, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=place.folder,
        env=place.env(**env),
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def _write(place: Place, name: str, text: str) -> None:
    path = place.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("command", [["worker.py"], ["./worker.py"], ["-m", "worker"]])
def test_a_script_is_its_own_worker_with_process_tasks(place, command):
    _write(place, "worker.py", f'{_SCRIPT}\n\nif __name__ == "__main__":\n    asyncio.run(main())\n')
    said = _run(place, *command)
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout) == [[0, 1, 4, 9, 16, 25], [4, 16]]


def test_a_package_that_is_run_is_its_own_worker(place):
    _write(place, "shop/__init__.py", "")
    _write(place, "shop/__main__.py", f'{_SCRIPT}\n\nif __name__ == "__main__":\n    asyncio.run(main())\n')
    said = _run(place, "-m", "shop")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout) == [[0, 1, 4, 9, 16, 25], [4, 16]]


_UNGUARDED = """\
import asyncio
import os

from penstock import App, Worker

app = App("sqlite:///script.db")


@app.task(run_in="process", max_attempts=1)
def square(n: int) -> int:
    return n * n


if os.environ.pop("ENQUEUE", ""):  # the processes that it starts do not have it any more
    square.enqueue(3)
asyncio.run(Worker(app, burst=True).run())
"""


def test_a_script_that_starts_its_worker_on_import_gets_a_clear_error(place):
    _write(place, "worker.py", _UNGUARDED)
    said = _run(place, "worker.py", ENQUEUE="1")
    assert said.returncode == 0
    assert 'put the start under `if __name__ == "__main__":`' in said.stderr
    assert "dead: the only attempt failed" in said.stderr


# ── forks ────────────────────────────────────────────────────────────────────────────────────────

_FORK = '''\
"""Enqueues before a fork, and after it on both sides, from the main thread, another thread and a loop."""

import asyncio
import os
import sys
import threading

from tasks import app, quick


def enqueue_all_ways(base: int) -> None:
    quick.enqueue(base)
    thread = threading.Thread(target=lambda: quick.enqueue(base + 1))
    thread.start()
    thread.join()

    async def several() -> None:
        await asyncio.gather(*(quick.aenqueue(base + 2 + n) for n in range(8)))

    asyncio.run(several())


enqueue_all_ways(0)
children = []
for number in (1, 2, 3):
    pid = os.fork()
    if pid == 0:
        try:
            enqueue_all_ways(100 * number)
            handle = quick.enqueue(100 * number + 10)
            assert handle.status() == "available"
            os._exit(0)
        finally:
            os._exit(1)
    children.append(pid)
    enqueue_all_ways(1000 * number)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
'''


def test_a_process_that_forks_enqueues_on_both_sides(place):
    _write(place, "fork.py", _FORK)
    said = _run(place, "fork.py")
    assert said.returncode == 0, said.stderr
    assert place.counts() == {State.AVAILABLE: 10 + 3 * 11 + 3 * 10}
    assert place.worker("--burst", ready=0).wait() == 0
    wanted = [*range(10), *(100 * n + i for n in (1, 2, 3) for i in range(11))]
    wanted += [1000 * n + i for n in (1, 2, 3) for i in range(10)]
    assert sorted(line["n"] for line in place.starts()) == sorted(wanted)


_BUSY_FORK = '''\
"""Forks while other threads enqueue as fast as they can: a lock that is held at that moment stays so."""

import os
import sys
import threading

from tasks import app, quick

over = threading.Event()
done = []


def produce() -> None:
    n = 0
    while not over.is_set():
        quick.enqueue(0)
        n += 1
    done.append(n)


quick.enqueue(0)  # Python's own locks of modules that are just being imported stay held, too
threads = [threading.Thread(target=produce) for _ in range(3)]
for thread in threads:
    thread.start()
codes = []
for _ in range(15):
    pid = os.fork()
    if pid == 0:
        try:
            for _ in range(5):
                quick.enqueue(1)
            os._exit(0)
        finally:
            os._exit(1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
over.set()
for thread in threads:
    thread.join()
print(1 + sum(done) + 5 * codes.count(0))
sys.exit(max(codes))
'''


def test_a_process_that_forks_while_its_threads_enqueue_loses_nothing(place):
    _write(place, "fork.py", _BUSY_FORK)
    said = _run(place, "-W", "ignore::DeprecationWarning", "fork.py", timeout=60)
    assert said.returncode == 0, said.stderr
    assert place.counts() == {State.AVAILABLE: int(said.stdout)}


_FORKED_WORKER = '''\
"""A process that has enqueued forks one that works, as a server with workers forked from it does."""

import asyncio
import os
import sys

from penstock import Worker
from tasks import app, quick, quick_process, quick_thread

handles = [quick.enqueue(1), quick_thread.enqueue(2), quick_process.enqueue(3)]
pid = os.fork()
if pid == 0:
    try:
        asyncio.run(Worker(app, burst=True).run())
        os._exit(0)
    finally:
        os._exit(1)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert [handle.result(timeout=5) for handle in handles] == [1, 2, 3]
sys.exit(code)
'''


def test_a_forked_process_works(place):
    _write(place, "fork.py", f'if __name__ == "__main__":\n{_indented(_FORKED_WORKER)}')
    said = _run(place, "fork.py")
    assert said.returncode == 0, said.stderr


def _indented(text: str) -> str:
    return "".join(f"    {line}" if line.strip() else line for line in text.splitlines(keepends=True))


def test_a_task_that_forks_affects_no_other_job(place):
    """A child of a task, forked or started, does not keep its worker's proof of life or control socket."""
    # what brings the jobs back is the proof that their worker is dead, not the end of its lease
    worker = place.worker("--processes", "2", "--concurrency", "4", ready=2, PENSTOCK_LEASE="1h")
    tasks = place.tasks
    handles = [tasks.fork.enqueue("go") for _ in range(2)]
    lines = place.until_started(2)
    for pid in {line["pid"] for line in lines}:
        os.kill(pid, signal.SIGKILL)
    place.until_started(4)
    place.open("go")
    assert {job.state for job in place.until_ended(handles)} == {State.COMPLETED}
    assert not worker.ended
