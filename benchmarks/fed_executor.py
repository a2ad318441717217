"""A `ProcessPoolExecutor` whose arguments come from a store: the least that a durable queue has to do.

One process reads the stored arguments in batches, gives them to the executor as they are, and deletes them
when their calls have ended. A call decodes its argument. There is no lease, no retry and no result.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from benchmarks import served_processes
from benchmarks.counters import Counters, leave_in
from benchmarks.server import Server

__all__ = ["fed_rate"]

#: Arguments per read, and the maximum number of calls in flight.
_BATCH, _IN_FLIGHT = 4, 16
_decode = msgspec.json.Decoder(list[Any]).decode


class _Source(Protocol):
    """Stored arguments by number."""

    def put(self, numbers: Sequence[int], payload: bytes) -> None: ...

    def read(self, numbers: Sequence[int]) -> list[bytes]: ...

    def delete(self, numbers: Sequence[int]) -> None: ...


class _RedisSource:
    def __init__(self, port: int) -> None:
        import redis

        self._redis = redis.Redis(port=port)

    def put(self, numbers: Sequence[int], payload: bytes) -> None:
        self._redis.hset("arguments", mapping=dict.fromkeys(map(str, numbers), payload))

    def read(self, numbers: Sequence[int]) -> list[bytes]:
        return self._redis.hmget("arguments", map(str, numbers))  # type: ignore[return-value]

    def delete(self, numbers: Sequence[int]) -> None:
        self._redis.hdel("arguments", *map(str, numbers))


class _SqliteSource:
    def __init__(self, file: Path) -> None:
        self._cx = sqlite3.connect(file, isolation_level=None)
        self._cx.execute("PRAGMA journal_mode=WAL")
        self._cx.execute("PRAGMA synchronous=FULL")
        self._cx.execute("CREATE TABLE arguments (number INTEGER PRIMARY KEY, payload BLOB)")

    def put(self, numbers: Sequence[int], payload: bytes) -> None:
        self._cx.executemany("INSERT INTO arguments VALUES (?, ?)", [(number, payload) for number in numbers])

    def read(self, numbers: Sequence[int]) -> list[bytes]:
        query = "SELECT payload FROM arguments WHERE number BETWEEN ? AND ?"
        return [payload for (payload,) in self._cx.execute(query, (numbers[0], numbers[-1]))]

    def delete(self, numbers: Sequence[int]) -> None:
        self._cx.execute("DELETE FROM arguments WHERE number BETWEEN ? AND ?", (numbers[0], numbers[-1]))


@contextlib.contextmanager
def _source(store: str, folder: Path) -> Iterator[_Source]:
    if store == "sqlite":
        yield _SqliteSource(folder / "arguments.db")
        return
    server = Server(folder)
    try:
        yield _RedisSource(server.port)
    finally:
        server.close()


def fed_rate(
    store: str,
    folder: Path,
    shm: Path,
    task: str,
    arguments: Sequence[tuple[Any, ...]],
    processes: int,
) -> float:
    """Calls per second of an executor that is fed from this store, for one of the served process tasks."""
    leave_in(shm)
    context = multiprocessing.get_context("fork")
    # the pool comes first: its processes must not inherit a connection
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as pool:
        list(pool.map(time.sleep, [0.5] * processes))
        with _source(store, folder) as source:
            batches = [range(at, min(at + _BATCH, len(arguments))) for at in range(0, len(arguments), _BATCH)]
            for batch in batches:
                source.put(batch, msgspec.json.encode(arguments[batch[0]]))
            running: list[tuple[range, list[concurrent.futures.Future[None]]]] = []
            for batch in batches:
                running.append((batch, [pool.submit(_call, task, one) for one in source.read(batch)]))
                if len(running) * _BATCH >= _IN_FLIGHT:
                    _finish(source, *running.pop(0))
            for one in running:
                _finish(source, *one)
    return Counters(shm).rate()


def _finish(source: _Source, batch: range, calls: list[concurrent.futures.Future[None]]) -> None:
    for call in calls:
        call.result()
    source.delete(batch)


def _call(task: str, payload: bytes) -> None:
    getattr(served_processes, task)(*_decode(payload))
