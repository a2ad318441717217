"""The runners against real servers: calls, answers, and recovery from errors in between."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import uvloop
from redis.credentials import CredentialProvider

from penstock.errors import StoreCorrupt, StoreError, StoreFull, StoreUnavailable
from penstock.stores.redis.wire import calls as call_batches
from penstock.stores.redis.wire.address import Address, Node
from penstock.stores.redis.wire.async_connection import open_async_connection
from penstock.stores.redis.wire.async_runner import AsyncRunner
from penstock.stores.redis.wire.calls import Acked, Call, RequestBatch, Script, ServerRun
from penstock.stores.redis.wire.connect import Server
from penstock.stores.redis.wire.faults import ErrorReply, ReplyLost, ServerRestarted
from penstock.stores.redis.wire.sync_runner import SyncRunner
from penstock.stores.redis.wire.topology import FixedTopology
from tests.servers import Cluster, RedisServer
from tests.stores.redis.both_runners import ECHO, Asker, plain, push
from tests.stores.redis.faulty_proxy import FaultyProxy

NewRedis = Callable[..., RedisServer]


async def test_each_call_has_its_answer_in_order(ask: Asker, redis: RedisServer) -> None:
    ask.to(redis.url)
    calls = [Call(ECHO, (b"k",), [n]) for n in range(5_000)]
    assert await ask(calls) == [[b"k", b"%d" % n] for n in range(5_000)]


async def test_nothing_to_ask_has_no_answers(ask: Asker, redis: RedisServer) -> None:
    assert await ask.to(redis.url)([]) == []


async def test_an_error_is_the_answer_of_its_call_alone(ask: Asker, redis: RedisServer) -> None:
    ask.to(redis.url)
    first, second, third = await ask([plain("PING"), plain("FOO"), plain("PING")])
    assert (first, third) == (b"PONG", b"PONG")
    assert isinstance(second, StoreError)
    assert "unknown command" in str(second)


async def test_a_forgotten_script_is_loaded_again(ask: Asker, redis: RedisServer) -> None:
    ask.to(redis.url)
    assert await ask([Call(ECHO, (b"k",), [1])]) == [[b"k", b"1"]]
    with redis.patient_client() as client:
        client.script_flush()
    other = Script("other", "return 7")
    answers = await ask([Call(ECHO, (b"k",), [1]), plain("PING"), Call(other), Call(ECHO, (b"k",), [2])])
    assert answers == [[b"k", b"1"], b"PONG", 7, [b"k", b"2"]]


async def test_calls_of_one_script_keep_their_order_when_it_must_be_loaded(
    ask: Asker, new_redis: NewRedis
) -> None:
    server = new_redis()
    ask.to(server.url)
    await ask([push("list", n) for n in range(100)])
    with server.patient_client() as client:
        assert client.lrange("list", 0, -1) == [b"%d" % n for n in range(100)]


async def test_replicas_are_counted_once_for_a_batch(ask: Asker, new_redis: NewRedis) -> None:
    server = new_redis()
    new_redis(f"replicaof 127.0.0.1 {server.port}").wait_synced()
    ask.to(server.url)
    answers = await ask([push("list", n, replicas=1) for n in range(3)])
    assert answers == [Acked(1, 1), Acked(2, 1), Acked(3, 1)]


async def test_without_replicas_the_count_says_so(ask: Asker, redis: RedisServer) -> None:
    ask.to(redis.url + "?wait_timeout=50ms")
    (answer,) = await ask([push("alone", 1, replicas=1)])
    assert answer.replicas == 0
    with redis.patient_client() as client:
        client.delete("alone")


async def test_a_lost_reply_of_a_repeatable_call_is_asked_for_again(ask: Asker, redis: RedisServer) -> None:
    with FaultyProxy(redis.port) as proxy:
        ask.to(proxy.address)
        await ask([push("other", 1)])  # the script is known from here on
        proxy.lose_reply_to = b"twice"
        (answer,) = await ask([push("twice", "twice")])
    assert answer == 2
    with redis.patient_client() as client:
        client.delete("twice", "other")


async def test_a_lost_reply_of_any_other_is_said(ask: Asker, redis: RedisServer) -> None:
    with FaultyProxy(redis.port) as proxy:
        ask.to(proxy.address)
        await ask([push("other", 1)])  # the script is known from here on
        proxy.lose_reply_to = b"once"
        lost, fine = await ask([push("once", "once", repeatable=False), plain("PING")])
    assert isinstance(lost, ReplyLost)
    assert "may have been executed" in str(lost)
    assert fine == b"PONG"
    with redis.patient_client() as client:
        assert client.llen("once") == 1
        client.delete("once", "other")


async def test_a_connection_that_was_cut_while_idle_is_not_noticed(ask: Asker, redis: RedisServer) -> None:
    with FaultyProxy(redis.port) as proxy:
        ask.to(proxy.address)
        await ask([plain("PING")])
        proxy.cut()
        await asyncio.sleep(0.05)  # so that the cut arrives
        assert await ask([push("cut", 1, repeatable=False)]) == [1]
    with redis.patient_client() as client:
        client.delete("cut")


async def test_a_dead_connection_is_given_up_at_the_deadline(ask: Asker, redis: RedisServer) -> None:
    with FaultyProxy(redis.port) as proxy:
        ask.to(proxy.address)
        await ask([plain("PING")])
        proxy.dead = True
        began = time.monotonic()
        (answer,) = await ask([plain("PING")], within=400)
        assert isinstance(answer, StoreUnavailable)
        assert time.monotonic() - began > 0.3
        assert "has not answered" in str(answer)
        assert "after 400ms" in str(answer), "and not after the 5 s of its address"


async def test_a_half_open_connection_is_replaced_within_the_deadline(ask: Asker, redis: RedisServer) -> None:
    with FaultyProxy(redis.port) as proxy:
        ask.to(Address(mode="single", nodes=proxy.address.nodes, timeout=1_000))
        await ask([plain("PING")])
        proxy.dead = True
        threading.Timer(0.4, lambda: setattr(proxy, "dead", False)).start()
        assert await ask([plain("PING")], within=3_000) == [b"PONG"]
        assert proxy.connections == 2


async def test_a_server_that_comes_back_in_time_is_waited_for(ask: Asker, new_redis: NewRedis) -> None:
    server = new_redis()
    ask.to(server.url)
    await ask([plain("PING")])
    server.kill()
    asyncio.get_running_loop().call_later(0.5, server.launch)
    assert await ask([push("list", 1)]) == [1]


async def test_a_call_that_depends_on_another_is_not_sent_to_a_restarted_server(
    ask: Asker, new_redis: NewRedis
) -> None:
    server, run = new_redis(), ServerRun()
    ask.to(server.url)
    write = push("k", 1, repeatable=False, run=run)
    assert await ask([plain("PING")._replace(run=run)]) == [b"PONG"]
    assert await ask([write]) == [1]
    server.kill()
    server.launch()
    assert await ask([plain("PING")]) == [b"PONG"]
    (refused,) = await ask([write])
    assert isinstance(refused, ServerRestarted)
    assert await ask([plain("PING")._replace(run=run)]) == [b"PONG"]
    with server.client() as client:
        before = client.llen("k")
    assert await ask([write]) == [before + 1]


async def test_an_unreachable_server_is_reported_with_the_way_out(ask: Asker, new_redis: NewRedis) -> None:
    server = new_redis()
    server.stop()
    (answer,) = await ask.to(server.url + "?timeout=300ms")([plain("PING")])
    assert isinstance(answer, StoreUnavailable)
    assert f"redis://127.0.0.1:{server.port} does not answer (connection refused): is it running?" in str(
        answer
    )
    assert "gave up after 300ms" in str(answer)


async def test_an_unknown_host_is_reported(ask: Asker) -> None:
    (answer,) = await ask.to("redis://no-such-host.invalid?timeout=300ms")([plain("PING")])
    assert isinstance(answer, StoreUnavailable)
    assert "no-such-host.invalid" in str(answer)


async def test_a_replica_takes_no_writes_and_says_so(ask: Asker, new_redis: NewRedis) -> None:
    master = new_redis()
    replica = new_redis(f"replicaof 127.0.0.1 {master.port}")
    replica.wait_synced()
    # pauses between tries grow with the time, so the last one is not just before the end
    (answer,) = await ask.to(replica.url + "?timeout=2s")([push("list", 1)])
    assert isinstance(answer, StoreUnavailable)
    assert not isinstance(answer, ReplyLost)
    assert "it is a replica and takes no writes" in str(answer)


def test_a_call_that_was_refused_is_not_sent_again_without_time_for_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else its caller would learn that it may have been executed, which it was not."""
    now = [100.0]
    monkeypatch.setattr(call_batches, "time", SimpleNamespace(monotonic=lambda: now[0]))
    address = Address.from_url("redis://127.0.0.1?timeout=300ms")
    batch = RequestBatch([push("list", 1)], FixedTopology(address, Node("127.0.0.1", 6379)), address, None)
    (request,) = batch.requests()
    request.on_replies([ErrorReply("LOADING")])
    assert batch.pause() > 0
    now[0] += 0.299  # the pause took longer than it should
    assert batch.requests() == []
    assert batch.done
    (answer,) = batch.answers
    assert isinstance(answer, StoreUnavailable)
    assert not isinstance(answer, ReplyLost)
    assert "it is still loading its data (LOADING); gave up after 300ms" in str(answer)


