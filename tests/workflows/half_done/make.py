"""Leaves flows half done, in a file and in a namespace of Redis: `python -m tests.workflows.half_done.make`.

Run it with an older release in PYTHONPATH. What this folder has is of commit adc1d680, the last one that
numbered steps by their names alone.
"""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from redis import Redis

from penstock import App, Worker
from penstock.core.job import Ref, State
from penstock.stores.contract import RecordedStep, StepRecord, Store
from penstock.workflows import chain, chord
from tests.servers import redis_server
from tests.workflows.half_done.flows import HalfDone

HERE = Path(__file__).parent
NAMESPACE = "half-done"
FILE, KEYS = HERE / "file.sql", HERE / "redis.json"
#: How many jobs are held at their place.
_HELD = 10
#: Jobs that wait when they are left.
_SUSPENDED = (
    *("loop", "sleeps", "waits", "received", "timed", "unfit", "tries", "unreadable", "in_thread", "saga"),
    *("branches", "naps_in_branches", "gathers", "given", "versioned", "other_version", "late_version"),
)


class _LosesMembers:
    """A store that never answers when some gathers store the list of their jobs."""

    def __init__(self, store: Store, half: HalfDone) -> None:
        self._store, self._half = store, half

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def record_steps(self, records: Sequence[StepRecord]) -> list[RecordedStep]:
        for record in records:
            if record.name == "gather!!1" and record.lease.id.startswith("unrecorded"):
                await self._half.hold(record.lease.id)
        return await self._store.record_steps(records)


async def enqueue(app: App, half: HalfDone) -> None:
    for name in ("steps", "tries", "unreadable", "loop", "cells", "sleeps", "timed", "unfit", "branches"):
        await half.tasks[name].using(id=name).aenqueue()
    for name in ("naps_in_branches", "saga", "undoes", "ends_early", "in_thread"):
        await half.tasks[name].using(id=name).aenqueue()
    for name in ("versioned", "other_version", "late_version"):
        await half.tasks[name].using(id=name).aenqueue()
    for id in ("waits", "received"):
        await half.tasks["waits"].using(id=id).aenqueue(id)
    for id, prefix in {"gathers": "", "given": "g", "unrecorded": "", "unrecorded-given": "u"}.items():
        await (
            half.tasks["gathers"].using(id=id).aenqueue([f"{prefix}{n}" for n in range(3)] if prefix else [])
        )
    await half.tasks["gathers"].using(id="unrecorded-at-once").aenqueue([], at_once=True)
    await chain(half.tasks["sleeps"].job(), half.tasks["shown"].partial()).aenqueue(id="chain")
    members = [half.tasks["adds"].job(), half.tasks["leaf"].job(3)]
    await chord(members, then=half.tasks["total"]).aenqueue(id="chord")


async def work(url: str, held: Path) -> None:
    """Serve until the end by a signal; write the jobs that are held into a file."""
    app = App(url, namespace=NAMESPACE)
    half = HalfDone(app, held=held)
    app.use_store(cast(Store, _LosesMembers(app.store, half)))
    await Worker(app, concurrency=50).run()


async def leave(url: str, folder: Path) -> None:
    """Run the flows until all are half done, and kill their worker."""
    app = App(url, namespace=NAMESPACE)
    await enqueue(app, HalfDone(app))
    held = folder / "held"
    held.touch()
    worker = subprocess.Popen([sys.executable, "-m", "tests.workflows.half_done.make", url, str(held)])
    try:
        async with asyncio.timeout(18):
            while len(held.read_text().split()) < _HELD or not await _are_left(app.store):
                await asyncio.sleep(0.01)
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    await app.asignal("unfit", data="text")
    await app.asignal("packed", key="received", data=7)
    await app.aclose()


async def _are_left(store: Store) -> bool:
    found = await store.get([Ref("default", id) for id in (*_SUSPENDED, "ends_early", "undoes")])
    states = [None if job is None else job.state for job in found]
    if states != [State.SUSPENDED] * (len(_SUSPENDED) + 1) + [State.RETRYABLE]:
        return False
    return any(step.name == "failed!" for step in await store.steps(Ref("default", "ends_early")))


# ── what is left, as text ────────────────────────────────────────────────────────────────────────


def write_keys(client: Redis) -> str:
    """All keys of a server with their values: of Redis' own types, whose dumps depend on its version."""
    found: dict[str, Any] = {}
    for key in sorted(client.scan_iter(count=1_000)):
        kind, value = client.type(key).decode(), None
        if kind == "string":
            value = _text(client.get(key))
        elif kind == "hash":
            value = [[_text(field), _text(one)] for field, one in sorted(client.hgetall(key).items())]
        elif kind == "zset":
            value = [[_text(one), score] for one, score in client.zrange(key, 0, -1, withscores=True)]
        elif kind == "list":
            value = [_text(one) for one in client.lrange(key, 0, -1)]
        elif kind == "set":
            value = sorted(_text(one) for one in client.smembers(key))
        assert value is not None, f"{key} is of the type {kind}"
        if client.pttl(key) < 0:  # what has an expiry has passed away by now
            found[_text(key)] = [kind, value]
    return json.dumps(found, indent=0, sort_keys=True) + "\n"


def read_keys(client: Redis, text: str) -> None:
    """Store the keys that `write_keys` has written."""
    for key, (kind, value) in json.loads(text).items():
        name = _bytes(key)
        if kind == "string":
            client.set(name, _bytes(value))
        elif kind == "hash":
            client.hset(name, mapping={_bytes(field): _bytes(one) for field, one in value})
        elif kind == "zset":
            client.zadd(name, {_bytes(one): score for one, score in value})
        elif kind == "list":
            client.rpush(name, *[_bytes(one) for one in value])
        else:
            client.sadd(name, *[_bytes(one) for one in value])


def _text(value: bytes) -> str:
    """Bytes as text; those that are no plain text in base64, behind a mark."""
    if value.isascii() and value.decode().isprintable() and not value.startswith(b"~"):
        return value.decode()
    return "~" + base64.b64encode(value).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text[1:]) if text.startswith("~") else text.encode()


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "sqlite"
        folder.mkdir()
        asyncio.run(leave(f"sqlite:///{folder / 'jobs.db'}", folder))
        with sqlite3.connect(folder / "jobs.db") as cx:
            FILE.write_text("\n".join(cx.iterdump()) + "\n")
        folder = Path(place) / "redis"
        folder.mkdir()
        with redis_server() as server:
            asyncio.run(leave(server.url, folder))
            with server.patient_client() as client:
                KEYS.write_text(write_keys(client))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(work(sys.argv[1], Path(sys.argv[2])))
    else:
        main()
