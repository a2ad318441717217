"""Counts of executions, and the commands of a producer. For all Python programs; standard library only."""

import asyncio
import os
import platform
import random
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version

PORT = int(os.environ["BENCH_PORT"])
URL = f"redis://127.0.0.1:{PORT}/0"

#: A worker writes its count this often, and at each execution after the last expected one.
_EVERY = 100
_JOBS = int(os.environ.get("BENCH_JOBS", "0"))

_lock = threading.Lock()
_count = _first = 0
_files: dict[str, int] = {}


def count() -> None:
    """Count one execution, now."""
    global _count, _first
    now = time.monotonic_ns()
    with _lock:
        _count += 1
        if _count == 1:
            _first = now
        if _count == 1 or _count % _EVERY == 0 or _count >= _JOBS:
            os.pwrite(_file("count"), struct.pack("<qqq", _count, _first, now), 0)


def instant(sent: int) -> None:
    """Record an execution that began now, and when it was enqueued."""
    now = time.monotonic_ns()
    with _lock:
        os.write(_file("instants"), struct.pack("<qq", sent, now))


def _file(kind: str) -> int:
    if kind not in _files:
        path = os.path.join(os.environ["BENCH_DIR"], f"{kind}.{os.getpid()}")
        _files[kind] = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    return _files[kind]


# ── producers ────────────────────────────────────────────────────────────────────────────────────


def produce(distribution: str, noop: Callable[[], object], stamp: Callable[[int], object]) -> None:
    """Run the command of `sys.argv` with a blocking client: `one N`, `stamps N` or `version`."""
    command, *numbers = sys.argv[1:]
    if command == "one":
        noop()  # connects
        started = time.perf_counter()
        for _ in range(int(numbers[0]) - 1):
            noop()
        _print_rate(int(numbers[0]) - 1, started)
    elif command == "stamps":
        for _ in range(int(numbers[0])):
            time.sleep(_pause())
            stamp(time.monotonic_ns())
    else:
        _print_version(distribution, command)


async def aproduce(
    distribution: str,
    noop: Callable[[], Awaitable[object]],
    stamp: Callable[[int], Awaitable[object]],
) -> None:
    """Run the command of `sys.argv` in an event loop; in addition `concurrent N CALLERS`."""
    command, *numbers = sys.argv[1:]
    if command in ("one", "concurrent"):
        jobs, callers = int(numbers[0]), int(numbers[1]) if command == "concurrent" else 1
        await noop()  # connects
        started = time.perf_counter()
        await _send(noop, jobs - 1, callers)
        _print_rate(jobs - 1, started)
    elif command == "stamps":
        for _ in range(int(numbers[0])):
            await asyncio.sleep(_pause())
            await stamp(time.monotonic_ns())
    else:
        _print_version(distribution, command)


async def _send(noop: Callable[[], Awaitable[object]], jobs: int, callers: int) -> None:
    left = iter(range(jobs))

    async def call() -> None:
        for _ in left:
            await noop()

    await asyncio.gather(*(call() for _ in range(callers)))


def _pause() -> float:
    """A random pace, because a steady one could synchronise with the intervals of a worker."""
    return random.uniform(0.02, 0.06)


def _print_rate(jobs: int, started: float) -> None:
    print(f"{jobs / (time.perf_counter() - started):.1f}", flush=True)


def _print_version(distribution: str, command: str) -> None:
    if command != "version":
        sys.exit(f"unknown command {command}")
    print(f"{version(distribution)}, Python {platform.python_version()}")