async def test_a_full_server_refuses_and_nothing_is_written(ask: Asker, new_redis: NewRedis) -> None:
    server = new_redis()
    with server.patient_client() as client:
        client.config_set("maxmemory", "1")
        (answer,) = await ask.to(server.url)([push("list", 1)])
        assert isinstance(answer, StoreFull)
        assert client.llen("list") == 0


async def test_a_server_busy_with_a_script_is_waited_for(ask: Asker, new_redis: NewRedis) -> None:
    server = new_redis()
    ask.to(server.url)
    await ask([plain("PING")])
    with server.patient_client() as client, server.patient_client() as killer:
        client.config_set("busy-reply-threshold", 10)

        def hog() -> None:
            with pytest.raises(Exception, match="killed"):
                client.eval("while true do end", 0)

        thread = threading.Thread(target=hog)
        thread.start()
        threading.Timer(0.4, killer.script_kill).start()
        assert await ask([push("list", 1)]) == [1]
        await asyncio.to_thread(thread.join)


async def test_a_key_of_another_kind_is_said(ask: Asker, redis: RedisServer) -> None:
    with redis.patient_client() as client:
        client.set("text", "x")
        (answer,) = await ask.to(redis.url)([push("text", 1)])
        client.delete("text")
    assert isinstance(answer, StoreCorrupt)


