"""No store holds clear text of an app with a key: not in files, keys, values or logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from msgspec.structs import replace

from penstock import App, Batch, Cancel, Discard, RawJob, Unique, current_job
from penstock.core.job import Ref, State
from penstock.encryption import new_key
from penstock.stores.contract import HeartbeatRequest, Tick
from tests.servers import RedisServer
from tests.worker.conftest import in_a_burst, quick

T = TypeVar("T")

#: Stands in everything that a job carries, and nowhere else.
CANARY = "canary7f3a"


class Traces:
    """All that a store has written, as bytes."""

    def __init__(self, url: str, read: Callable[[], Iterator[tuple[str, bytes]]]) -> None:
        self.url = url
        self._read = read

    def holding(self, *words: str) -> list[str]:
        """Where any of these words stands."""
        return [
            f"{word} in {where}"
            for where, data in self._read()
            for word in words
            if word.encode() in data or word.encode().hex().encode() in data
        ]

    @property
    def size(self) -> int:
        return sum(len(data) for _, data in self._read())


@pytest.fixture(params=["memory", "redis", "sqlite"])
def traces(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Traces]:
    if request.param == "memory":
        url = f"memory://{uuid4().hex}"
        app = App(url)  # without a key: it sees what is there
        yield Traces(url, lambda: _in_memory(app))
        app.close()
    elif request.param == "sqlite":
        yield Traces(f"sqlite:///{tmp_path}/jobs.db", lambda: _in_files(tmp_path))
    else:
        # every command that changes something is in this file as it came, what has been removed too
        aof = ["appendonly yes", "appendfsync always", "aof-use-rdb-preamble no", "rdbcompression no"]
        server: RedisServer = request.getfixturevalue("new_redis")(*aof)
        yield Traces(server.url, lambda: _on_redis(server))


def _in_memory(app: App) -> Iterator[tuple[str, bytes]]:
    page = _answer(app.store.list_jobs(limit=1000))
    for job in page.jobs:
        yield job.id, repr(job).encode()
    for entry in _answer(app.store.entries()).entries:
        yield entry.spec.name, repr(entry).encode()


def _answer(verb: Coroutine[Any, Any, T]) -> T:
    """Memory answers without waiting for anything."""
    try:
        verb.send(None)
    except StopIteration as end:
        answer: T = end.value
        return answer
    raise AssertionError("it waits")


def _in_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.name, path.read_bytes()


def _on_redis(server: RedisServer) -> Iterator[tuple[str, bytes]]:
    yield from _in_files(server.folder)
    client = server.client(decode_responses=False)
    try:
        for key in client.scan_iter():
            assert isinstance(key, bytes)
            yield repr(key), key + b" " + repr(_value(client, key)).encode()
    finally:
        client.close()


def _value(client: Any, key: bytes) -> Any:
    match client.type(key):
        case b"string":
            return client.get(key)
        case b"hash":
            return client.hgetall(key)
        case b"list":
            return client.lrange(key, 0, -1)
        case b"set":
            return client.smembers(key)
        case b"zset":
            return client.zrange(key, 0, -1)
    return None


def an_app(url: str, **options: Any) -> App:
    """Its tasks put what they are called with into each place of a job that has room for it."""
    app = App(url, retention="1h", **options)

    @app.task(name="echo")
    async def echo(text: str) -> str:
        return text

    @app.task(name="fail", max_attempts=2)
    def fail(text: str) -> None:
        raise ValueError(text)

    @app.task(name="cancel")
    def cancel(text: str) -> None:
        raise Cancel(text)

    @app.task(name="discard")
    def discard(text: str) -> None:
        raise Discard(text)

    @app.task(name="collect", batch=Batch(max_size=3))
    def collect(docs: list[dict[str, str]]) -> str:
        return "".join(doc["x"] for doc in docs) + current_job().id

    @app.task(name="once", unique=True)
    def once(text: str) -> str:
        return text

    @app.task(name="latest", unique=Unique(key="latest", on_conflict="replace"))
    def latest(text: str, n: int) -> str:
        return f"{n} {text}"

    @app.handler(queue="raw")
    async def handle(job: RawJob) -> str:
        return job.payload.decode()

    app.periodic(every="1d", task=echo, name="recurs", kwargs={"text": CANARY})
    return app


async def everything(app: App) -> None:
    """A job of each kind, from its enqueue to its end; some stay."""
    tasks, store = app.tasks, app.store
    echo = tasks["echo"]
    handles = [
        await echo.aenqueue(CANARY),
        *[await tasks[name].aenqueue(CANARY) for name in ("fail", "cancel", "discard", "once")],
        *[await tasks["collect"].aenqueue({"x": CANARY}) for _ in range(3)],
        *[await tasks["latest"].aenqueue(CANARY, n) for n in range(2)],
        await app.aenqueue_raw("raw", CANARY.encode()),
    ]
    await echo.using(delay="1h").aenqueue(CANARY)
    await app.aenqueue_many([echo.using(queue="kept").job(CANARY) for _ in range(3)])
    async with app.take("kept") as job:
        job.progress(1, 2, CANARY)
        await job.extend()
        await store.extend([HeartbeatRequest(job.job.lease, 15_000, checkpoint=CANARY.encode())])
        (seen,) = await store.get([job.job.ref])
        assert seen is not None
        assert seen.progress is not None
        assert (seen.progress.note, seen.checkpoint) == (CANARY, CANARY.encode())
        job.returns(CANARY)
    await _cancel_for_a_reason(app)
    (entry,) = await store.put_entries(list(app.periodic_entries.values()))
    new = replace(entry.spec.job, id="recurs@1")
    moved = Tick(entry.ref, entry.revision, entry.watermark, entry.watermark + 1, 0, jobs=(new,))
    assert (await store.tick([moved]))[0].enqueued == ("recurs@1",)
    await in_a_burst(app, config=quick())
    one, fail, cancel, discard, _once, *batch, _first, second, raw = handles
    assert await one.aresult() == CANARY
    assert await second.aresult() == f"1 {CANARY}"
    assert await raw.aresult() == CANARY
    failed, cancelled, discarded = await store.get([fail.ref, cancel.ref, discard.ref])
    assert failed is not None
    assert failed.errors[0].message == CANARY
    assert CANARY in failed.errors[0].traceback
    assert cancelled is not None
    assert cancelled.reason == CANARY
    assert discarded is not None
    assert CANARY in (discarded.reason or "")
    (member,) = await store.get([batch[0].ref])
    assert member is not None
    assert member.state is State.COMPLETED


async def _cancel_for_a_reason(app: App) -> None:
    """Jobs that wait, a member of a batch, and a batch; from an event loop and from a thread."""
    store, idle = app.store, app.tasks["echo"].using(queue="idle")
    refs = [(await idle.aenqueue(n)).ref for n in ("one", "two", "three", "four")]
    refs.append((await app.tasks["collect"].using(queue="idle").aenqueue({"x": ""})).ref)
    assert await store.cancel(refs[:1], reason=CANARY) == [State.CANCELLED]
    assert await asyncio.to_thread(store.sync.cancel, refs[1:3], reason=CANARY) == [State.CANCELLED] * 2
    gone = Ref("idle", "gone")
    answers = await store.cancel([*refs[3:], gone, refs[3]], reason=CANARY)
    assert answers == [State.CANCELLED, State.CANCELLED, None, State.CANCELLED]
    assert [job and job.reason for job in await store.get(refs)] == [CANARY] * 5


async def test_the_store_holds_no_clear_text(traces: Traces) -> None:
    app = an_app(traces.url, key=new_key())
    digest = app.tasks["once"].job(CANARY).new().unique
    assert digest is not None
    try:
        await everything(app)
        assert traces.size > 5_000, "there is something to look into"
        assert traces.holding(CANARY, digest.key) == []
    finally:
        app.close()
    assert traces.holding(CANARY, digest.key) == []


async def test_without_a_key_it_would(traces: Traces) -> None:
    """That the search finds what is there."""
    app = an_app(traces.url)
    digest = app.tasks["once"].job(CANARY).new().unique
    assert digest is not None
    try:
        await everything(app)
        found = traces.holding(CANARY, digest.key)
    finally:
        app.close()
    assert found
    assert any(digest.key in one for one in found)
