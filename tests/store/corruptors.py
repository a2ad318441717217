"""Corruptors: write raw bytes over one stored field, as damage or a foreign program would.

test_corrupted_records.py tests every store that has a corruptor. `record` overwrites an essential field of a
job (one of `RECORD`); `detail` overwrites an optional one (one of `DETAILS`).
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec
import redis as driver
import redis.cluster

from penstock.core.job import NewJob, Ref
from tests import servers
from tests.store.facts import key_prefix
from tests.store.redis_corruptor import RedisCorruptor

__all__ = ["DETAILS", "RECORD", "VANDALS", "Corruptor"]

#: Not a value of any field of a job: neither a text, nor a number, nor a mapping of texts to texts.
WRONG = {"x": 1}
GARBAGE = b"\xc1\xff\x00garbage"

#: What can be done to a job's record: all of it, its end, or one field.
RECORD = ("all of it", "its end", *NewJob.__struct_fields__)
#: What a job can do without.
DETAILS = ("progress", "errors", "reason")


class Corruptor(Protocol):
    """Spoils what lies in one store, whose objects may be open meanwhile."""

    #: Those of `RECORD` that this store keeps as bytes, so that they can be spoiled.
    record_fields: tuple[str, ...]

    async def record(self, ref: Ref, field: str) -> None: ...
    async def detail(self, ref: Ref, field: str) -> None: ...
    async def worker(self, id: str) -> None: ...
    async def entry(self, ref: Ref) -> None: ...
    async def settings(self, queue: str) -> None: ...
    async def node(self, flow: Ref, index: int) -> None: ...


def spoiled(record: bytes, field: str) -> bytes:
    """A packed NewJob, with this field spoiled."""
    if field == "all of it":
        return GARBAGE
    if field == "its end":
        return record[:-3]
    values: list[Any] = msgspec.msgpack.decode(record)
    values[NewJob.__struct_fields__.index(field)] = WRONG
    return msgspec.msgpack.encode(values)


class SqliteCorruptor:
    """By SQL, on a connection of its own."""

    record_fields = RECORD

    def __init__(self, home: Path, namespace: str = "") -> None:
        self._path = home / "jobs.db"
        self._namespace = namespace

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        cx = sqlite3.connect(self._path, timeout=10)
        try:
            with cx:
                yield cx
        finally:
            cx.close()

    def _qid(self, cx: sqlite3.Connection, queue: str) -> int:
        sql = "SELECT qid FROM penstock_queue WHERE namespace = ? AND name = ?"
        return int(cx.execute(sql, (self._namespace, queue)).fetchone()[0])

    def _write(self, ref: Ref, column: str, value: object) -> None:
        with self._connection() as cx:
            sql = f"UPDATE penstock_job SET {column} = ? WHERE queue = ? AND id = ?"
            assert cx.execute(sql, (value, self._qid(cx, ref.queue), ref.id)).rowcount == 1

    async def record(self, ref: Ref, field: str) -> None:
        with self._connection() as cx:
            sql = "SELECT spec FROM penstock_job WHERE queue = ? AND id = ?"
            (record,) = cx.execute(sql, (self._qid(cx, ref.queue), ref.id)).fetchone()
        self._write(ref, "spec", spoiled(record, field))

    async def detail(self, ref: Ref, field: str) -> None:
        if field != "reason":
            self._write(ref, field, GARBAGE)
            return
        with self._connection() as cx:
            sql = "UPDATE penstock_job SET reason = CAST(? AS TEXT) WHERE queue = ? AND id = ?"
            assert cx.execute(sql, (GARBAGE, self._qid(cx, ref.queue), ref.id)).rowcount == 1

    async def members(self, ref: Ref) -> None:
        """The ids of a batch's members."""
        self._write(ref, "members", GARBAGE)

    async def worker(self, id: str) -> None:
        with self._connection() as cx:
            sql = "UPDATE penstock_worker SET info = ? WHERE namespace = ? AND id = ?"
            assert cx.execute(sql, (GARBAGE, self._namespace, id)).rowcount == 1

    async def node(self, flow: Ref, index: int) -> None:
        """The call of a waiting node."""
        with self._connection() as cx:
            of = "SELECT fid FROM penstock_flow WHERE queue = ? AND id = ?"
            sql = f"UPDATE penstock_flow_node SET job = ? WHERE node = ? AND flow = ({of})"
            assert cx.execute(sql, (GARBAGE, index, flow.queue, flow.id)).rowcount == 1

    async def entry(self, ref: Ref) -> None:
        with self._connection() as cx:
            sql = "UPDATE penstock_periodic SET spec = ? WHERE queue = ? AND name = ?"
            assert cx.execute(sql, (GARBAGE, self._qid(cx, ref.queue), ref.id)).rowcount == 1

    async def settings(self, queue: str) -> None:
        with self._connection() as cx:
            sql = "UPDATE penstock_queue SET limits = ? WHERE qid = ?"
            assert cx.execute(sql, (GARBAGE, self._qid(cx, queue))).rowcount == 1


def _cluster_client() -> Any:
    first = servers.SHARED_CLUSTER.get().first_masters[0]
    return driver.cluster.RedisCluster("127.0.0.1", first.port)


#: By the names of conftest.STORES; each is called with the test's home.
VANDALS: dict[str, Callable[[Path], Corruptor]] = {
    "redis": lambda home: RedisCorruptor(servers.SHARED_REDIS.get().client, key_prefix(home)),
    "redis-cluster": lambda home: RedisCorruptor(_cluster_client, key_prefix(home)),
    "sqlite": SqliteCorruptor,
}
