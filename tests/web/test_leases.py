"""Beyond lmstfy: leases, touch, release, giving up, all sizes, single dead letters; on every store."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from penstock.core.job import Job, Ref, State
from penstock.dialects.lmstfy.jobs import after_ttr, new_job
from tests.web.conftest import Served
from tests.web.test_requests_and_errors import error
from tests.web.wire import Client, Reply

LOST = (409, error("lease lost"))
MISSING = (404, error("job not found"))


async def taken(client: Client, query: str = "", *, published: str = "tries=3", body: bytes = b"x") -> Any:
    """A published job that is consumed with its lease."""
    assert (await client.put(f"/api/ns/q?{published}", body)).status == 201
    return (await client.get(f"/api/ns/q?lease=true&{query}")).json


async def post(client: Client, job: Any, act: str, query: str = "", *, lease: str = "") -> Reply:
    path = f"/api/ns/q/job/{job['job_id']}/{act}?lease={lease or job['lease']}&{query}"
    return await client.request("POST", path)


def facts(reply: Reply) -> tuple[int, bytes]:
    return reply.status, reply.body


async def test_a_lease_is_shown_only_if_it_is_asked_for(client: Client) -> None:
    for query in ("", "lease=false", "lease="):
        await client.put("/api/ns/q?tries=9", b"x")
        assert "lease" not in (await client.get(f"/api/ns/q?{query}")).json
    job = await taken(client)
    assert list(job) == sorted(job)
    assert job["lease"].partition("-")[0].isdigit()
    await client.put("/api/ns/q", b"y")
    (one,) = (await client.get("/api/ns/q?count=5&lease=true")).json
    assert one["lease"] != job["lease"]
    assert "lease" not in (await client.get(f"/api/ns/q/job/{one['job_id']}")).json


async def test_an_acknowledgement_with_the_lease_is_checked(served: Served, client: Client) -> None:
    first = await taken(client, "ttr=5")
    await served.advance(6)
    second = (await client.get("/api/ns/q?lease=true")).json
    assert second["job_id"] == first["job_id"]
    path = f"/api/ns/q/job/{first['job_id']}"
    assert facts(await client.delete(f"{path}?lease={first['lease']}")) == LOST
    assert (await client.get(path)).status == 200
    assert facts(await client.delete(f"{path}?lease={second['lease']}")) == (204, b"")
    assert facts(await client.delete(f"{path}?lease={second['lease']}")) == MISSING
    assert (await client.delete(path)).status == 204  # as lmstfy answers


async def test_a_touch_extends_the_lease(served: Served, client: Client) -> None:
    job = await taken(client, "ttr=5")
    await served.advance(4)
    touched = await post(client, job, "touch", "ttr=10")
    assert facts(touched) == (200, b'{"cancel_asked":false,"msg":"touched","ttr":10}')
    await served.advance(9)
    assert (await client.get("/api/ns/q")).status == 404
    await served.advance(2)
    assert (await client.get("/api/ns/q")).json["job_id"] == job["job_id"]
    assert facts(await post(client, job, "touch")) == LOST


async def test_a_touch_tells_of_a_request_to_stop(served: Served, client: Client) -> None:
    job = await taken(client)
    await served.store.cancel([Ref("ns.q", job["job_id"])])
    assert (await post(client, job, "touch")).json["cancel_asked"] is True


async def test_a_released_job_comes_again_after_its_delay(served: Served, client: Client) -> None:
    job = await taken(client)
    assert (await post(client, job, "release")).json == {"msg": "released", "state": "ready"}
    again = (await client.get("/api/ns/q?lease=true")).json
    assert (again["job_id"], again["remain_tries"]) == (job["job_id"], 1)
    assert (await post(client, again, "release", "delay=30")).json == {"msg": "released", "state": "delayed"}
    await served.advance(29)
    assert (await client.get("/api/ns/q")).status == 404
    await served.advance(2)
    last = (await client.get("/api/ns/q?lease=true")).json
    assert last["remain_tries"] == 0
    assert (await post(client, last, "release", "reason=no+luck")).json == {
        "msg": "released",
        "state": "dead",
    }
    (dead,) = await served.store.get([Ref("ns.q", job["job_id"])])
    assert dead is not None
    assert [one.message for one in dead.errors][-1] == "no luck"
    assert facts(await post(client, last, "release")) == LOST


@pytest.mark.parametrize("delay", [0, 30])
async def test_a_release_may_spend_no_try(served: Served, client: Client, delay: int) -> None:
    job = await taken(client, published="tries=1")
    for _ in range(3):
        assert (await post(client, job, "release", f"freeze_tries=true&delay={delay}")).status == 200
        await served.advance(delay)
        job = (await client.get("/api/ns/q?lease=true")).json
        assert job["remain_tries"] == 0


async def test_a_waiting_consumer_gets_a_released_job(client: Client, served: Served) -> None:
    job = await taken(client)
    other = served.client()
    await other.send("GET", "/api/ns/q?timeout=30")
    while not served.service.backends["default"].dispatcher.waiting:
        await client.get("/api/ns/q/size")
    assert (await post(client, job, "release")).status == 200
    assert (await other.read()).json["job_id"] == job["job_id"]


async def test_a_consumer_may_give_up_a_job(served: Served, client: Client) -> None:
    job = await taken(client, published="tries=9")
    assert (await post(client, job, "bury", "reason=broken")).json == {"msg": "buried", "state": "dead"}
    assert (await client.get("/api/ns/q/deadletter")).json["deadletter_head"] == job["job_id"]
    (listed,) = (await client.get("/api/ns/q/deadletter/job")).json["jobs"]
    assert (listed["job_id"], listed["reason"], listed["tries"]) == (job["job_id"], "broken", 1)
    await served.advance(400 * 86_400)
    assert (await client.get("/api/ns/q/deadletter/size")).json["size"] == 1


@pytest.mark.parametrize("act", ["touch", "release", "bury"])
async def test_a_stale_or_wrong_lease_changes_nothing(served: Served, client: Client, act: str) -> None:
    first = await taken(client, "ttr=5")
    await served.advance(6)
    second = (await client.get("/api/ns/q?lease=true")).json
    assert facts(await post(client, first, act)) == LOST
    for lease in ("x", "1", "-", "1-", "1-\u00e4", f"{2**70}-a", "1-a-b"):
        wrong = await client.request("POST", f"/api/ns/q/job/{first['job_id']}/{act}?lease={quote(lease)}")
        assert facts(wrong) == (400, error("invalid lease"))
    missing = await client.request("POST", f"/api/ns/q/job/{first['job_id']}/{act}")
    assert facts(missing) == (400, error("lease required: consume with lease=true"))
    assert facts(await post(client, first, act, lease=f"{second['lease']}0")) == LOST
    gone = await client.request("POST", f"/api/ns/q/job/nothing/{act}?lease={second['lease']}")
    assert gone.status == (409 if act == "touch" else 404)
    assert (await client.get("/api/ns/q/size?all=true")).json["reserved"] == 1
    assert (await client.delete(f"/api/ns/q/job/{first['job_id']}?lease={second['lease']}")).status == 204


async def test_all_sizes_are_exact(served: Served, client: Client) -> None:
    assert (await client.get("/api/ns/q/size?all=true")).json["delayed"] == 0
    await taken(client, published="tries=1")
    job = await taken(client, published="tries=9")
    await post(client, job, "bury")
    await client.put("/api/ns/q?delay=30", b"later")
    for _ in range(2):
        await client.put("/api/ns/q", b"now")
    found = await client.get("/api/ns/q/size?all=true")
    expected = b'{"dead":1,"delayed":1,"namespace":"ns","queue":"q","reserved":1,"size":2}'
    assert facts(found) == (200, expected)
    assert (await client.get("/api/ns/q/size")).body == b'{"namespace":"ns","queue":"q","size":2}'


async def test_single_dead_letters_are_listed_respawned_and_deleted(served: Served, client: Client) -> None:
    ids = []
    for body in (b"a", b"b", b"c"):
        job = await taken(client, body=body)
        await post(client, job, "bury")
        ids.append(job["job_id"])
    page = (await client.get("/api/ns/q/deadletter/job?limit=2")).json
    assert [one["job_id"] for one in page["jobs"]] == ids[:2]
    rest = (await client.get(f"/api/ns/q/deadletter/job?after={page['next']}")).json
    assert ([one["job_id"] for one in rest["jobs"]], rest["next"]) == (ids[2:], None)
    respawned = await client.put(f"/api/ns/q/deadletter/job/{ids[1]}?ttl=10")
    assert facts(respawned) == (200, b'{"count":1,"msg":"respawned"}')
    job = (await client.get("/api/ns/q")).json
    assert (job["job_id"], job["ttl"], job["remain_tries"]) == (ids[1], 10, 0)
    for act in ("PUT", "DELETE"):
        for id in (ids[1], "nothing"):
            refused = await client.request(act, f"/api/ns/q/deadletter/job/{id}")
            assert facts(refused) == (404, error("no such dead letter"))
    assert (await client.delete(f"/api/ns/q/deadletter/job/{ids[2]}")).status == 204
    assert [one["job_id"] for one in (await client.get("/api/ns/q/deadletter/job")).json["jobs"]] == ids[:1]
    assert (await client.get("/api/ns/q/deadletter/job?after=x")).body == error("invalid after")
    assert (await client.put(f"/api/ns/q/deadletter/job/{ids[0]}?ttl=-1")).body == error("invalid ttl")


@pytest.mark.parametrize(
    ("tries", "late", "state", "why"),
    [
        (1, 0, State.CANCELLED, "the TTL was over before"),
        (1, 500, State.CANCELLED, "the TTL was over before, and the TTR some time ago"),
        (1, 1_500, State.DEAD, "no try was left when the TTR ended, and the TTL ended after that"),
        (2, 1_500, State.CANCELLED, "it was back in its queue when the TTL ended"),
    ],
)
def test_of_a_job_whose_ttr_and_ttl_end_while_the_server_is_held_up_the_order_decides(
    tries: int, late: int, state: State, why: str
) -> None:
    spec = new_job("q", "j", b"", delay=0, ttl=10, tries=tries, attributes=None)
    job = Job(spec, State.RUNNING, attempt=1, expires_at=10_000, token="t", worker="w")
    assert after_ttr(job, 11_000, late=late).state is state, why