async def test_a_user_without_permissions_gets_the_missing_ones(ask: Asker, new_redis: NewRedis) -> None:
    server = new_redis()
    with server.patient_client() as client:
        client.execute_command("ACL", "SETUSER", "small", "on", ">word", "+ping", "~*")
    ask.to(f"redis://small:word@127.0.0.1:{server.port}")
    fine, denied = await ask([plain("PING"), push("list", 1)])
    assert fine == b"PONG"
    assert isinstance(denied, StoreError)
    assert "ACL" in str(denied)


@pytest.mark.parametrize(
    ("user", "says"),
    [("", "requires a password"), (":wrong@", "does not accept this user name and password")],
)
async def test_a_wrong_password_is_said_at_once(
    ask: Asker, new_redis: NewRedis, user: str, says: str
) -> None:
    server = new_redis(password="s3cret")
    (answer,) = await ask.to(f"redis://{user}127.0.0.1:{server.port}")([plain("PING")])
    assert isinstance(answer, StoreError)
    assert not isinstance(answer, StoreUnavailable)
    assert says in str(answer)
    assert "s3cret" not in str(answer)


async def test_a_password_and_a_database_are_used(ask: Asker, new_redis: NewRedis) -> None:
    server = new_redis(password="s3cret")
    ask.to(f"{server.url}/3")
    await ask([push("list", 1)])
    with server.patient_client() as client:
        assert client.llen("list") == 0
        client.select(3)
        assert client.llen("list") == 1


async def test_a_database_that_is_not_there_is_said(ask: Asker, redis: RedisServer) -> None:
    (answer,) = await ask.to(f"{redis.url}/999")([plain("PING")])
    assert isinstance(answer, StoreError)
    assert "no such database" in str(answer)


async def test_a_unix_socket_is_a_way_too(ask: Asker, new_redis: NewRedis) -> None:
    server = new_redis(unixsocket=True, password="s3cret")
    ask.to(server.unix_url + "?db=1")
    assert await ask([push("list", 1), plain("PING")]) == [1, b"PONG"]


async def test_a_unix_socket_that_is_not_there_is_said(ask: Asker) -> None:
    (answer,) = await ask.to("unix:///nowhere/redis.sock?timeout=200ms")([plain("PING")])
    assert "there is no such socket" in str(answer)


