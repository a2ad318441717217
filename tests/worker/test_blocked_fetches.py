"""The event loop of a worker process is blocked during a fetch: its supervisor gives the jobs back.

The supervisor runs in a thread with a loop of its own, for the worker's loop is really blocked.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.app.app import App
from penstock.client.handle import Handle
from penstock.core.ids import mint
from penstock.core.job import State
from penstock.errors import StoreUnavailable
from penstock.maintenance.service import ProblemLog
from penstock.stores.connect import connect
from penstock.stores.contract import Fetched, Store
from penstock.worker.setup import Supervision
from penstock.worker.shared_lease_table import LeaseTable
from penstock.worker.supervisor.lease_keeper import LeaseKeeper
from tests.servers import RedisServer, remove_keys
from tests.sqlite_files import new_url
from tests.worker.conftest import PATIENCE, at_work, ended, patient, until


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield new_url(tmp_path)
    else:
        server, prefix = request.getfixturevalue("redis"), f"blocked-{mint()}"
        yield f"{server.url}?prefix={prefix}"
        remove_keys([server], having=prefix)


class Child:
    """A worker process as its supervisor sees it."""

    def __init__(self) -> None:
        self.id, self.pid, self.queues = mint(), os.getpid(), ("default",)
        self.table = LeaseTable.create(20)
        self.looked_ns = self.extended_ns = self.asked_ns = 0
        self.extending: asyncio.Task[None] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Of its worker."""
        table = LeaseTable.attach(os.dup(self.table.fileno()))
        return {"id": self.id, "supervision": Supervision(table=table), "config": patient(safety_poll="1h")}


class Supervisor:
    """Watches the child from another thread, with a store object of its own, while `steps` run there."""

    def __init__(self, url: str, child: Child, steps: Callable[[Supervisor], Coroutine[Any, Any, None]]):
        self.child, self._url, self._steps = child, url, steps
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._watch())
        except BaseException as error:  # boundary: `join` raises it
            self._failed = error

    async def _watch(self) -> None:
        self.store = connect(self._url)
        keeper = LeaseKeeper(patient(), cast(ProblemLog, None))
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            steps = group.create_task(self._steps(self))
            while not steps.done():
                keeper.check(lambda: self.store, cast(Any, self.child), group)
                await asyncio.sleep(0.005)
        self.store.close()

    async def asked(self) -> None:
        """The supervisor has asked for the jobs of the fetch, and got an answer."""
        await until(lambda: self.child.asked_ns > 0, "it has asked")
        assert self.child.extending is not None
        await self.child.extending

    async def given_back(self, handles: list[Handle[Any]]) -> None:
        """All these jobs are where they were."""

        async def there() -> bool:
            jobs = await self.store.get([handle.ref for handle in handles])
            return {job and job.state for job in jobs} == {State.AVAILABLE}

        await until(there, "the jobs are given back")

    def join(self) -> None:
        """Block until the steps are done."""
        self._thread.join(2 * PATIENCE)
        if self._failed is not None:
            raise self._failed


class Blocking:
    """A store whose next fetch blocks the event loop until another thread has the answer."""

    def __init__(self, app: App) -> None:
        self._store = app.store
        self.call: tuple[Any, Any] | None = None
        self.began, self.may_end = threading.Event(), threading.Event()
        self.answer: Fetched | StoreUnavailable | None = None
        app.use_store(cast(Store, self))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._fetch if name == "fetch" and not self.began.is_set() else found

    async def _fetch(self, *args: Any, **kwargs: Any) -> Fetched:
        self.call = args, kwargs
        self.began.set()
        assert self.may_end.wait(2 * PATIENCE)
        assert self.answer is not None
        if isinstance(self.answer, StoreUnavailable):
            raise self.answer
        return self.answer

    async def leased_by(self, store: Store) -> Fetched:
        """What the store does with the fetch."""
        assert self.call is not None
        args, kwargs = self.call
        fetched = await store.fetch(*args, **kwargs)
        assert fetched.jobs
        return fetched


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("lost", [False, True], ids=["read", "lost"])
async def test_the_jobs_of_a_fetch_whose_reply_cannot_be_read_are_given_back(
    new_app: Callable[[], App], url: str, late: bool, lost: bool
) -> None:
    """Also if the store leases them after the supervisor has asked, and if the worker repeats the fetch."""
    app, ran = new_app(), list[int]()

    @app.task(retention="1h")
    async def work(n: int) -> None:
        ran.append(n)

    handles = list(await app.aenqueue_many([work.job(n) for n in range(5)]))
    fetching, child = Blocking(app), Child()

    async def steps(supervisor: Supervisor) -> None:
        try:
            await asyncio.to_thread(fetching.began.wait)
            if late:
                await supervisor.asked()
            fetched = await fetching.leased_by(supervisor.store)
            fetching.answer = StoreUnavailable("the reply is lost") if lost else fetched
            await supervisor.given_back(handles)
        finally:
            fetching.may_end.set()

    supervisor = Supervisor(url, child, steps)
    async with at_work(app, concurrency=5, **child.options):
        jobs = [await ended(handle) for handle in handles]
        supervisor.join()
    assert {(job.state, job.attempt, job.lost, job.errors) for job in jobs} == {(State.COMPLETED, 1, 0, ())}
    assert ran == [0, 1, 2, 3, 4]
    assert not child.table.fetches
    child.table.close()


@pytest.mark.parametrize("url", ["redis"], indirect=True)
async def test_a_job_leased_to_the_offer_of_a_blocked_worker_is_given_back(
    new_app: Callable[[], App], url: str, redis: RedisServer
) -> None:
    app, child, ran = new_app(), Child(), list[int]()

    async def work(n: int) -> None:
        ran.append(n)

    app.task(name="work", retention="1h")(work)
    enqueue = new_app().task(name="work", retention="1h")(work).aenqueue
    handles: list[Handle[Any]] = []

    async def steps(supervisor: Supervisor) -> None:
        handles.append(await enqueue(1))
        (job,) = await supervisor.store.get([handles[0].ref])
        assert job is not None
        assert (job.state, job.worker) == (State.RUNNING, child.id), "it was not leased to the offer"
        await supervisor.given_back(handles)

    def waits() -> bool:
        with redis.client() as client:
            return bool(client.keys(f"*{url.rpartition('=')[2]}*:offers"))

    async with at_work(app, **child.options):
        await until(waits, "the worker waits with an offer")
        Supervisor(url, child, steps).join()  # this blocks the loop
        job = await ended(handles[0])
    assert (job.state, job.attempt, job.lost, job.errors) == (State.COMPLETED, 1, 0, ())
    assert ran == [1]
    child.table.close()
