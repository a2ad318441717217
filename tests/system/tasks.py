"""The tasks of the system tests. Each test has a copy of this file, with its store beside it.

Each task appends one line per event to a file, in a single write, so that a SIGKILL in the next instruction
loses none.
"""

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import re
import signal
import sqlite3
import time
from pathlib import Path

import msgspec

from penstock import App, AttemptError, Job, current_job
from penstock.events import Event
from penstock.verify.ledger import Ledger

HERE = Path(__file__).parent
RECORD = HERE / "record.jsonl"
#: Only where a test has made the folder: a ledger puts a middleware around every attempt.
LEDGER = HERE / "ledger"

log = logging.getLogger("tasks")

app = App(f"sqlite:///{HERE / 'jobs.db'}")
if LEDGER.is_dir():
    Ledger(LEDGER).watch(app)
#: Events are told only where a test has asked for them: most of the time nobody listens.
if (HERE / "listen").exists():

    @app.on(Event)
    def hear(event: Event) -> None:
        told = msgspec.to_builtins(event)
        facts = {"task": "", "id": "", "attempt": 0}
        _write({**facts, **told, "what": type(event).__name__, "pid": os.getpid()})


#: Likewise for callbacks.
if (HERE / "call back").exists():

    @app.on_dead
    def call_back(job: Job, error: AttemptError) -> None:
        facts = {"task": job.task, "id": job.id, "attempt": job.attempt, "pid": os.getpid()}
        _write({"what": "dead", "error": error.message, "errors": len(job.errors), **facts})


def note(what: str, **more: object) -> None:
    """Append a line about the running attempt."""
    job = current_job()
    _write({"what": what, "task": job.task, "id": job.id, "attempt": job.attempt, "pid": os.getpid(), **more})


def _write(line: dict[str, object]) -> None:
    line["at"] = time.monotonic()  # one clock for all processes of a machine
    fd = os.open(RECORD, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, json.dumps(line).encode() + b"\n")
    finally:
        os.close(fd)


# ── tasks that behave ────────────────────────────────────────────────────────────────────────────


@app.task(name="quick")
async def quick(n: int = 0) -> int:
    note("start", n=n)
    return n


@app.task(name="quick_thread")
def quick_thread(n: int = 0) -> int:
    note("start", n=n)
    return n


@app.task(name="quick_process", run_in="process")
def quick_process(n: int = 0) -> int:
    note("start", n=n)
    return n


@app.task(name="nap")
async def nap(seconds: float) -> int:
    note("start")
    await asyncio.sleep(seconds)
    note("end")
    return os.getpid()


@app.task(name="nap_thread")
def nap_thread(seconds: float) -> int:
    note("start")
    time.sleep(seconds)
    note("end")
    return os.getpid()


@app.task(name="nap_process", run_in="process")
def nap_process(seconds: float) -> int:
    note("start")
    time.sleep(seconds)
    note("end")
    return os.getpid()


@app.task(name="held")
async def held(gate: str) -> int:
    """Run until the gate (a file) opens."""
    note("start")
    while not (HERE / gate).exists():
        await asyncio.sleep(0.05)
    note("end")
    return os.getpid()


@app.task(name="held_thread")
def held_thread(gate: str) -> int:
    note("start")
    while not (HERE / gate).exists():
        time.sleep(0.05)
    note("end")
    return os.getpid()


@app.task(name="held_process", run_in="process")
def held_process(gate: str) -> int:
    note("start")
    while not (HERE / gate).exists():
        time.sleep(0.05)
    note("end")
    return os.getpid()


def _say(words: str) -> None:
    try:
        assert words != "trouble"
        log.info(words)
    except AssertionError:
        log.exception(words)


@app.task(name="say")
async def say(words: str) -> None:
    await asyncio.sleep(0)
    _say(words)


@app.task(name="say_thread")
def say_thread(words: str) -> None:
    _say(words)


@app.task(name="say_process", run_in="process")
def say_process(words: str) -> None:
    _say(words)


