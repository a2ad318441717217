"""Workers of real apps on real stores, started and stopped by the tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import uuid4

import pytest

from penstock.app.app import App
from penstock.client.handle import Handle
from penstock.config import Config, load
from penstock.core.job import Job, State
from penstock.events import Event
from penstock.stores.contract import Store
from penstock.testing import FaultyStore
from penstock.worker import Worker
from penstock.worker.executor import interruption
from penstock.worker.leased_jobs import LeasedJob
from tests.lease_clocks import LeaseClock
from tests.sqlite_files import new_url

#: No test waits longer than this for something that should happen at once (s).
PATIENCE = 60.0

E = TypeVar("E", bound=Event)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests whose tasks run in child processes are marked `system`."""
    here = str(Path(__file__).parent) + os.sep
    for item in items:
        if str(item.path).startswith(here) and _runs_in_processes(item):
            item.add_marker(pytest.mark.system)


def _runs_in_processes(item: pytest.Item) -> bool:
    chosen = getattr(item, "callspec", None)
    in_process = chosen is not None and chosen.params.get("run_in") == "process"
    return in_process or item.path.name == "test_processes.py"


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of each kind. Apps of this URL share it, as processes would."""
    if request.param == "memory":
        return f"memory://{uuid4().hex}"
    return new_url(tmp_path)


@pytest.fixture(params=["async", "thread", "process"])
def run_in(request: pytest.FixtureRequest) -> str:
    """Each of the executors."""
    return str(request.param)


@pytest.fixture
def new_app(url: str) -> Iterator[Callable[[], App]]:
    """Makes apps on the same store: each with a store object of its own, as another process has."""
    made: list[App] = []

    def make() -> App:
        made.append(App(url))
        return made[-1]

    yield make
    for app in made:
        app.close()


@pytest.fixture
def app(new_app: Callable[[], App]) -> App:
    return new_app()


@pytest.fixture
def faults(app: App) -> FaultyStore:
    """The app's store, made to fail on demand."""
    faulty = FaultyStore(app.store)
    app.use_store(faulty.store)
    return faulty


@pytest.fixture
def lease_clock(monkeypatch: pytest.MonkeyPatch) -> LeaseClock:
    return LeaseClock(monkeypatch)


class Door:
    """A store one of whose verbs waits at the door until it is opened: what happens meanwhile?"""

    def __init__(self, store: Store, verb: str) -> None:
        self._store, self._verb = store, verb
        self._open = False
        #: How many calls have come to the door.
        self.came = 0

    @classmethod
    def before(cls, app: App, verb: str) -> Door:
        """Put it between this app and its store."""
        door = cls(app.store, verb)
        app.use_store(cast(Store, door))
        return door

    def open(self) -> None:
        self._open = True

    def shut(self) -> None:
        self._open = False

    async def asked(self) -> None:
        await until(lambda: self.came > 0, f"{self._verb} is called")

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name != self._verb:
            return found

        async def later(*args: Any, **kwargs: Any) -> Any:
            self.came += 1
            while not self._open:
                await asyncio.sleep(0.002)
            return await found(*args, **kwargs)

        return later


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts that do not react are given up sooner."""
    monkeypatch.setattr(interruption, "_REACTION_TIME", 0.1)


def quick(**knobs: Any) -> Config:
    """A configuration with short periods, so that nothing needs long waits.

    Its leases outlive a machine that stalls for some seconds; a test that waits for the end of one says so.
    """
    settings = {
        "drain_timeout": "2s",
        "thread_grace": "100ms",
        "cleanup_grace": "300ms",
        "heartbeat": "200ms",
        "lease": "15s",
    }
    settings["kill_grace"] = "30s"  # of a supervisor, which there is none
    return load({**settings, **knobs}, env={}, file=Path("/dev/null")).config


def patient(**knobs: Any) -> Config:
    """Leases and heartbeats so long that no test lives to see one: for what must not depend on them."""
    return quick(**{"lease": "3h", "heartbeat": "1h", **knobs})


@contextlib.asynccontextmanager
async def at_work(app: App, *args: Any, **options: Any) -> AsyncIterator[Worker]:
    """A worker that serves while the block runs, then drains. It returns when the worker takes jobs."""
    options.setdefault("config", quick())
    worker = Worker(app, *args, **options)
    running = asyncio.create_task(worker.run())
    try:
        await until(lambda: running.done() or worker._services is not None, "the worker has begun")
        yield worker
    finally:
        worker.stop()
        async with asyncio.timeout(PATIENCE):
            await running
        await nothing_left(worker)


async def in_a_burst(app: App, *args: Any, **options: Any) -> Worker:
    """Run what there is, in a worker that then ends."""
    options.setdefault("config", quick())
    worker = Worker(app, *args, burst=True, **options)
    async with asyncio.timeout(PATIENCE):
        await worker.run()
    await nothing_left(worker)
    return worker


async def nothing_left(worker: Worker) -> None:
    """Whatever happened: a worker that has ended holds nothing, counts nothing, and runs nothing on."""
    assert worker._services is not None
    runs_on, parts = worker._services.slots, worker._services
    assert not worker._services.leased_jobs, "a job that nobody will settle"
    assert not +worker._services.leased_jobs.per_queue, "a slot of a queue that never comes free"
    assert (runs_on.running, runs_on.buffered, runs_on.process_busy) == (0, 0, 0)
    assert parts.settler.unsent == 0
    if not runs_on.lost:
        await until(lambda: not _tasks(), "all that was spawned has ended")


def _tasks() -> list[str]:
    """Of the only worker that runs on this loop: with several, the others' are none of our business."""
    mine = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("penstock-")]
    return [] if "penstock-fetcher" in mine else mine


