"""Somebody with rights on one queue opens every page and follows every link: nothing is of another queue."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Iterator

import pytest

from penstock import App
from penstock.core.job import AttemptError, NewJob, State
from penstock.core.lifecycle import Transition
from penstock.core.relations import BatchTerms, Partition, Tenant
from penstock.core.schedule import NewEntry, Schedule
from penstock.core.stats import TaskStats
from penstock.core.unique import UniqueKey
from penstock.inspector import Inspector, JobAct
from penstock.inspector.audit import AuditLog
from penstock.stores.contract import (
    ErrorCount,
    JobFilter,
    Settlement,
    Share,
    StatsReport,
    Store,
    TaskCount,
    WorkerInfo,
)
from penstock.web.dashboard.pages import PAGES
from penstock.workflows import chain
from tests.web.dashboard.conftest import Site
from tests.web.dashboard.hostile import HtmlCheck

#: What is of the other queue has this in its name. The job `same` is in both.
_MARK = re.compile(r"zz\w*")
_LEASE = 600_000
_JOBS = ("same", "running", "ready", "waiting", "flow", "entry")
_QUERIES = (
    *("/jobs?worker=w1", "/jobs?worker=zzw", "/jobs?text=zz", "/jobs?header=zzheader%3Dzzvalue"),
    *("/jobs?flow=zzq/zzflow1", "/jobs?queue=zzq", "/jobs?task=zztask", "/jobs?not-queue=mail"),
    *("/jobs?state=running", "/jobs?order=due", "/jobs?order=ended", "/search?q=same", "/search?q=zzdead"),
    *("/search?q=zzq", "/search?q=zztask", "/workers/zzw", "/workers?name=zz", "/periodic?name=zz"),
    *("/errors?text=zz", "/tasks?name=zz", "/queues?name=zz", "/limits?name=zz", "/flows?state=running"),
    *("/jobs/change?act=retry&text=zz", "/jobs/change?act=retry&job=zzq/zzdead", "/enqueue?task=zzpay"),
)


@pytest.fixture
def shared() -> Iterator[Site]:
    app = App("memory://")

    @app.task(name="zzpay", queue="zzq")
    def zzpay(to: str, zzargument: str = "zzdefault") -> str:
        """Zzdoc."""
        return to

    @app.task(name="send", queue="mail")
    def send(to: str) -> str:
        return to

    asyncio.run(_fill(app.store))
    for n in range(51):
        chain(zzpay.using(delay="1h").job("x"), send).enqueue(id=f"zzflow{n}", name="zzname")
    chain(send.using(delay="1h").job("x"), zzpay).enqueue(id="flow")
    yield Site(app)
    app.store.close()


async def _fill(store: Store) -> None:
    def other(id: str, **more: object) -> NewJob:
        facts = {"headers": {"zzheader": "zzvalue"}, "tenant": Tenant("zztenant"), "retention": 3_600_000}
        return NewJob(id, "zztask", b'{"zzargument":"zzvalue"}', "zzq", **{**facts, **more})  # type: ignore[arg-type]

    def own(id: str, **more: object) -> NewJob:
        return NewJob(id, "send", b'{"to":"ann"}', "mail", **more)  # type: ignore[arg-type]

    first = [other("zzdead", unique=UniqueKey("zzkey")), other("zzrunning"), other("same")]
    await store.enqueue([*first, own("same"), own("running")])
    shares = [Share("zzq", 9, 9), Share("mail", 9, 9)]
    fetched = await store.fetch(shares, limit=9, lease=_LEASE, worker="w1", token="t")
    for one in fetched.jobs:
        if one.id == "zzdead":
            error = AttemptError(1, one.enqueued_at, "zzKind", "zzmessage", "zztraceback", "w1")
            dead = Transition(State.DEAD, reason="zzreason", error=error, keep=3_600_000)
            await store.settle([Settlement(one.lease, dead, b'"zzresult"')])
    waiting = [
        other("zzready", partition=Partition("zzkey")),
        other("zzwaiting", partition=Partition("zzkey")),
    ]
    waiting += [other("zzbatch", batch_terms=BatchTerms("zzkey", 10, 3_600_000))]
    await store.enqueue(
        [*waiting, own("ready", partition=Partition("p")), own("waiting", partition=Partition("p"))]
    )
    now = (await store.entries([])).now
    await store.announce(WorkerInfo("w1", "host", 1, now, ("mail", "zzq"), ("send", "zztask"), 4))
    await store.announce(WorkerInfo("zzw", "zzhost", 1, now, ("zzq",), ("zztask",), 4))
    schedule = Schedule("every 30s")
    await store.put_entries(
        [NewEntry("zzentry", other("x"), schedule), NewEntry("entry", own("x"), schedule)]
    )
    counts = TaskStats(started=3, processed=3, failed=2, dead=1, waited=5, ran=5)
    errors = [ErrorCount("zztask", "zzKind", "zznormal", "zzmessage", 2, "zzdead")]
    await store.add_stats([StatsReport("zzq", "w", 1, [TaskCount("zztask", counts)], errors)])
    await store.settings("zzq", paused=True)
    await AuditLog(store).write("user:zzann", "jobs.retry", "zzq/zzdead")
    bulk = Inspector(store).bulk
    await bulk.start(JobAct.RETRY, JobFilter(queues=("zzq",), text="zztext"), by="user:zzann")
    await bulk.start(JobAct.MOVE, JobFilter(queues=("mail",), text="none"), by="user:bob", to="zzq")


def _paths() -> Iterator[str]:
    for page in PAGES:
        for id in _JOBS:
            parts = {
                "queue": "mail",
                "id": id,
                "what": "arguments",
                "worker": "w1",
                "task": "send",
                "bulk": "x",
            }
            yield re.sub(r"\{(\w+)\}", lambda found, parts=parts: parts[found[1]], page.path)  # type: ignore[misc]
    yield from _QUERIES


@pytest.mark.parametrize("right", ["read", "admin"])
def test_no_page_shows_or_links_what_is_of_another_queue(right: str, shared: Site) -> None:
    client = shared.logged_in(shared.token("ann", f"{right}:mail"))
    left, opened, found = list(_paths()), set[str](), list[str]()
    while left:
        path = left.pop()
        names = "&".join(sorted(set(re.findall(r"[?&]([\w-]+)=", path))))
        asked = set(_MARK.findall(path))  # what was asked for may be repeated
        shape = f"{path.partition('?')[0]} {names} {sorted(asked)}"
        if shape in opened:
            continue
        opened.add(shape)
        answer = client.get(path)
        shown = answer.text + answer.headers.get("location", "")
        found += [f"{path}: {mark}" for mark in set(_MARK.findall(shown)) - asked]
        left += [html.unescape(link) for link in HtmlCheck.of(answer.text).links if link.startswith("/")]
    assert found == []
    assert len(opened) > 100
