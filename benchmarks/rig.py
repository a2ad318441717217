"""The setup of a measurement: a fresh store with workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType

import msgspec

from benchmarks.counters import Counters, leave_in
from benchmarks.machine import cpu_seconds, memory, session
from benchmarks.server import Server
from benchmarks.tasks import Tasks
from penstock import App, Worker

__all__ = ["ROOT", "Rig", "Running", "Setup", "worker_process"]

#: The checkout that contains `benchmarks`.
ROOT = Path(__file__).resolve().parents[1]
#: The app of worker processes.
SERVED = "benchmarks.served:app"
#: Timeout without any execution (s).
_PATIENCE = 30.0
_STOP_TIME = 15.0


class Setup(msgspec.Struct, frozen=True):
    """A store to measure. `delay_ms`: extra time of each round trip (Redis only)."""

    store: str
    durability: str = ""
    delay_ms: float | None = None

    @property
    def name(self) -> str:
        name = f"{self.store}, {self.durability}" if self.durability else self.store
        return name if self.delay_ms is None else f"{name}, +{self.delay_ms:g} ms"

    @property
    def shared(self) -> bool:
        """Whether several processes can use it."""
        return self.store != "memory"

    @property
    def undelayed(self) -> Setup:
        return Setup(self.store, self.durability)


class Running:
    """Running workers. `pids` is empty if they run in this process."""

    def __init__(self, leader: int | None, alive: Callable[[], bool], log: Path | None) -> None:
        self.leader = leader
        self.alive = alive
        self._log = log

    @property
    def pids(self) -> list[int]:
        """The supervisor and all its descendants."""
        return [] if self.leader is None else session(self.leader)

    def cpu(self) -> float:
        """CPU seconds used so far."""
        return cpu_seconds(self.pids)

    def memory(self) -> tuple[float, float]:
        """RSS and PSS, MB."""
        return memory(self.pids)

    def log(self) -> str:
        """The end of the workers' log."""
        return self._log.read_text(errors="replace")[-2000:] if self._log else ""