async def test_tls_with_a_certificate_of_ours(ask: Asker, new_tls_redis: NewRedis) -> None:
    server = new_tls_redis(client_certificates=True, password="s3cret")
    tls = server.tls
    assert tls is not None
    query = f"ssl_ca_certs={tls.ca}&ssl_certfile={tls.client}&ssl_keyfile={tls.client_key}"
    ask.to(f"{server.url}?{query}")
    assert await ask([push("list", n) for n in range(100)]) == list(range(1, 101))
    large = "x" * 5_000_000  # more than the buffers of a socket and a record of TLS hold
    assert await ask([Call(ECHO, (b"k",), [large])]) == [[b"k", large.encode()]]
    assert await ask([plain("PING")]) == [b"PONG"]


async def test_an_untrusted_certificate_is_said(ask: Asker, new_tls_redis: NewRedis) -> None:
    server = new_tls_redis()
    (answer,) = await ask.to(server.url)([plain("PING")])
    assert isinstance(answer, StoreError)
    assert "TLS failed" in str(answer)
    assert "ssl_ca_certs" in str(answer)
    ask.close()
    assert await ask.to(server.url + "?ssl_cert_reqs=none")([plain("PING")]) == [b"PONG"]


async def test_tls_to_a_port_without_it_is_said(ask: Asker, redis: RedisServer) -> None:
    (answer,) = await ask.to(f"rediss://127.0.0.1:{redis.port}?timeout=300ms")([plain("PING")])
    assert "if it has no TLS, use redis://" in str(answer)


async def test_no_tls_to_a_port_that_wants_it_is_said(ask: Asker, new_tls_redis: NewRedis) -> None:
    server = new_tls_redis()
    (answer,) = await ask.to(f"redis://127.0.0.1:{server.port}?timeout=300ms")([plain("PING")])
    assert "use rediss://" in str(answer)


async def test_a_cluster_behind_redis_gets_the_right_url(ask: Asker, cluster: Cluster) -> None:
    port = cluster.masters()[0].port
    (answer,) = await ask.to(f"redis://127.0.0.1:{port}")([plain("PING")])
    assert isinstance(answer, StoreError)
    assert f"use redis+cluster://127.0.0.1:{port}" in str(answer)


async def test_a_server_says_who_it_is_on_each_connection(ask: Asker, redis: RedisServer) -> None:
    met: list[Server] = []
    await ask.to(redis.url, on_connect=met.append)([plain("PING")])
    assert [(server.node.port, server.mode) for server in met] == [(redis.port, "standalone")]
    assert int(met[0].version.split(".")[0]) >= 6


async def test_no_room_for_another_client_is_waited_for(ask: Asker, new_redis: NewRedis) -> None:
    server = new_redis()
    with server.patient_client() as client:
        client.config_set("maxclients", 1)
        threading.Timer(0.3, lambda: client.config_set("maxclients", 100)).start()
        assert await ask.to(server.url)([plain("PING")]) == [b"PONG"]


async def test_many_callers_share_one_connection(redis: RedisServer) -> None:
    met: list[Server] = []
    runner = AsyncRunner(Address.from_url(redis.url), on_connect=met.append)
    answers = await asyncio.gather(*(runner.run([Call(ECHO, (b"k",), [n])]) for n in range(500)))
    assert [answer for (answer,) in answers] == [[b"k", b"%d" % n] for n in range(500)]
    assert len(met) == 1
    runner.close()


