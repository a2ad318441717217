"""Measure one program once: enqueue one by one and from many callers, drain, and idle latency."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from benchmarks.foreign.programs import Commands, Program
from benchmarks.machine import cpu_seconds, percentile, session
from benchmarks.server import Server

__all__ = ["Amounts", "measure", "version"]

_COUNT = struct.Struct("<qqq")  # executions, time of the first, time of the last (ns)
_INSTANT = struct.Struct("<qq")  # enqueued, started (ns)
#: Timeout without any execution, and for the end of a worker after SIGTERM (s).
_PATIENCE, _STOP_TIME = 30.0, 15.0
_PRODUCER_TIME = 600.0
#: A valid port for a command that connects to none.
_NO_PORT = 1


class Amounts(msgspec.Struct, frozen=True):
    """Number of no-ops, number of calls whose latency is measured, and idle time before these (s).

    Without `worker`, only enqueues are measured.
    """

    jobs: int
    calls: int
    idle: float
    worker: bool = True


def version(commands: Commands) -> str:
    """The versions of the library and its language."""
    return _produce(commands, _env(commands, _NO_PORT, Path(), 0), "version")


def measure(program: Program, commands: Commands, server: Server, amounts: Amounts) -> dict[str, float]:
    """All figures of a program, by name. The server is emptied first."""
    figures: dict[str, float] = {}
    shm = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="penstock-foreign-", dir=shm) as folder:
        if program.callers and program.enqueues:
            _empty(server)
            env = _env(commands, server.port, Path(folder), 0)
            figures["callers"] = float(_produce(commands, env, "concurrent", amounts.jobs, program.callers))
        _empty(server)
        jobs = amounts.jobs * program.times
        env = _env(commands, server.port, Path(folder), jobs)
        one = float(_produce(commands, env, "one", amounts.jobs))
        if program.enqueues:
            figures["one"] = one
        if not amounts.worker:
            return figures
        if program.times > 1:
            _produce(commands, env, "fill", jobs - amounts.jobs)
        with _worker(commands, env, Path(folder)) as worker:
            figures |= _drain(worker, server, jobs)
            time.sleep(amounts.idle)
            _produce(commands, env, "stamps", 1 + amounts.calls)
            took = worker.latencies(1 + amounts.calls)
            figures |= {"p50": percentile(took, 50), "p99": percentile(took, 99)}
    return figures


def _drain(worker: _Worker, server: Server, jobs: int) -> dict[str, float]:
    """The rate from the first execution to the last, and CPU time per job, without the start."""
    worker.wait(lambda: worker.count()[0] >= 1)
    done, cpu, server_cpu = worker.count()[0], worker.cpu(), server.cpu()
    worker.wait(lambda: worker.count()[0] >= jobs)
    per_job = 1e6 / max(1, jobs - done)
    spent = {"cpu": (worker.cpu() - cpu) * per_job, "redis_cpu": (server.cpu() - server_cpu) * per_job}
    n, first, last = worker.count()
    return {"drain": (n - 1) / ((last - first) / 1e9), **spent}


class _Worker:
    """A running worker and the files in which it counts."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, log: Path) -> None:
        self._process, self._folder, self._log = process, folder, log

    def count(self) -> tuple[int, int, int]:
        """Executions, and the times of the first and the last; all run in one process."""
        for path in self._folder.glob("count.*"):
            if len(record := path.read_bytes()) == _COUNT.size:
                n, first, last = _COUNT.unpack(record)
                return n, first, last
        return 0, 0, 0

    def latencies(self, calls: int) -> list[float]:
        """Wait for the start of all calls. Returns milliseconds from enqueue to start.

        The first call is left out, because it also connects to Redis.
        """
        self.wait(lambda: len(self._instants()) >= calls)
        return [(started - sent) / 1e6 for sent, started in sorted(self._instants())[1:]]

    def _instants(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for path in self._folder.glob("instants.*"):
            data = path.read_bytes()
            found += _INSTANT.iter_unpack(data[: len(data) // _INSTANT.size * _INSTANT.size])
        return found

    def cpu(self) -> float:
        """CPU seconds of all its processes so far."""
        return cpu_seconds(session(self._process.pid))

    def wait(self, done: Callable[[], bool]) -> None:
        """Wait for a condition. Raises RuntimeError if the worker is gone or runs nothing for a while."""
        seen, since = (-1, -1), time.monotonic()
        while not done():
            now = self.count()[0], len(self._instants())
            if now != seen:
                seen, since = now, time.monotonic()
            if self._process.poll() is not None:
                raise RuntimeError(f"the worker is gone after {seen} jobs: {self._end_of_log()}")
            if time.monotonic() - since > _PATIENCE:
                raise RuntimeError(f"after {seen} jobs nothing for {_PATIENCE:.0f} s: {self._end_of_log()}")
            time.sleep(0.01)

    def _end_of_log(self) -> str:
        return self._log.read_text(errors="replace")[-500:]


@contextlib.contextmanager
def _worker(commands: Commands, env: dict[str, str], folder: Path) -> Iterator[_Worker]:
    """Run the worker in its own session; end it with SIGTERM, then kill what remains of the session."""
    log = folder / "worker.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            commands.worker,
            cwd=commands.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield _Worker(process, folder, log)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_TIME)
        for pid in session(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _produce(commands: Commands, env: dict[str, str], *arguments: object) -> str:
    """Run the producer. Returns what it printed last.

    A producer that printed its figure and crashed at its exit has done its work.
    """
    command = [*commands.producer, *map(str, arguments)]
    ran = subprocess.run(
        command,
        cwd=commands.folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=_PRODUCER_TIME,
    )
    printed = ran.stdout.strip().rpartition("\n")[2]
    if ran.returncode and not printed:
        raise RuntimeError(f"{' '.join(command)} failed: {ran.stderr.strip()[-500:]}")
    return printed


def _env(commands: Commands, port: int, folder: Path, jobs: int) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    own = {"BENCH_PORT": str(port), "BENCH_DIR": str(folder), "BENCH_JOBS": str(jobs)}
    return {**clean, **own, "PYTHONDONTWRITEBYTECODE": "1", **commands.env}


def _empty(server: Server) -> None:
    with server.client() as client:
        client.flushall()
