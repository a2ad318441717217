"""Two releases with two names for one task, side by side: what the oldest name names is theirs together."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.app.app import App
from penstock.core.clock import ManualClock
from penstock.core.job import State
from penstock.core.relations import Batch
from penstock.core.stats import TaskStats
from penstock.core.unique import Unique
from penstock.inspector import Inspector
from penstock.maintenance.periodic_enqueuer import PeriodicEnqueuer
from penstock.stores.contract import (
    ErrorCount,
    Level,
    Resolution,
    StatsReport,
    Store,
    TaskCount,
    WorkerInfo,
)
from tests.store.facts import COMPLETED, MINUTE, SECOND, OpenStore, add, end, new, retryable, take

#: The names of one task in three releases, and its former names in each.
RELEASES: list[tuple[str, tuple[str, ...]]] = [
    ("billing.pay", ()),
    ("billing.charge", ("billing.pay",)),
    ("money.charge", ("billing.pay", "billing.charge")),
]


@pytest.fixture
def apps(open_store: OpenStore) -> list[App]:
    """An app of each release, each with a store object of its own, as other processes have."""
    made = [App("memory://") for _ in RELEASES]
    for app in made:
        app.use_store(open_store())
    return made


def declared(app: App, release: int, **options: Any) -> Any:
    name, aliases = RELEASES[release]

    async def pay(invoice: int, note: str = "") -> None: ...

    return app.task(name=name, aliases=aliases, **options)(pay)


@pytest.mark.parametrize(
    "unique",
    [
        True,
        Unique(by="invoice", period="1d"),
        Unique(key=lambda invoice: f"invoice {invoice}"),
        Unique(key="all"),
        Unique(on_conflict="replace"),
    ],
    ids=["all arguments", "by", "key function", "key", "replace"],
)
async def test_releases_share_the_unique_keys_of_a_renamed_task(apps: list[App], unique: Any) -> None:
    tasks = [declared(app, n, unique=unique) for n, app in enumerate(apps)]
    handles = [await task.aenqueue(1) for task in tasks]
    handles += [await task.using(unique=unique).aenqueue(1) for task in tasks]
    assert len({handle.id for handle in handles}) == 1


async def test_and_those_of_raw_jobs(apps: list[App]) -> None:
    for n, app in enumerate(apps):
        declared(app, n)
    handles = [
        await app.aenqueue_raw("default", b"[1]", name, unique=True)
        for app, (name, _) in zip(apps, RELEASES, strict=True)
    ]
    assert len({handle.id for handle in handles}) == 1


async def test_calls_with_other_arguments_are_other_jobs(apps: list[App]) -> None:
    tasks = [declared(app, n, unique=Unique(by="invoice")) for n, app in enumerate(apps)]
    handles = [await task.aenqueue(n) for n, task in enumerate(tasks)]
    assert len({handle.id for handle in handles}) == 3


async def test_they_collect_one_batch(apps: list[App], store: Store) -> None:
    batch = Batch(max_size=3, max_wait="1h")
    handles = []
    for app, (name, aliases) in zip(apps, RELEASES, strict=True):

        @app.task(name=name, aliases=aliases, batch=batch)
        async def index(docs: list[int]) -> None: ...

        handles.append(await index.using(batch_key="k").aenqueue(len(handles)))
    (batched,) = await take(store)
    assert batched.members == tuple(handle.id for handle in handles)
    assert batched.task == RELEASES[0][0], "every release has a function of this name"
    assert batched.spec.payload == b"[[0,1,2]]"


async def test_they_share_the_limit_of_a_concurrency_key(apps: list[App], store: Store) -> None:
    tasks = [declared(app, n, concurrency_key="invoice") for n, app in enumerate(apps)]
    handles = [await task.aenqueue(7) for task in tasks]
    (first,) = await take(store, 5)
    assert [await one.astatus() for one in handles] == [State.RUNNING, State.WAITING, State.WAITING]
    await end(store, first, COMPLETED)
    (second,) = await take(store, 5)
    assert [first.id, second.id] == [handles[0].id, handles[1].id]
    assert second.task == RELEASES[1][0], "a job shows the name under which it was enqueued"


async def test_each_instant_of_their_periodic_entry_has_one_job(
    apps: list[App], store: Store, clock: ManualClock
) -> None:
    for n, app in enumerate(apps):
        app.periodic(every="1m", task=declared(app, n), args=[1])
    services = [PeriodicEnqueuer(store, ["default"], app.periodic_entries) for app in apps]
    for _ in range(8):
        for service in services:
            await service.tick()
        clock.advance(30 * SECOND)
    assert [one.spec.name for one in (await store.entries()).entries] == [RELEASES[0][0]]
    jobs = (await store.list_jobs(limit=50)).jobs
    assert len(jobs) == len({job.run_at for job in jobs}) == 3
    assert {job.task for job in jobs} == {RELEASES[0][0]}, "every release has a function of this name"


async def test_an_entry_that_no_running_worker_has_in_its_code_says_so(
    apps: list[App], store: Store, clock: ManualClock
) -> None:
    """A task that was renamed without aliases leaves one, with the schedule of the other."""
    app, inspector = apps[0], Inspector(store)
    task = declared(app, 0)
    app.periodic(every="1m", task=task, args=[1])
    app.periodic(every="1m", task=task, args=[1], name="here")
    await PeriodicEnqueuer(store, ["default"], app.periodic_entries).tick()
    worker = WorkerInfo("w1", "box", 1, 0, ("default",), (RELEASES[0][0],), 4)

    async def said(**facts: Any) -> dict[str, tuple[str, bool]]:
        changed = WorkerInfo("w1", "box", 1, 0, facts.pop("queues", ("default",)), worker.tasks, 4, **facts)
        await store.announce(changed)
        return {one.name: (one.unserved, one.next_at is None) for one in await inspector.entries()}

    gone, fine = ("no running worker has it in its code", True), ("", False)
    assert await said(entries=("default/here",)) == {"billing.pay": gone, "here": fine}
    (runs,) = await inspector.runs("default/billing.pay")
    assert runs.entry.unserved == gone[0]
    assert not [run for run in runs.runs if not run.passed and run.job is None]
    (finding,) = [one for one in await inspector.checkup() if one.what == "periodic entries"]
    assert finding.level is Level.WARNING
    assert "default/billing.pay in its code" in finding.why
    assert "penstock periodic remove" in finding.way_out

    assert await said(entries=("default/here", "default/billing.pay")) == {"billing.pay": fine, "here": fine}
    assert await said(entries=None) == {"billing.pay": fine, "here": fine}, "of an older version: unknown"
    nobody = ("no running worker serves its queue", False)
    assert await said(entries=(), queues=("mail",)) == {"billing.pay": nobody, "here": nobody}
    await inspector.pause_entry("default/here")
    assert (await said(entries=()))["here"] == ("", True), "it is paused, and that is said"


async def test_an_entry_whose_last_job_waits_for_a_retry_says_that_it_skips(
    apps: list[App], store: Store, clock: ManualClock
) -> None:
    app, inspector = apps[0], Inspector(store)
    app.periodic(every="1m", task=declared(app, 0), args=[1], overlap="skip")
    service = PeriodicEnqueuer(store, ["default"], app.periodic_entries)
    await service.tick()
    assert [one.skipping for one in await inspector.entries()] == [""]
    clock.advance(MINUTE)
    await service.tick()
    await end(store, (await take(store))[0], retryable(60 * MINUTE))
    clock.advance(MINUTE)
    await service.tick()
    for view in (*await inspector.entries(), (await inspector.runs("billing.pay"))[0].entry):
        assert view.skipped == 1
        assert view.skipping.startswith("its last job is retryable, due at 2023-")
    await store.cancel([job.ref for job in (await store.list_jobs()).jobs])
    assert [one.skipping for one in await inspector.entries()] == [""]


async def test_any_name_finds_the_statistics_and_errors_that_all_names_share(store: Store) -> None:
    """Workers count a renamed task under its oldest name, and announce that name."""
    (oldest, _), (name, _), _ = RELEASES
    worker = WorkerInfo("w1", "box", 1, 0, ("default",), (oldest, name), 4, identities={name: oldest})
    await store.announce(worker)
    await add(store, new())
    for n in (1, 2):
        counted = TaskStats(started=n, processed=n, failed=1)
        error = ErrorCount("e", oldest, "ValueError", "no luck", 1, f"j{n}")
        await store.add_stats([StatsReport("default", f"w{n}", n, [TaskCount(oldest, counted)], [error])])
    statistics = Inspector(store).statistics
    for asked in (oldest, name, None):
        (row,) = await statistics.tasks(task=asked)
        assert (row.task, row.processed, row.failed) == (oldest, 3, 2)
        (group,) = await statistics.errors(task=asked)
        assert (group.task, group.count, group.renamed) == (oldest, 2, True)
        (period,) = await statistics.periods(Resolution.MINUTE, task=asked, span=5 * MINUTE)
        assert period.processed == 3
    assert await statistics.tasks(task="another") == []
