"""Dead letters: kept, shown, respawned and deleted, the oldest first, on every store."""

from __future__ import annotations

import pytest

from tests.web.conftest import Served
from tests.web.wire import Client


async def dead(served: Served, client: Client, *bodies: bytes, ttl: int = 0) -> list[str]:
    """Make dead letters of these bodies, in this order."""
    ids = [(await client.put(f"/api/ns/q?tries=1&ttl={ttl}", body)).json["job_id"] for body in bodies]
    await client.get(f"/api/ns/q?ttr=1&count={len(bodies)}")
    await served.advance(1.1)
    return ids


async def test_dead_letters_are_shown(served: Served, client: Client) -> None:
    empty = await client.get("/api/ns/q/deadletter")
    assert empty.body == b'{"deadletter_head":"","deadletter_size":0,"namespace":"ns","queue":"q"}'
    ids = await dead(served, client, b"a", b"b", b"c")
    head = await client.get("/api/ns/q/deadletter")
    assert head.json == {"deadletter_head": ids[0], "deadletter_size": 3, "namespace": "ns", "queue": "q"}
    assert (await client.get("/api/ns/q/deadletter/size")).json["size"] == 3
    assert (await client.get(f"/api/ns/q/job/{ids[1]}")).data == b"b"


async def test_a_ttr_of_zero_buries_a_job_within_a_second(served: Served, client: Client) -> None:
    await client.put("/api/ns/q?tries=1", b"x")
    assert (await client.get("/api/ns/q?ttr=0")).status == 200
    await served.advance(0.01)
    assert (await client.get("/api/ns/q/deadletter/size")).json["size"] == 1


async def test_dead_letters_are_respawned_oldest_first_with_their_ids(served: Served, client: Client) -> None:
    ids = await dead(served, client, b"a", b"b", b"c")
    assert (await client.put("/api/ns/q/deadletter?limit=2")).body == b'{"count":2,"msg":"respawned"}'
    found = [await client.get("/api/ns/q?ttr=1") for _ in range(2)]
    assert [one.json["job_id"] for one in found] == ids[:2]
    assert [one.json["remain_tries"] for one in found] == [0, 0]
    assert (await client.get("/api/ns/q/deadletter")).json["deadletter_head"] == ids[2]
    assert (await client.put("/api/ns/other/deadletter")).json["count"] == 0


async def test_the_oldest_dead_letter_is_the_one_that_died_first(served: Served, client: Client) -> None:
    first, second = [(await client.put("/api/ns/q?ttl=0", body)).json["job_id"] for body in (b"a", b"b")]
    await client.get("/api/ns/q?ttr=60")
    await client.get("/api/ns/q?ttr=1")
    await served.advance(2)
    assert (await client.get("/api/ns/q/deadletter")).json["deadletter_head"] == second
    await served.advance(60)
    await client.put("/api/ns/q/deadletter?limit=10")
    found = [(await client.get("/api/ns/q")).json["job_id"] for _ in range(2)]
    assert found == [second, first]


@pytest.mark.parametrize("ttl", [2**32, 2**63 - 1])
async def test_a_respawned_dead_letter_has_a_ttl_that_clients_can_read(
    served: Served, client: Client, ttl: int
) -> None:
    made = (await client.put("/api/ns/q?tries=1&ttl=0", b"x")).json
    for path in ("deadletter", f"deadletter/job/{made['job_id']}"):
        await client.get("/api/ns/q?ttr=1")
        await served.advance(1.1)
        assert (await client.put(f"/api/ns/q/{path}?ttl={ttl}")).json["count"] == 1
        assert 2**32 - 100 < (await client.get("/api/ns/q/peek")).json["ttl"] < 2**32


async def test_a_respawned_dead_letter_has_one_try(served: Served, client: Client) -> None:
    id = (await client.put("/api/ns/q?tries=3&ttl=0", b"x")).json["job_id"]
    for left in (2, 1, 0):
        assert (await client.get("/api/ns/q?ttr=1")).json["remain_tries"] == left
        await served.advance(1.1)
    for _ in range(2):
        assert (await client.get("/api/ns/q/deadletter")).json["deadletter_head"] == id
        assert (await client.put("/api/ns/q/deadletter")).json["count"] == 1
        assert (await client.get("/api/ns/q/peek")).json["remain_tries"] == 1
        assert (await client.get("/api/ns/q?ttr=1")).json["remain_tries"] == 0
        await served.advance(1.1)


async def test_a_respawned_dead_letter_has_a_new_ttl(served: Served, client: Client) -> None:
    ids = await dead(served, client, b"a", b"b", b"c", ttl=50)
    for query in ("ttl=10", "ttl=0", ""):
        await client.put(f"/api/ns/q/deadletter?{query}")
    shown = [(await client.get(f"/api/ns/q/job/{id}")).json["ttl"] for id in ids]
    assert shown == [10, 0, 86_400]
    await served.advance(11)
    assert (await client.get("/api/ns/q")).json["job_id"] == ids[1]
    assert (await client.get("/api/ns/q/deadletter/size")).json["size"] == 0


async def test_dead_letters_are_deleted_oldest_first(served: Served, client: Client) -> None:
    ids = await dead(served, client, b"a", b"b", b"c")
    assert (await client.delete("/api/ns/q/deadletter?limit=2")).status == 204
    head = await client.get("/api/ns/q/deadletter")
    assert (head.json["deadletter_head"], head.json["deadletter_size"]) == (ids[2], 1)
    assert (await client.get(f"/api/ns/q/job/{ids[0]}")).status == 404


async def test_a_dead_letter_is_kept_for_ever(served: Served, client: Client) -> None:
    ids = await dead(served, client, b"a", ttl=10)
    await served.advance(400 * 86_400)
    await served.store.prune(keep_dead=2**53)
    assert (await client.get(f"/api/ns/q/job/{ids[0]}")).data == b"a"
    assert (await client.get("/api/ns/q/deadletter/size")).json["size"] == 1


async def test_a_job_whose_ttl_is_over_is_no_dead_letter(served: Served, client: Client) -> None:
    id = (await client.put("/api/ns/q?tries=1&ttl=2", b"x")).json["job_id"]
    await client.get("/api/ns/q?ttr=5")
    await served.advance(3)
    assert (await client.get(f"/api/ns/q/job/{id}")).status == 404
    await served.advance(3)
    assert (await client.get("/api/ns/q/deadletter/size")).json["size"] == 0
    again = (await client.put("/api/ns/q?tries=3&ttl=2", b"y")).json["job_id"]
    await client.get("/api/ns/q?ttr=5")
    await served.advance(6)
    assert (await client.get("/api/ns/q")).status == 404
    assert (await client.delete(f"/api/ns/q/job/{again}")).status == 204


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
@pytest.mark.parametrize("limit", ["0", "-1", "x", "", "1.0", "9223372036854775808"])
async def test_a_wrong_limit_is_refused(local: Served, method: str, limit: str) -> None:
    answer = await local.client().request(method, f"/api/ns/q/deadletter?limit={limit}")
    assert (answer.status, answer.body) == (400, b'{"error":"invalid limit"}')


async def test_a_limit_may_have_a_sign_and_be_large(local: Served) -> None:
    client = local.client()
    assert (await client.put("/api/ns/q/deadletter?limit=%2B9223372036854775807")).json["count"] == 0
    assert (await client.put("/api/ns/q/deadletter?ttl=-1")).body == b'{"error":"invalid ttl"}'
