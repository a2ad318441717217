"""Metrics in Prometheus' text format, and health, on every store."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.clock import ManualClock
from penstock.core.errors import StoreUnavailable
from penstock.core.job import State
from penstock.stores.memory import MemoryStore
from penstock.web.exposition import LabelledCounter, LabelledHistogram, exposed
from tests.prometheus_text import samples
from tests.web.conftest import Served
from tests.web.wire import Client


async def metrics(served: Served) -> dict[str, float]:
    """The samples by name and labels."""
    answer = await served.admin().get("/metrics")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    return samples(answer.body.decode())


async def test_the_metrics_count_what_happened(served: Served, client: Client) -> None:
    for _ in range(3):
        await client.put("/api/ns/q?tries=1&ttl=0", b"x")
    await client.put("/api/ns/q?delay=60", b"x")
    (first, _) = (await client.get("/api/ns/q?count=2&ttr=1")).json
    await client.delete(f"/api/ns/q/job/{first['job_id']}")
    await served.advance(1.1)
    await client.get("/api/ns/empty")
    found = await metrics(served)
    queue = '{pool="default",namespace="ns",queue="q"}'
    assert found[f"infra_lmstfy_redis_queue_sizes{queue}"] == 1
    assert found[f"infra_lmstfy_redis_deadletter_sizes{queue}"] == 1
    assert found['infra_lmstfy_redis_timer_sizes{pool="default"}'] == 1
    assert found[f"infra_lmstfy_redis_publish_queue_jobs{queue}"] == 4
    assert found[f"infra_lmstfy_redis_consume_queue_jobs{queue}"] == 2
    assert found['infra_lmstfy_redis_consume_multi_jobs{pool="default"}'] == 2
    assert found[f"infra_lmstfy_redis_job_elapsed_ms_count{queue}"] == 2
    assert found[f"infra_lmstfy_redis_job_ack_elapsed_ms_count{queue}"] == 1
    route = 'pool="default",namespace="ns",api="/api/:namespace/:queue"'
    assert found[f'infra_lmstfy_http_http_codes{{{route},method="PUT",code="201"}}'] == 4
    assert found[f'infra_lmstfy_http_http_codes{{{route},method="GET",code="404"}}'] == 1
    assert found[f'infra_lmstfy_http_latency_milliseconds_count{{{route},method="PUT"}}'] == 4
    durations, path = "penstock_http_request_duration_seconds", 'api="/api/:namespace/:queue"'
    assert found[f'{durations}_count{{{path},method="PUT",code="2xx"}}'] == 4
    assert found[f'{durations}_count{{{path},method="GET",code="4xx"}}'] == 1
    assert found[f'{durations}_bucket{{{path},method="PUT",code="2xx",le="60"}}'] == 4
    assert 0 < found[f'{durations}_sum{{{path},method="PUT",code="2xx"}}'] < 60
    ours = 'pool="default",queue="ns.q"'
    assert found[f'penstock_queue_jobs{{{ours},state="dead"}}'] == 1
    assert found[f'penstock_queue_jobs{{{ours},state="scheduled"}}'] == 1
    assert found[f"penstock_jobs_enqueued_total{{{ours}}}"] == 4
    assert found[f"penstock_jobs_processed_total{{{ours}}}"] == 2
    assert found[f"penstock_jobs_failed_total{{{ours}}}"] == 1
    assert found['penstock_store_up{pool="default"}'] == 1
    assert found["penstock_http_connections"] == 1
    assert found["process_cpu_seconds_total"] > 0


async def test_the_totals_of_lmstfy_count_each_step_of_a_job(served: Served, client: Client) -> None:
    await client.put("/api/ns/q?tries=1&ttl=0&delay=1", b"delayed")
    for _ in range(2):
        await client.put("/api/ns/q?tries=1&ttl=0", b"ready")
    await served.advance(1.1)  # the first one is due
    first, *_ = (await client.get("/api/ns/q?count=3&ttr=1")).json
    assert (await client.get(f"/api/ns/q/job/{first['job_id']}")).status == 200
    assert (await client.get("/api/ns/q/peek")).status == 404
    await client.delete(f"/api/ns/q/job/{first['job_id']}")
    await served.advance(1.1)  # two TTRs are over
    assert (await client.put("/api/ns/q/deadletter?limit=5")).json["count"] == 2
    assert (await client.get("/api/ns/q/peek")).status == 200
    found = await metrics(served)
    prefix, totals = "infra_lmstfy_redis_", {}
    for name, value in found.items():
        if name.startswith(prefix) and name.endswith('_jobs{pool="default"}'):
            totals[name[len(prefix) : -len('_jobs{pool="default"}')]] = value
    assert totals == {
        "publish": 3,
        "consume_multi": 3,
        "pool_add": 3,
        "pool_get": 5,
        "pool_delete": 1,
        "timer_add": 4,
        "timer_due": 3,
        "queue_direct_push": 2,
        "queue_pop": 3,
        "deadletter_respawn": 2,
    }


async def test_the_series_of_a_state_stays_when_it_has_no_job(served: Served, client: Client) -> None:
    job = (await client.put("/api/ns/q?delay=60", b"x")).json
    for number in (1, 0):
        found = await metrics(served)
        states = [
            name for name in found if name.startswith('penstock_queue_jobs{pool="default",queue="ns.q",')
        ]
        assert len(states) == len(State)
        assert found['penstock_queue_jobs{pool="default",queue="ns.q",state="scheduled"}'] == number
        assert found['penstock_queue_jobs{pool="default",queue="ns.q",state="dead"}'] == 0
        await client.delete(f"/api/ns/q/job/{job['job_id']}")


async def test_no_token_is_shown(clock: ManualClock) -> None:
    token = "a-token-of-the-command-line"
    store = MemoryStore("metrics", clock=clock)
    one = Served(store, clock, need_tokens=True, fixed_tokens={"ns": frozenset({token})})
    await one.start()
    try:
        await one.admin().request("PUT", f"/token/ns/{token}/limit", b'{"write":1,"interval":60}')
        assert [(await one.client(token).put("/api/ns/q", b"x")).status for _ in range(2)] == [201, 429]
        assert (await one.client("a-wrong-token").put("/api/secret/q", b"x")).status == 401
        text = (await one.admin().get("/metrics")).body
        assert b"infra_lmstfy_http_rate_limit{" in text
        assert not any(part in text for part in (token.encode(), b"a-wrong-token", b"secret"))
    finally:
        await one.stop()
        store.close()


async def test_a_server_whose_store_is_away_is_live_but_not_ready(
    local: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable("no answer from it")

    admin = local.admin()
    assert [(await admin.get(path)).body for path in ("/livez", "/readyz")] == [b"ok\n"] * 2
    for verb in ("promote", "queues"):
        monkeypatch.setattr(local.store, verb, fail)
    assert (await admin.get("/livez")).status == 200
    ready = await admin.get("/readyz")
    assert (ready.status, ready.body) == (503, b"default: no answer from it\n")
    assert (await metrics(local))['penstock_store_up{pool="default"}'] == 0


async def test_a_store_that_hangs_is_not_ready(local: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    backend = local.service.backends["default"]
    monkeypatch.setattr(local.store, "promote", hang)
    assert await backend.answers(within=0.01) == "the store did not answer within 0.01 s"


# --- the text format ----------------------------------------------------------------------------


def test_labels_are_escaped() -> None:
    text = exposed("name", "gauge", "Help.", ("label",), [(('a"b\\c\nd',), 0.5)])
    assert text == '# HELP name Help.\n# TYPE name gauge\nname{label="a\\"b\\\\c\\nd"} 0.5\n'
    assert exposed("name", "gauge", "Help.", (), []) == ""


def test_the_buckets_of_a_histogram_add_up() -> None:
    one = LabelledHistogram("h", "Help.", ("l",), (1, 2.5))
    for value in (0.5, 1, 2, 9):
        one.observe(("x",), value)
    assert one.exposed().splitlines()[2:] == [
        'h_bucket{l="x",le="1"} 2',
        'h_bucket{l="x",le="2.5"} 3',
        'h_bucket{l="x",le="+Inf"} 4',
        'h_sum{l="x"} 12.5',
        'h_count{l="x"} 4',
    ]


def test_the_number_of_series_is_bounded() -> None:
    counter = LabelledCounter("c", "Help.", ("a", "b"))
    histogram = LabelledHistogram("h", "Help.", ("a",), (1,))
    for n in range(3_000):
        counter.add((str(n), ""))
        histogram.observe((str(n),), 0)
    assert counter.exposed().count("\n") == 2_003
    assert 'c{a="other",b="other"} 1000\n' in counter.exposed()
    assert 'h_count{a="other"} 1000\n' in histogram.exposed()
