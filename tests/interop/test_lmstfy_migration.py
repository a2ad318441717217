"""A running lmstfy is replaced: its tokens work on, and its pending jobs move to Penstock's store."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.interop.test_lmstfy_clients import lmstfy, pytestmark  # noqa: F401  (fixtures)
from tests.interop.test_lmstfy_differential import original  # noqa: F401  (fixtures)
from tests.web.programs import running
from tests.web.wire import Client

TOKEN = "a-token-of-the-old-server"
JOBS = 300
CONFIG = """
Host = "127.0.0.1"
Port = 0
AdminPort = 0
[Pool.default]
Upstream = "http://127.0.0.1:{port}"
UpstreamToken = "{token}"
UpstreamAdmin = "http://127.0.0.1:{admin_port}"
MigrateTo = "new"
[Pool.new]
Addr = "sqlite:///{home}/jobs.db"
"""


async def test_pending_jobs_and_tokens_move(
    original: tuple[int, int],  # noqa: F811  (a fixture)
    tmp_path: Path,
) -> None:
    old, old_admin = Client(original[0], TOKEN), Client(original[1])
    made = await old_admin.request("POST", f"/token/ns?description=mine&token={TOKEN}")
    assert made.status == 201
    limit = await old_admin.request("POST", f"/token/ns/{TOKEN}/limit", b'{"write":50000,"interval":60}')
    assert limit.status == 201
    # a namespace whose token is not in the file
    other = (await old_admin.request("POST", "/token/a-first-one?description=d")).json["token"]
    assert (await old.put("/api/a-first-one/q", b"x", ("X-Token", other))).status == 201
    await old.put("/api/ns/dead?tries=1", b"dead")
    await old.get("/api/ns/dead?ttr=0")
    # in a namespace of its own: lmstfy ends a batch at a job that was acknowledged and whose TTR is over
    assert (await old_admin.request("POST", f"/token/out?description=d&token={TOKEN}")).status == 201
    out_id = (await old.put("/api/out/q?tries=5", b"out")).json["job_id"]
    assert (await old.get("/api/out/q?ttr=3")).json["job_id"] == out_id
    for n in range(JOBS // 50):
        bodies = b",".join(b"%d" % (n * 50 + i) for i in range(50))
        assert (await old.put("/api/ns/many/bulk?tries=1", b"[%b]" % bodies)).status == 201
    await old.put("/api/ns/later?delay=3&ttl=100", b"later")

    config = tmp_path / "lmstfy.toml"
    config.write_text(CONFIG.format(port=original[0], admin_port=original[1], token=TOKEN, home=tmp_path))
    async with running(tmp_path, "--config", str(config), "--port", "0", with_url=False) as server:
        client, admin = server.client(token=TOKEN), server.admin()
        assert (await admin.get("/token/ns")).json == {"tokens": {TOKEN: "mine"}}
        assert (await admin.get(f"/token/ns/{TOKEN}/limit")).json == {
            "read": 0,
            "write": 50000,
            "interval": 60,
        }
        # the job that is out is acknowledged here, before its TTR is over there
        assert (await client.delete(f"/api/out/q/job/{out_id}")).status == 204
        assert (await client.put("/api/ns/many", b"new")).status == 201
        assert (await client.get("/api/ns/many/size")).json["size"] == JOBS + 1
        found = []
        while (jobs := await client.get("/api/ns/many?count=50&ttr=600")).status == 200:
            found += [(one["data"], one["remain_tries"]) for one in jobs.json]
        assert len(found) == len(set(found)) == JOBS + 1
        assert {tries for _, tries in found} == {0}
        assert found[-1][0] == "bmV3"
        later = await client.get("/api/ns/none,later?timeout=10")
        assert later.data == b"later"
        assert 90 <= later.json["ttl"] <= 100
        await client.delete(f"/api/ns/later/job/{later.json['job_id']}")
        assert (await client.get("/api/ns/dead/deadletter")).json["deadletter_size"] == 1
        assert (await client.put("/api/ns/dead/deadletter")).json["count"] == 1
        assert (await client.get("/api/ns/dead?timeout=5")).data == b"dead"
        assert (await client.get("/api/out/q?timeout=2")).status == 404
        shown = (await admin.get("/migrations")).json["default"]
        assert shown["left"] == {"available": 1, "dead": 0}
        assert "'a-first-one': the old lmstfy answered 401" in shown["problem"]
    await asyncio.gather(old.close(), old_admin.close())
