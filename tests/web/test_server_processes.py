"""`penstock serve --processes N`: one server in several processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.web.programs import SOON, Program, run_to_end, running, until_true
from tests.web.wire import Client

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="reads the children of a process from /proc"),
]


async def clients_of_all(program: Program) -> list[Client]:
    """So many connections that each process has some."""
    clients = [program.client() for _ in range(24)]
    for client in clients:
        assert (await client.get("/api/ns/none")).status == 404
    return clients


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_all_processes_share_jobs_waits_and_limits(home: Path) -> None:
    token = "a-token-for-all-of-them"
    async with running(home, "--processes", "3", "--token", f"ns:{token}") as program:
        assert len(program.children) == 3
        made = await program.admin().request(
            "PUT", f"/token/ns/{token}/limit", b'{"read":100,"write":25,"interval":600}'
        )
        assert made.status == 200
        clients = [program.client(token=token) for _ in range(24)]
        waiting = [asyncio.create_task(one.get("/api/ns/q?timeout=30")) for one in clients[:20]]
        bodies = {b"%d" % n for n in range(20)}
        for body in bodies:
            assert (await clients[20].put("/api/ns/q", body)).status == 201
        assert {(await one).data for one in waiting} == bodies
        statuses = [(await client.put("/api/ns/q", b"x")).status for client in clients]
        assert statuses.count(201) == 5


async def test_a_process_that_died_is_started_again(home: Path) -> None:
    async with running(home, "--no-tokens", "--processes", "2") as program:
        before = program.children
        await program.admin().request("POST", "/accesslog?status=enable")
        os.kill(before[0], signal.SIGKILL)
        # connections that go to its sockets wait until the new process accepts them
        for client in await clients_of_all(program):
            assert (await client.put("/api/ns/q", b"x")).status == 201
        await until_true(lambda: len(program.children) == 2 and program.children != before)
        assert (await program.client().get("/api/ns/q/size")).json["size"] == 24
        assert f"server process {before[0]} ended (signal 9)" in program.log.read_text()
        for _ in range(6):  # at each process that a new connection may reach
            assert (await program.admin().get("/accesslog")).json == {"status": "enabled"}


async def test_a_stop_answers_waiting_requests_of_all_processes(home: Path) -> None:
    async with running(home, "--no-tokens", "--processes", "2") as program:
        clients = await clients_of_all(program)
        waiting = [asyncio.create_task(one.get("/api/ns/q?timeout=600")) for one in clients]
        publishing = [
            asyncio.create_task(one.put("/api/other/q", b"x")) for one in await clients_of_all(program)
        ]
        assert {(await one).status for one in publishing} == {201}
        program.process.terminate()
        async with asyncio.timeout(SOON):
            answers = [await one for one in waiting]
        assert {one.body for one in answers} == {b'{"msg":"no job available"}'}
        assert {one.headers["Connection"] for one in answers} == {"close"}
        assert await program.ended() == 0


async def test_the_interrupt_of_a_terminal_stops_them_once(home: Path) -> None:
    """The signal goes to the supervisor, which passes it on: a second one would end them at once."""
    async with running(home, "--no-tokens", "--processes", "2") as program:
        waiting = asyncio.create_task(program.client().get("/api/ns/q?timeout=600"))
        await clients_of_all(program)
        program.process.send_signal(signal.SIGINT)
        assert (await waiting).status == 404
        assert await program.ended() == 0


async def test_processes_end_with_their_supervisor(home: Path) -> None:
    async with running(home, "--no-tokens", "--processes", "2") as program:
        children = program.children
        program.process.kill()
        await until_true(lambda: not any(is_alive(pid) for pid in children))


async def test_a_reload_reaches_all_processes(home: Path) -> None:
    async with running(home, "--no-tokens", "--processes", "2") as program:
        waiting = asyncio.create_task(program.client().get("/api/ns/q?timeout=600"))
        await clients_of_all(program)
        reloaded = await program.admin().request("POST", "/reload")
        assert reloaded.json == {"notes": [], "status": "reloaded"}
        assert program.log.read_text().count('"message":"reloaded"') == 2
        program.process.send_signal(signal.SIGHUP)
        await until_true(lambda: program.log.read_text().count('"message":"reloaded"') == 4)
        switched = await program.admin().request("POST", "/accesslog?status=enable")
        assert switched.json == {"status": "enabled"}
        for _ in range(6):  # at each process that a new connection may reach
            assert (await program.admin().get("/accesslog")).json == {"status": "enabled"}
        assert not waiting.done()
        await program.client().put("/api/ns/q", b"x")
        assert (await waiting).data == b"x"


async def test_a_program_that_rotates_logs_ends_no_process(home: Path) -> None:
    """It sends SIGUSR1, as to lmstfy, which opens its log files again then."""
    async with running(home, "--no-tokens", "--processes", "2") as program:
        before = program.children
        for pid in (program.pid, *before):
            os.kill(pid, signal.SIGUSR1)
        for client in await clients_of_all(program):
            assert (await client.put("/api/ns/q", b"x")).status == 201
        assert program.children == before


async def test_metrics_are_those_of_all_processes(home: Path) -> None:
    async with running(home, "--no-tokens", "--processes", "3") as program:
        for client in await clients_of_all(program):
            assert (await client.put("/api/ns/q", b"x")).status == 201
        published = 'infra_lmstfy_redis_publish_queue_jobs{pool="default",namespace="ns",queue="q"} 24'
        for _ in range(6):  # at each process that a new connection may reach
            shown = (await program.admin().get("/metrics")).body.decode().splitlines()
            assert published in shown
            assert "penstock_http_connections 24" in shown
            assert len([line for line in shown if line.startswith("process_cpu_seconds_total ")]) == 1


async def test_a_port_in_use_is_refused(home: Path) -> None:
    async with running(home, "--no-tokens", "--processes", "2") as program:
        port = str(program.port)
        code, said = await run_to_end(
            home, "--no-tokens", "--port", port, "--admin-port", "0", "--processes", "2"
        )
        assert code == 1
        assert f"127.0.0.1:{port}" in said


async def test_a_store_in_memory_has_one_process(home: Path) -> None:
    code, said = await run_to_end(home, "--no-tokens", "--url", "memory://", "--processes", "2")
    assert code == 2
    assert "needs a store that processes share" in said


async def test_an_error_at_the_start_ends_the_supervisor(home: Path) -> None:
    (home / "jobs.db").write_bytes(b"no database" * 100)
    url = f"sqlite:///{home}/jobs.db"
    code, said = await run_to_end(
        home,
        "--no-tokens",
        "--url",
        url,
        "--processes",
        "2",
        "--port",
        "0",
        "--admin-port",
        "0",
        "--account",
        "x",
    )
    assert code == 2
    assert said.count("--account: write two parts") == 1