class Rig:
    """A fresh store, its tasks and their counters; everything is removed at the end.

    `served` is the app of worker processes, `knobs` their additional environment variables.
    """

    def __init__(
        self,
        setup: Setup,
        folder: Path,
        concurrency: int | None = None,
        *,
        tasks: Callable[[str], Tasks] = Tasks,
        served: str = SERVED,
        knobs: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.setup = setup
        self._concurrency = concurrency
        self._served, self._knobs = served, knobs
        self.disk = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=folder))
        shm = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.shm = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=shm))
        self.file = self.disk / "jobs.db"
        self.server: Server | None = None
        if setup.store == "redis":
            self.server = Server(self.disk, appendonly=setup.durability == "aof", delay_ms=setup.delay_ms)
        self.url = self.server.url if self.server else _url(setup, self.file)
        self.counters = Counters(self.shm)
        leave_in(self.shm)
        self.tasks = tasks(self.url)
        self.running: Running | None = None

    @property
    def app(self) -> App:
        return self.tasks.app

    def __enter__(self) -> Rig:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.app.close()
        if self.server is not None:
            self.server.close()
        shutil.rmtree(self.disk, ignore_errors=True)
        shutil.rmtree(self.shm, ignore_errors=True)

    # ── jobs ──

    def fill(self, n: int, task: str = "noop") -> None:
        """Enqueue n no-ops."""
        job = getattr(self.tasks, task).job
        for start in range(0, n, 50_000):  # a call and a handle per job need memory, too
            self.app.enqueue_many([job() for _ in range(min(50_000, n - start))])

    def settled(self) -> None:
        """Wait until all jobs have ended."""
        deadline = time.monotonic() + _PATIENCE
        while left := self.queued():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{left:,} jobs have not ended {_PATIENCE:.0f} s after the last has run")
            time.sleep(0.01)

    def queued(self) -> int:
        """The number of unfinished jobs."""
        undone = ("scheduled", "available", "running", "retryable")
        return sum(
            n
            for queue in self.app.store.sync.queues()
            for state, n in queue.counts.items()
            if state in undone
        )

    def pause(self, paused: bool = True) -> None:
        asyncio.run(self.app.store.settings("default", paused=paused))

    # ── workers ──

    @contextlib.contextmanager
    def workers(self, processes: int = 1) -> Iterator[Running]:
        """Run workers as a user starts them; on a memory store in a thread of this process."""
        serve = self._as_thread() if self.setup.store == "memory" else self._as_processes(processes)
        with serve as running:
            self.running = running
            try:
                yield running
            finally:
                self.running = None

    def warm(self, n: int = 100) -> None:
        """Wait until the workers serve and have run n no-ops."""
        self.fill(n)
        self.wait(n)
        self.counters.reset()

    def wait(self, n: int, total: Callable[[], int] | None = None) -> None:
        """Wait for n executions. Raises RuntimeError if there is no progress."""
        total = total or self.counters.total
        seen, since = -1, time.monotonic()
        while (now := total()) < n:
            if now != seen:
                seen, since = now, time.monotonic()
            if self.running is not None and not self.running.alive():
                raise RuntimeError(f"the worker is gone after {now:,} of {n:,} jobs: {self.running.log()}")
            if time.monotonic() - since > _PATIENCE:
                log = self.running.log() if self.running else ""
                raise RuntimeError(f"{now:,} of {n:,} jobs ran, then nothing for {_PATIENCE:.0f} s: {log}")
            time.sleep(0.01)

    @contextlib.contextmanager
    def _as_processes(self, processes: int) -> Iterator[Running]:
        log = self.shm / "worker.log"
        worker = worker_process(
            self.url, self.shm, log, processes, self._concurrency, self._knobs, self._served
        )
        with worker as process:
            yield Running(process.pid, lambda: process.poll() is None, log)

    @contextlib.contextmanager
    def _as_thread(self) -> Iterator[Running]:
        worker = Worker(self.app, concurrency=self._concurrency)
        started = threading.Event()
        loops: list[asyncio.AbstractEventLoop] = []
        failed: list[BaseException] = []

        async def serve() -> None:
            loops.append(asyncio.get_running_loop())
            started.set()
            await worker.run()

        def run() -> None:
            try:
                with new_runner() as runner:
                    runner.run(serve())
            except BaseException as error:
                failed.append(error)
                started.set()
                raise

        thread = threading.Thread(target=run, name="bench-worker")
        thread.start()
        started.wait()
        try:
            yield Running(None, lambda: thread.is_alive() and not failed, None)
        finally:
            if thread.is_alive():
                loops[0].call_soon_threadsafe(worker.stop)
            thread.join()


def new_runner() -> asyncio.Runner:
    """A runner with the kind of event loop that worker processes use."""
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


@contextlib.contextmanager
def worker_process(
    url: str,
    shm: Path,
    log: Path,
    processes: int = 1,
    concurrency: int | None = None,
    knobs: Mapping[str, str] = MappingProxyType({}),
    served: str = SERVED,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `penstock worker` in its own session; end it with SIGTERM, then kill the remaining processes."""
    command = [sys.executable, "-m", "penstock", "worker", served]
    command += ["--processes", str(processes), "--log-level", "warning"]
    if concurrency is not None:
        command += ["--concurrency", str(concurrency)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    clean.pop("PYTHONDONTWRITEBYTECODE", None)  # to compile all modules at each start takes time and memory
    env = {**clean, "BENCH_URL": url, "BENCH_DIR": str(shm), **knobs}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_TIME)
        except subprocess.TimeoutExpired:
            print(f"the worker did not end within {_STOP_TIME:.0f} s of SIGTERM", file=sys.stderr)
        for pid in session(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _url(setup: Setup, file: Path) -> str:
    if setup.store == "memory":
        return "memory://"
    return f"sqlite:///{file}?durability={setup.durability or 'full'}"
