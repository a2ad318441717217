"""A worker and its supervisor load only what they use, and a forked worker process is like a new one."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.worker.supervisor.worker_process import ForkedProcess, can_fork
from tests.servers.single import RedisServer
from tests.system.conftest import Place, Program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")

#: Runs `penstock`; each of its processes writes down at its end which modules it has loaded.
PROGRAM = """\
import atexit, os, sys
from pathlib import Path

supervisor = os.getpid()

def write() -> None:
    role = "supervisor" if os.getpid() == supervisor else "worker"
    Path(role).write_text("\\n".join(sys.modules))

atexit.register(write)
from penstock.cli.main import main
main()
"""

APP = """\
import atexit, json, os, signal, sys
from penstock import App

app = App({url!r})

@app.task
def work() -> None: ...

def write(what: str, **facts: object) -> None:
    with open("facts", "a") as file:
        file.write(json.dumps({{"what": what, "pid": os.getpid(), **facts}}) + "\\n")

def kind(fd: str) -> str:
    link = os.readlink(f"/proc/self/fd/{{fd}}")
    return link.rpartition(".")[2] if link.startswith("/") else link.split(":[")[0]

@app.on_startup
def started() -> None:
    main = sys.modules["__main__"]
    ours = {{fd for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{{fd}}")}}
    write(
        "start",
        main=main.__spec__.name,
        argv=sys.argv,
        stdin=kind("0"),
        files=sorted(kind(fd) for fd in ours if fd not in "012"),
        interrupts=getattr(handler := signal.getsignal(signal.SIGINT), "__qualname__", str(handler)),
        blocked=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    )
    atexit.register(write, "exit")
"""

#: What neither the supervisor nor a worker loads.
NOBODY = (
    *("rich", "redis", "cryptography", "email", "csv", "zipfile", "importlib.metadata", "tomllib", "difflib"),
    *("penstock.verify", "penstock.demo", "penstock.testing", "penstock.inspector", "penstock.pool"),
    "penstock.stores.encrypted.store",
)
#: What only a worker loads.
WORKER = (
    *("uvloop", "sqlite3", "hiredis", "penstock.codec", "penstock.client", "penstock.app.app"),
    *("penstock.worker.worker", "penstock.worker.process", "penstock.worker.executor"),
    *("penstock.stores.sqlite", "penstock.stores.redis", "penstock.stores.memory"),
)
OTHER_STORES = {
    "sqlite": ("hiredis", "penstock.stores.redis", "penstock.stores.memory"),
    "redis": ("sqlite3", "penstock.stores.sqlite", "penstock.stores.memory"),
}
COMMANDS = {"worker"}
#: Most modules of Penstock that a process has loaded. Raise them for a reason.
MOST = {"supervisor": 90, "worker": 289}


def make_app(place: Place, url: str) -> None:
    (place.folder / "small.py").write_text(APP.format(url=url))


def facts(place: Place, what: str) -> list[dict[str, Any]]:
    file = place.folder / "facts"
    lines = file.read_text().splitlines() if file.exists() else []
    return [found for line in lines if (found := json.loads(line))["what"] == what]


def loaded(place: Place, role: str) -> list[str]:
    return (place.folder / role).read_text().splitlines()


def among(modules: list[str], names: tuple[str, ...]) -> list[str]:
    return [name for name in names if any(m == name or m.startswith(f"{name}.") for m in modules)]


def worker(place: Place, *options: str) -> Program:
    program = place.start("-m", "penstock", "worker", "small:app", *options)
    place.until(lambda: " serves " in program.log, "the worker serves")
    return program


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_a_worker_and_its_supervisor_load_only_what_they_use(
    place: Place, store: str, new_redis: Callable[..., RedisServer]
) -> None:
    make_app(place, place.url if store == "sqlite" else new_redis().url)
    (place.folder / "program.py").write_text(PROGRAM)
    program = place.start("program.py", "worker", "small:app", "--burst")
    assert program.wait() == 0
    ours, its = loaded(place, "supervisor"), loaded(place, "worker")
    assert among(ours, (*NOBODY, *WORKER)) == [], "the supervisor has loaded what it does not use"
    assert among(its, (*NOBODY, *OTHER_STORES[store])) == [], "the worker has loaded what it does not use"
    for modules in (ours, its):
        commands = {m.split(".")[3] for m in modules if m.startswith("penstock.cli.commands.")}
        assert commands == COMMANDS
    for role, modules in (("supervisor", ours), ("worker", its)):
        found = sorted(m for m in modules if m.startswith("penstock"))
        assert len(found) <= MOST[role], f"the {role} has loaded more modules than before: {found}"


def test_a_forked_worker_process_finds_what_a_new_program_finds(place: Place) -> None:
    make_app(place, place.url)
    program = worker(place, "--processes", "2")
    place.until(lambda: len(facts(place, "start")) == 2, "both have started")
    command = Path(f"/proc/{program.pid}/cmdline").read_bytes()
    first = facts(place, "start")
    for each in first:
        assert Path(f"/proc/{each['pid']}/cmdline").read_bytes() == command, "it is a fork"
        os.kill(each["pid"], signal.SIGKILL)
    place.until(lambda: len(facts(place, "start")) == 4, "both are replaced")
    second = facts(place, "start")[2:]
    for each in second:
        assert b"penstock.worker.process" in Path(f"/proc/{each['pid']}/cmdline").read_bytes()
    for one, other in zip(first, second, strict=True):
        assert {**one, "pid": 0} == {**other, "pid": 0}


def test_a_forked_worker_process_ends_as_a_program_does(place: Place) -> None:
    make_app(place, place.url)
    program = worker(place)
    (pid,) = program.children()
    program.signal(signal.SIGTERM)
    assert program.wait() == 0
    assert [fact["pid"] for fact in facts(place, "exit")] == [pid]


def test_forked_worker_processes_end_when_their_supervisor_is_killed(place: Place) -> None:
    make_app(place, place.url)
    program = worker(place, "--processes", "3")
    place.until(lambda: len(facts(place, "start")) == 3, "all have started")
    program.signal(signal.SIGKILL)
    place.until(lambda: len(facts(place, "exit")) == 3, "all have ended")


def test_a_process_with_a_second_thread_is_not_forked() -> None:
    if threading.active_count() > 1:
        assert not can_fork()
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        assert not can_fork()
    finally:
        ended.set()
        thread.join()


def test_a_signal_after_the_end_of_a_fork_hits_nobody() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(3)
    child = ForkedProcess(pid)
    assert child.wait() == 3
    assert child.wait() == 3
    child.send_signal(signal.SIGKILL)
