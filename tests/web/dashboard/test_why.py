"""Why a job waits has one answer: from code, from the command line and on its page, on every store."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock import App
from penstock.core.ids import mint
from penstock.core.job import Ref, State
from penstock.core.limits import LimitChange, Rate
from penstock.core.relations import Partition
from penstock.encryption import new_key
from penstock.inspector import Inspector, as_json
from penstock.inspector.audit import AuditLog
from penstock.stores.contract import SignalWait, StepRecord, Store, WorkerInfo
from tests.cli.conftest import Cli
from tests.servers import Cluster, RedisServer, remove_keys
from tests.sqlite_files import new_url
from tests.store.facts import (
    LEASE,
    MINUTE,
    PARKED,
    add,
    end,
    in_state,
    member,
    new,
    running,
    suspended,
    waiting,
)
from tests.web.dashboard.conftest import Site

#: All kinds of reasons, but those of a store that is away, or whose queue is deleted at this moment.
KINDS = {
    *("ahead", "batch", "busy", "cancelled", "delayed", "ended", "expired", "gather", "limited"),
    *("lost worker", "next", "no worker", "parked", "partition", "paused", "rated", "running", "signal"),
    *("throttled", "timer", "unknown task"),
}
_INSTANT = re.compile(r"(at|until) 20\d\d-[^ :]+:\d\d:[\d.]+Z")


#: The namespace of these tests on servers that others use too.
NAMESPACE = f"why-{mint()}"
SERVERS = [pytest.param(name, marks=pytest.mark.server) for name in ("redis", "cluster")]


@pytest.fixture(params=["memory", "sqlite", "encrypted", *SERVERS])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "sqlite":
        yield new_url(tmp_path)
    elif request.param in ("redis", "cluster"):
        monkeypatch.setenv("PENSTOCK_NAMESPACE", NAMESPACE)
        server: RedisServer | Cluster = request.getfixturevalue(request.param)
        yield server.url
        remove_keys(server.servers if isinstance(server, Cluster) else [server], NAMESPACE)
    else:
        if request.param == "encrypted":
            monkeypatch.setenv("PENSTOCK_KEY", new_key())
        yield f"memory://{mint()}"


@pytest.fixture
def app(url: str) -> Iterator[App]:
    made = App(url)
    yield made
    made.store.close()


async def fill(store: Store) -> None:
    """Jobs that are kept by every rule there is, each rule of a queue in a queue of its own."""
    served = ("open", "signals", "partitions", "held", "asked", "failed", "parks", "full")
    worker = WorkerInfo("w1", "box", 1, 0, served, ("t",), 4, full_queues=("full",))
    await store.announce(worker)
    for state in (State.COMPLETED, State.CANCELLED, State.DEAD, State.RETRYABLE):
        await in_state(store, state, queue="failed")
    await add(store, new(queue="open"), new(queue="open"), new(queue="open", task="u"), new(queue="full"))
    await in_state(store, State.SCHEDULED, queue="alone")
    await add(store, new(queue="late", expires_in=1))
    await end(store, await running(store, queue="parks"), PARKED)
    parked = await running(store, queue="unknown", task="u")
    await end(store, parked, msgspec.structs.replace(PARKED, reason=None))
    await add(store, member(queue="batches", key="x"), *(member(queue="batches", size=2) for _ in "ab"))
    await waiting(store, queue="partitions")
    await add(store, *(new(queue="partitions", partition=Partition("k")) for _ in "abc"))
    flow = await running(store, queue="signals")
    await store.await_signals([SignalWait(flow.lease, "packed", "packed", "7", LEASE)])
    members = msgspec.json.encode([("open", "gone", True, 0), ("signals", flow.id, True, 0)])
    await store.record_steps([StepRecord(flow.lease, "gather!!1", members, LEASE)])
    await end(store, flow, suspended())
    await store.cancel([(await running(store, queue="asked")).ref])
    await running(store, queue="max")
    await store.settings("max", limits=LimitChange.of(max_running=1))
    await store.settings("rate", limits=LimitChange(rate=Rate(1, 60 * MINUTE)))
    await running(store, queue="rate")
    for queue in ("max", "rate", "stopped", "slow"):
        await add(store, new(queue=queue))
    await store.settings("stopped", paused=True)
    await store.settings("slow", limits=LimitChange.of(throttle="1h"))
    await AuditLog(store).write("cli:ann@box", "queue.pause", ["stopped"])
    await AuditLog(store).write("cli:ann@box", "queue.set", ["slow"], facts={"throttle": "1h"})
    await running(store, queue="held")
    await store.retire("w1")
    await store.announce(msgspec.structs.replace(worker, id="w2"))


def test_why_is_the_same_from_code_the_command_line_and_the_dashboard(app: App, url: str) -> None:
    asyncio.run(fill(app.store))
    site, inspector, seen = Site(app, open_to_all=True, hosts=()), Inspector(app.store), set[str]()
    for ref in asyncio.run(_all(app.store)):
        address = f"{ref.queue}/{ref.id}"
        (view,) = asyncio.run(inspector.why(address))
        seen |= {one.kind for one in view.reasons}
        (shown,) = Cli(url).json("jobs", "why", address)["jobs"]
        assert shown == as_json(view)
        page = _text(site.client.get(f"/jobs/{ref.queue}/{ref.id}").text)
        for one in view.reasons:
            if one.says not in ("it has completed", f"it is {view.state}"):  # the page says so above
                assert _in_page(one.says, view.state) in page
    assert seen == KINDS


async def _all(store: Store) -> list[Ref]:
    return [job.ref for job in (await store.list_jobs(limit=200)).jobs]


def _text(page: str) -> list[str]:
    """The reasons on the page of a job, with `…` for each instant, which it shows as people say it."""
    lines = re.findall(r'<p class="why">(.*?)</p>', page)
    times = (re.sub(r"<time [^>]*>[^<]*</time>", "at …", line) for line in lines)
    return [html.unescape(re.sub(r"until \S+ \S+( UTC)?", "until …", line)) for line in times]


def _in_page(says: str, state: str) -> str:
    says = _INSTANT.sub(r"\1 …", says).removeprefix(f"it is {state}: ")
    return f"{says[:1].upper()}{says[1:]}."