async def until(condition: Callable[[], Awaitable[bool] | bool], what: str) -> None:
    """Wait for something that another process or thread does, and of which no event tells."""
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                met = condition()
                if not isinstance(met, bool):
                    met = await met
                if met:
                    return
                await asyncio.sleep(0.005)
    except TimeoutError:
        pytest.fail(f"it did not happen within {PATIENCE} s: {what}")


async def started(worker: Worker, began: Path) -> LeasedJob:
    """The job that the worker runs, once its function has noted there that it has begun."""
    assert worker._services is not None
    jobs = worker._services.leased_jobs
    await until(
        lambda: began.exists() and any(leased.started for leased in jobs), "the function of the job has begun"
    )
    (found,) = jobs
    return found


async def ended(handle: Handle[Any]) -> Job:
    """The job, once it has ended; it must be one that is kept."""
    (job,) = await handle._store.wait_for_end([handle.ref], timeout=int(PATIENCE * 1000))
    assert job is not None, "it is gone"
    assert job.ended, f"it has not ended: {job.state.value}, {job.reason}, {job.errors}"
    return job


async def becomes(handle: Handle[Any], state: State) -> Job:
    """The job, once it is in this state."""
    found: list[Job | None] = []

    async def there() -> bool:
        found[:] = [await handle.ajob()]
        return found[0] is not None and found[0].state is state

    await until(there, f"the job becomes {state.value}")
    assert found[0] is not None
    return found[0]


class Dam:
    """A task whose jobs come back at once, but for one that stays: when its worker has fetched ahead."""

    def __init__(self, app: App, jobs: int) -> None:
        self.jobs = jobs
        self.ran: list[int] = []
        self.handles: list[Handle[Any]] = []
        self.worker: Worker | None = None
        self._full, self._go_on = asyncio.Event(), asyncio.Event()

        @app.task(name="pass", retention="1h")
        async def work(i: int) -> None:
            self.ran.append(i)
            if not self._full.is_set() and self._ahead() > 0:
                self._full.set()
                await self._go_on.wait()

        self._app, self._task = app, work

    def _ahead(self) -> int:
        parts = None if self.worker is None else self.worker._services
        return 0 if parts is None else parts.slots.buffered

    async def fill(self) -> None:
        """Enqueue all jobs."""
        calls = [self._task.job(i) for i in range(self.jobs)]
        self.handles = list(await self._app.aenqueue_many(calls))

    async def full(self, worker: Worker) -> int:
        """The number of the job that stays; the ones before it have run."""
        self.worker = worker
        async with asyncio.timeout(PATIENCE):
            await self._full.wait()
        return self.ran[-1]

    def open(self) -> None:
        self._go_on.set()


class Told:
    """The events that an app's listeners heard."""

    def __init__(self, app: App) -> None:
        self.all: list[Event] = []
        app.events.listen(Event, self.all.append)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.all if isinstance(event, kind)]

    async def one(self, kind: type[E]) -> E:
        """The only one of its kind, once it is told."""
        await until(lambda: bool(self.of(kind)), f"{kind.__name__} is told")
        (event,) = self.of(kind)
        return event