@app.task(name="keep_books")
def keep_books(n: int) -> int:
    """The application has tables of its own in the same file, through the same SQLite library."""
    note("start")
    cx = sqlite3.connect(HERE / "jobs.db", timeout=30)
    try:
        with cx:
            cx.execute("CREATE TABLE IF NOT EXISTS books (n INTEGER, pid INTEGER)")
            cx.execute("INSERT INTO books VALUES (?, ?)", (n, os.getpid()))
    finally:
        cx.close()
    return n


# ── tasks that do not ────────────────────────────────────────────────────────────────────────────


@app.task(name="block")
async def block(seconds: float) -> int:
    """Stop the event loop, as a blocking call in an async function does."""
    note("start")
    time.sleep(seconds)
    note("end")
    return os.getpid()


@app.task(name="block_until")
async def block_until(gate: str) -> int:
    """The same, until the gate (a file) opens."""
    note("start")
    while not (HERE / gate).exists():
        time.sleep(0.01)
    note("end")
    return os.getpid()


@app.task(name="hold_gil")
async def hold_gil(seconds: int) -> int:
    """Stop every thread of the process, as a C extension does that does not let go of the GIL."""
    note("start")
    ctypes.PyDLL(None).sleep(seconds)
    note("end")
    return os.getpid()


@app.task(name="hold_gil_thread")
def hold_gil_thread(seconds: int) -> int:
    note("start")
    ctypes.PyDLL(None).sleep(seconds)
    note("end")
    return os.getpid()


@app.task(name="grind")
async def grind(seconds: float) -> float:
    """One `re.match` that takes about so long: the engine never lets go of the GIL."""
    note("start")
    began = time.monotonic()
    re.match(_PATTERN, "a" * _length_for(seconds))
    took = time.monotonic() - began
    note("end", took=took)
    return took


_PATTERN = r".*.*.*x"


def _length_for(seconds: float) -> int:
    """The pattern takes time with the cube of the length."""
    length, took = 150, 0.0
    while took < 0.02:
        length *= 2
        began = time.thread_time()  # on a busy machine the clock on the wall says nothing of our work
        re.match(_PATTERN, "a" * length)
        took = time.thread_time() - began
    return int(length * (seconds / took) ** (1 / 3))


@app.task(name="crash", retry=0.05)
async def crash(how: str) -> None:
    note("start")
    _crash(how)


@app.task(name="crash_thread", retry=0.05)
def crash_thread(how: str) -> None:
    note("start")
    _crash(how)


@app.task(name="crash_process", run_in="process", retry=0.05)
def crash_process(how: str) -> None:
    note("start")
    _crash(how)


def _crash(how: str) -> None:
    match how:
        case "segv":
            ctypes.string_at(0)
        case "exit":
            os._exit(3)
        case _:
            os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="deaf")
def deaf(seconds: float) -> None:
    """A thread that nothing interrupts: one long call into C, without the GIL."""
    note("start")
    time.sleep(seconds)
    note("end")


@app.task(name="deaf_at_first")
def deaf_at_first(seconds: float) -> int:
    """The first attempt hangs, and returns in the end, whatever is raised into it; others return at once."""
    note("start")
    attempt = current_job().attempt
    if attempt == 1:
        with contextlib.suppress(BaseException):
            time.sleep(seconds)
    note("end")
    return attempt


@app.task(name="fail")
async def fail() -> None:
    note("start")
    raise ValueError("on purpose")


@app.task(name="leave")
async def leave() -> None:
    """As a library does that ends the process on an error, with an exit code that says all is well."""
    note("start")
    os._exit(0)


@app.task(name="fork")
async def fork(gate: str) -> int:
    """As a library does that forks helpers, which then outlive the worker."""
    note("start")
    if os.fork() == 0:
        while not (HERE / gate).exists():
            time.sleep(0.05)
        os._exit(0)
    while not (HERE / gate).exists():
        await asyncio.sleep(0.05)
    return os.getpid()
