"""Every act of an operator, asked for by visitors without its right: it is refused, and nothing changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock.core.job import NewJob
from penstock.core.schedule import NewEntry, Schedule
from penstock.inspector import BulkActs, JobAct, WorkerAct
from penstock.stores.contract import Signal, Store, WorkerInfo
from penstock.workflows import group
from tests.web.dashboard.conftest import Site

#: What operators may do, as paths with a query for the arguments.
OPERATE = [
    *(f"/jobs/mail/a/act/{act.value}?to=mail&delay=1h" for act in JobAct),
    *(f"/jobs/change?act={act.value}&queue=mail&to=mail" for act in JobAct),
    "/jobs/mail/a/edit",
    *(f"/queues/mail/switch/{act}" for act in ("pause", "resume")),
    *(f"/periodic/mail/daily/switch/{act}" for act in ("trigger", "pause", "resume")),
    "/queues/mail/batches/start",
    *(f"/flows/mail/f/act/{act}" for act in ("retry", "cancel")),
    *(f"/jobs/mail/a/steps?act={act}&step=charge&data=1" for act in ("signal", "drop", "set")),
    *(f"/flows?act={act}&name=packed&key=&data=1" for act in ("drop", "replace")),
]
#: What only administrators may do.
ADMIN = [
    *(f"/queues/mail/{act}" for act in ("throttle", "limits", "reset", "intake/close", "intake/open")),
    *(f"/workers/w1/act/{act.value}" for act in WorkerAct if act is not WorkerAct.STACKS),
    "/workers/w1/stacks",
]


async def prepare(store: Store) -> None:
    await store.enqueue([NewJob("a", "t", queue="mail", delay=60_000), NewJob("b", "t", queue="orders")])
    await store.put_entries([NewEntry("daily", NewJob("", "t", queue="mail"), Schedule("0 0 * * *"))])
    await store.send_signals([Signal("packed", "", b"0")])
    await store.announce(WorkerInfo("w1", "box", 1, 0, ("mail",), ("t",), 4))


async def all_of(store: Store) -> list[object]:
    """Everything that an act could change."""
    commands = (await store.documents("worker-commands")).documents
    log = (await store.read_log("audit")).entries
    jobs = (await store.list_jobs()).jobs
    entries = (await store.entries()).entries
    found = [jobs, await store.queues(), entries, commands, log, await BulkActs(store).all()]
    return [*found, await store.signals(), [await store.steps(job.ref) for job in jobs]]


@pytest.mark.parametrize(
    ("scopes", "paths"),
    [
        (("read",), [*OPERATE, *ADMIN]),
        (("operate:orders", "read:mail"), [*OPERATE, *ADMIN]),
        (("operate",), ADMIN),
    ],
    ids=["viewer", "operator of another queue", "operator"],
)
def test_an_act_without_its_right_changes_nothing(
    new_site: Callable[..., Site], scopes: tuple[str, ...], paths: list[str]
) -> None:
    site = new_site()
    client = site.logged_in(site.token("ann", *scopes))
    asyncio.run(prepare(site.app.store))
    before = asyncio.run(all_of(site.app.store))
    for path in paths:
        path, _, arguments = path.partition("?")
        fields = dict(one.split("=") for one in arguments.split("&")) if arguments else {"time": "5m"}
        shown = f"{path}?{arguments}" if path == "/jobs/change" else path
        answer = site.post(client, shown, **{**fields, "a.to": "eve", "max_running": "1"})
        assert answer.status_code == 403, path
    assert asyncio.run(all_of(site.app.store)) == before


@pytest.mark.parametrize("act", [JobAct.CANCEL, JobAct.COMPLETE, JobAct.DELETE, JobAct.DISCARD, JobAct.RETRY])
def test_no_act_on_a_job_changes_jobs_of_queues_of_others(new_site: Callable[..., Site], act: JobAct) -> None:
    site = new_site()

    @site.app.task(queue="mail")
    def public() -> None: ...

    @site.app.task(queue="orders")
    def secret() -> None: ...

    flow = group([public.job(), secret.job()]).enqueue()
    store = site.app.store
    client = site.logged_in(site.token("ann", "operate:mail"))
    ((mail,),) = [[job.id for job in asyncio.run(store.list_jobs(queue="mail")).jobs]]
    before = asyncio.run(all_of(store))
    site.post(client, f"/jobs/mail/{mail}/act/{act.value}")
    site.post(client, "/jobs/change", act=act.value, job=f"mail/{mail}")
    site.post(client, f"/flows/mail/{flow.id}/act/cancel")
    assert asyncio.run(all_of(store)) == before
    chief = site.logged_in(site.token("chief", "operate:mail,orders"))
    site.post(chief, f"/jobs/mail/{mail}/act/cancel")
    assert {job.state.value for job in asyncio.run(store.list_jobs()).jobs} == {"cancelled"}