async def test_a_caller_that_gives_up_does_not_disturb_the_others(redis: RedisServer) -> None:
    runner = AsyncRunner(Address.from_url(redis.url))
    tasks = [asyncio.create_task(runner.run([Call(ECHO, (b"k",), [n])])) for n in range(20)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    answers = await asyncio.gather(*tasks[1::2])
    assert [answer for (answer,) in answers] == [[b"k", b"%d" % n] for n in range(1, 20, 2)]
    runner.close()


def test_several_loops_and_threads_use_one_runner(redis: RedisServer) -> None:
    runner = AsyncRunner(Address.from_url(redis.url))
    found: list[int] = []

    async def main(n: int) -> None:
        for i in range(50):
            (answer,) = await runner.run([Call(ECHO, (b"k",), [n * 100 + i])])
            found.append(int(answer[1]))

    threads = [
        threading.Thread(target=(uvloop.run if n % 2 else asyncio.run), args=(main(n),)) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [n * 100 + i for n in range(4) for i in range(50)]
    asyncio.run(main(9))  # a loop after another, and nothing is closed between
    runner.close()


def test_more_threads_than_connections_take_turns(redis: RedisServer) -> None:
    runner = SyncRunner(Address.from_url(redis.url))
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda n=n: found.extend(runner.run([Call(ECHO, (b"k",), [n])])))
        for n in range(100)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 100
    runner.close()


def test_a_thread_without_a_connection_is_told_at_its_deadline(redis: RedisServer) -> None:
    runner = SyncRunner(Address.from_url(redis.url))
    for _ in range(64):
        runner._pool.enter(0)
    began = time.monotonic()
    (answer,) = runner.run([plain("PING")], within=1_000)
    assert isinstance(answer, StoreUnavailable)
    assert "all 64 connections of this store are in use" in str(answer)
    assert time.monotonic() - began > 0.4
    runner._pool.leave()
    assert runner.run([plain("PING")]) == [b"PONG"]
    runner.close()


def test_a_fork_has_connections_of_its_own(redis: RedisServer) -> None:
    address = Address.from_url(redis.url)
    sync, other = SyncRunner(address), AsyncRunner(address)

    async def ask_both(n: int) -> bool:
        return sync.run([Call(ECHO, (b"k",), [n])]) == await other.run([Call(ECHO, (b"k",), [n])])

    async def parent() -> None:
        assert await ask_both(1)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                thread = threading.Thread(target=lambda: asyncio.run(in_child()))
                thread.start()
                thread.join()
                code = 0 if done else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert await ask_both(3)

    done: list[bool] = []

    async def in_child() -> None:
        if await ask_both(2):
            done.append(True)

    asyncio.run(parent())
    sync.close()
    other.close()


# ── listening ────────────────────────────────────────────────────────────────────────────────────


async def test_messages_arrive_on_every_channel(redis: RedisServer) -> None:
    runner = AsyncRunner(Address.from_url(redis.url))
    heard: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
    await runner.listen(b"a", lambda message: heard.put_nowait(("a", message)), lambda: None)
    await runner.listen(b"b", lambda message: heard.put_nowait(("b", message)), lambda: None)
    await runner.run([plain("PUBLISH", "a", "1"), plain("PUBLISH", "b", "2")])
    assert [await heard.get(), await heard.get()] == [("a", b"1"), ("b", b"2")]
    await runner.unlisten(b"a")
    async with asyncio.timeout(60):  # `unlisten` does not wait for the server
        while await runner.run([plain("PUBSUB", "NUMSUB", "a")]) != [[b"a", 0]]:
            await asyncio.sleep(0.005)
    assert await runner.run([plain("PUBLISH", "a", "3"), plain("PUBLISH", "b", "4")]) == [0, 1]
    assert await heard.get() == ("b", b"4")
    runner.close()


async def test_a_listener_comes_back_and_says_that_it_was_away(redis: RedisServer) -> None:
    with FaultyProxy(redis.port) as proxy:
        runner = AsyncRunner(proxy.address)
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        await runner.listen(b"back", heard.put_nowait, lambda: heard.put_nowait(b"LOST"))
        proxy.cut()
        assert await heard.get() == b"LOST"
        assert await runner.run([plain("PUBLISH", "back", "1")]) == [1]
        assert await heard.get() == b"1"
        runner.close()


async def test_a_listener_on_a_dead_connection_reconnects(redis: RedisServer) -> None:
    with FaultyProxy(redis.port) as proxy:
        runner = AsyncRunner(Address(mode="single", nodes=proxy.address.nodes, timeout=300))
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        await runner.listen(b"dead", heard.put_nowait, lambda: heard.put_nowait(b"LOST"))
        proxy.dead = True
        await asyncio.sleep(0.2)
        proxy.dead = False
        connections = proxy.connections
        proxy.dead = True
        asyncio.get_running_loop().call_later(1.0, setattr, proxy, "dead", False)
        assert await heard.get() == b"LOST"
        assert proxy.connections > connections
        runner.close()


async def test_a_healthy_silent_listener_is_left_alone(redis: RedisServer) -> None:
    with FaultyProxy(redis.port) as proxy:
        runner = AsyncRunner(Address(mode="single", nodes=proxy.address.nodes, timeout=1_000))
        await runner.listen(b"quiet", lambda _: None, lambda: None)
        await asyncio.sleep(3)
        assert proxy.connections == 1
        runner.close()


async def test_listening_to_nobody_is_said(new_redis: NewRedis) -> None:
    server = new_redis()
    server.stop()
    runner = AsyncRunner(Address.from_url(server.url + "?timeout=300ms"))
    with pytest.raises(StoreUnavailable, match=r"cannot listen.*connection refused"):
        await runner.listen(b"a", lambda _: None, lambda: None)
    runner.close()


def test_a_thread_listens(redis: RedisServer) -> None:
    runner = SyncRunner(Address.from_url(redis.url))
    with runner.listener(b"thread") as listener:
        assert listener.receive(0.01) is None
        runner.run([plain("PUBLISH", "thread", "1"), plain("PUBLISH", "thread", "2")])
        assert listener.receive(5) == b"1"
        assert listener.receive(5) == b"2"
        assert listener.receive(0) is None
    runner.close()


def test_a_listening_connection_is_used_again(redis: RedisServer) -> None:
    with FaultyProxy(redis.port) as proxy:
        runner = SyncRunner(proxy.address)
        for channel in (b"first", b"second", b"third"):
            with runner.listener(channel) as listener:
                runner.run([plain("PUBLISH", "first", "old"), plain("PUBLISH", channel.decode(), "1")])
                assert listener.receive(5) == (b"old" if channel == b"first" else b"1")
        assert proxy.connections == 2
        proxy.cut()
        with runner.listener(b"fourth") as listener:
            runner.run([plain("PUBLISH", "fourth", "1")])
            assert listener.receive(5) == b"1"
        runner.close()


def test_a_thread_on_a_dead_connection_is_notified(redis: RedisServer) -> None:
    with FaultyProxy(redis.port) as proxy:
        runner = SyncRunner(Address(mode="single", nodes=proxy.address.nodes, timeout=300))
        with runner.listener(b"thread") as listener:
            assert listener.receive(1) is None  # silent and alive
            proxy.dead = True
            with pytest.raises(StoreUnavailable, match="does not answer PING"):
                listener.receive(5)
        runner.close()


def test_a_listening_thread_is_notified_of_a_lost_connection(redis: RedisServer) -> None:
    with FaultyProxy(redis.port) as proxy:
        runner = SyncRunner(proxy.address)
        with runner.listener(b"thread") as listener:
            proxy.cut()
            with pytest.raises(StoreUnavailable, match=r"closed the connection|lost"):
                listener.receive(5)
        runner.close()


def test_a_reused_connection_gets_later_messages_and_none_of_before(redis: RedisServer) -> None:
    with FaultyProxy(redis.port) as proxy:
        runner = SyncRunner(proxy.address)
        with runner.listener(b"kept") as listener:
            listener.then = "keep"
        (line,) = runner._pool._idle[proxy.address.nodes[0], "messages"]
        runner.run([plain("PUBLISH", "kept", "old")])
        assert line._poll.poll(5_000), "the old message is here"
        with runner.listener(b"another") as listener:
            assert listener.channel == b"kept"
            runner.run([plain("PUBLISH", "another", "1"), plain("PUBLISH", "kept", "2")])
            assert listener.receive(5) == b"2"
            listener.then = "close"
        with runner.listener(b"another") as listener:
            assert listener.channel == b"another"
        assert proxy.connections == 3
        runner.close()


def test_a_line_that_died_while_it_was_kept_is_replaced(redis: RedisServer) -> None:
    with FaultyProxy(redis.port) as proxy:
        runner = SyncRunner(proxy.address)
        with runner.listener(b"kept") as listener:
            listener.then = "keep"
        proxy.cut()
        with runner.listener(b"another") as listener:
            runner.run([plain("PUBLISH", listener.channel.decode(), "1")])
            assert listener.receive(5) == b"1"
        runner.close()


class _Late(CredentialProvider):
    """Knows its password when the other side has hung up, and our loop has seen that."""

    def __init__(self, hung_up: asyncio.Event) -> None:
        self._hung_up = hung_up

    def get_credentials(self) -> tuple[str]:
        return ("secret",)

    async def get_credentials_async(self) -> tuple[str]:
        await self._hung_up.wait()
        for _ in range(10):  # turns of our loop: nobody is told of what came to a stream that is not read
            await asyncio.sleep(0)
        return ("secret",)


async def test_a_client_that_disconnects_before_the_handshake_is_not_waited_for() -> None:
    """As a proxy does whose server is away; it may be seen before the connection is ours."""
    hung_up = asyncio.Event()

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        await writer.wait_closed()
        hung_up.set()

    async with asyncio.timeout(60), await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        address = Address.from_url(f"redis://127.0.0.1:{port}")
        address = replace(address, options={"credential_provider": _Late(hung_up)})
        with pytest.raises(StoreUnavailable, match="it closed the connection"):
            await open_async_connection(address, address.nodes[0], "calls", 60.0)
