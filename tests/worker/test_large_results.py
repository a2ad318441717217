"""Results are bounded: one that is too large fails its attempt, in every executor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.app.app import App
from penstock.core.job import State
from penstock.errors import JobDead
from tests import servers
from tests.sqlite_files import new_url
from tests.worker.conftest import ended, in_a_burst
from tests.worker.task_bodies import act, fill, made

MB = 1_000_000


@pytest.fixture(params=["memory", "sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store of each kind: what a store holds may have limits of its own."""
    name = f"large-{uuid4().hex}"
    match request.param:
        case "memory":
            yield f"memory://{name}"
        case "sqlite":
            yield new_url(tmp_path)
        case _:
            server = servers.SHARED_REDIS.get()
            yield f"{server.url}?prefix={name}"
            servers.remove_keys([server], having=name)


async def test_a_result_of_the_limit_comes_back_and_one_byte_more_is_an_error(app: App, run_in: str) -> None:
    task = made(app, run_in, fill, max_attempts=1)
    fits, too_large = await task.aenqueue(MB), await task.aenqueue(MB + 1)
    await in_a_burst(app)
    assert len(await fits.aresult(60)) == MB - 2
    job = await ended(too_large)
    assert (job.state, job.result, [error.kind for error in job.errors]) == (
        State.DEAD,
        None,
        ["ResultError"],
    )
    with pytest.raises(
        JobDead,
        match=r"fill: the result takes 1,000,001 bytes; the limit is 1,000,000\. .* App\(max_result=\.\.\.\)",
    ):
        await too_large.aresult(10)


async def test_the_apps_own_limit_counts(url: str) -> None:
    app = App(url, max_payload="2MB", max_result=100)
    task = made(app, "thread", fill, max_attempts=1)
    fits, too_large = await task.aenqueue(100), await task.aenqueue(101)
    await in_a_burst(app)
    found = await app.aresults([fits, too_large], timeout=10, return_errors=True)
    assert found[0] == "x" * 98
    assert "the limit is 100." in str(found[1])
    app.close()


async def test_a_larger_limit_lets_larger_results_through(url: str) -> None:
    app = App(url, max_result="4MB")
    task = made(app, "thread", fill, max_attempts=1)
    handles = [await task.aenqueue(4 * MB), await task.aenqueue(3 * MB)]
    await in_a_burst(app)
    assert [len(await handle.aresult(60)) for handle in handles] == [4 * MB - 2, 3 * MB - 2]
    ahead = [handle async for handle in app.as_completed(handles, timeout=10)]
    assert {len(handle.result()) for handle in ahead} == {4 * MB - 2, 3 * MB - 2}
    app.close()


async def test_a_result_that_nobody_keeps_is_not_measured(app: App, run_in: str) -> None:
    handle = await made(app, run_in, fill, retention=0).aenqueue(2 * MB)
    await in_a_burst(app)
    assert await handle.astatus() == "ended"


async def test_nor_is_one_that_cannot_be_encoded(app: App, run_in: str) -> None:
    handle = await made(app, run_in, act).using(retention=0).aenqueue("unencodable")
    await in_a_burst(app)
    assert await handle.astatus() == "ended"


async def test_a_callback_may_await(app: App) -> None:
    told: list[object] = []
    app.on_success(lambda job, result: told.append(result))
    handle = await made(app, "async", fill, retention=0).aenqueue(9)
    await in_a_burst(app)
    assert await handle.astatus() == "ended"
    assert told == ["x" * 7]
