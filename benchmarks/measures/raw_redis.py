"""The limit of Redis: bare redis-py, on a list and a hash of its own, with the bytes that the store keeps.

Nothing is decided, checked, decoded or handed to anybody here, and no token is compared. So a store cannot
do with less than this per job, and how near it comes is what its work costs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from benchmarks.server import Server
from penstock.core.job import NewJob
from penstock.stores.contract import Store

__all__ = ["RawQueue", "stored_records"]

Item = TypeVar("Item")

_JOBS, _READY, _LEASES, _COUNTS = "raw:jobs", "raw:ready", "raw:leases", "raw:counts"

_PUT = """
local ids = {}
for i = 1, #ARGV, 2 do
  ids[#ids + 1] = ARGV[i]
end
redis.call('HSET', KEYS[1], unpack(ARGV))
redis.call('RPUSH', KEYS[2], unpack(ids))
return #ids
"""
_TAKE = """
local ids = redis.call('LPOP', KEYS[2], ARGV[1])
if not ids then return {} end
local records, ends = redis.call('HMGET', KEYS[1], unpack(ids)), {}
for _, id in ipairs(ids) do
  ends[#ends + 1] = ARGV[2]
  ends[#ends + 1] = id
end
redis.call('ZADD', KEYS[3], unpack(ends))
return {ids, records}
"""
_FINISH = """
redis.call('ZREM', KEYS[3], unpack(ARGV))
redis.call('HDEL', KEYS[1], unpack(ARGV))
redis.call('HINCRBY', KEYS[4], 'processed', #ARGV)
return #ARGV
"""


def stored_records(server: Server) -> list[tuple[bytes, bytes]]:
    """Ids and records of the queue `default`, as the store has written them."""
    from penstock.stores.redis.layout import RedisKeys

    with server.client() as client:
        found = client.hgetall(RedisKeys("penstock", "").queue("default") + b":jobs")
    return list(found.items())


class RawQueue:
    """A list of ids, a hash of records, and the leases."""

    def __init__(self, server: Server) -> None:
        self._client = server.client()
        self._client.delete(_JOBS, _READY, _LEASES, _COUNTS)

    def repeat(self, store: Store, jobs: Iterable[NewJob], seconds: float) -> float:
        """What the store sends for one job, sent by redis-py: the same script, the same arguments. Calls per
        second."""
        asked = [command for job in jobs for command in _asked(store, [job])]
        evalsha = self._client.evalsha
        started, n = time.perf_counter(), 0
        while (spent := time.perf_counter() - started) < seconds and n < len(asked):
            evalsha(*asked[n])
            n += 1
        return n / spent

    def repeat_many(self, store: Store, jobs: Sequence[NewJob], chunk: int) -> float:
        """The same for calls of many jobs, the scripts of each in one pipeline; jobs per second."""
        calls = [_asked(store, part) for part in _parts(jobs, chunk)]
        started = time.perf_counter()
        for call in calls:
            pipeline = self._client.pipeline(transaction=False)
            for command in call:
                pipeline.evalsha(*command)
            pipeline.execute()
        return len(jobs) / (time.perf_counter() - started)

    def push(self, jobs: Sequence[tuple[bytes, bytes]], seconds: float) -> float:
        """One plain RPUSH a job; calls per second."""
        push = self._client.rpush
        started, n = time.perf_counter(), 0
        while (spent := time.perf_counter() - started) < seconds:
            id, record = jobs[n % len(jobs)]
            push("raw:push", id + record)
            n += 1
        self._client.delete("raw:push")
        return n / spent

    def push_many(self, jobs: Sequence[tuple[bytes, bytes]], batch: int) -> float:
        """One RPUSH a job, a batch of them in one pipeline; jobs per second."""
        started = time.perf_counter()
        for part in _parts(jobs, batch):
            pipeline = self._client.pipeline(transaction=False)
            for id, record in part:
                pipeline.rpush("raw:push", id + record)
            pipeline.execute()
        rate = len(jobs) / (time.perf_counter() - started)
        self._client.delete("raw:push")
        return rate

    def put(self, jobs: Sequence[tuple[bytes, bytes]], seconds: float) -> float:
        """One script a job, which puts down record and id; calls per second."""
        script = self._client.script_load(_PUT)
        call = self._client.evalsha
        started, n = time.perf_counter(), 0
        while (spent := time.perf_counter() - started) < seconds:
            call(script, 2, _JOBS, _READY, *jobs[n % len(jobs)])
            n += 1
        self._client.delete(_JOBS, _READY)
        return n / spent

    def put_many(self, jobs: Sequence[tuple[bytes, bytes]], *, batch: int, chunk: int) -> float:
        """`batch` jobs a script, the scripts of `chunk` jobs in one pipeline; jobs per second."""
        script = self._client.script_load(_PUT)
        started = time.perf_counter()
        for part in _parts(jobs, chunk):
            pipeline = self._client.pipeline(transaction=False)
            for few in _parts(part, batch):
                pipeline.evalsha(script, 2, _JOBS, _READY, *[item for job in few for item in job])
            pipeline.execute()
        return len(jobs) / (time.perf_counter() - started)

    def drain(self, batch: int) -> float:
        """Take a batch, finish it, until nothing is left; jobs per second."""
        client, keys = self._client, (_JOBS, _READY, _LEASES, _COUNTS)
        take, finish = client.script_load(_TAKE), client.script_load(_FINISH)
        until, done = int(time.time() * 1000) + 15_000, 0
        started = time.perf_counter()
        while taken := client.evalsha(take, 4, *keys, batch, until):
            done += client.evalsha(finish, 4, *keys, *taken[0])
        return done / (time.perf_counter() - started)

    def close(self) -> None:
        self._client.close()


def _asked(store: Store, jobs: Sequence[NewJob]) -> list[tuple[Any, ...]]:
    """The scripts by which the store would enqueue these jobs in one call: what follows EVALSHA."""
    from penstock.stores.redis.store import RedisStore
    from penstock.stores.redis.verbs import producing

    assert isinstance(store, RedisStore)
    plan = producing.enqueue(store._context, jobs)
    calls = next(plan)
    plan.close()
    return [
        (call.script.sha, len(call.redis_keys), *call.redis_keys, *call.args) for call in calls if call.script
    ]


def _parts(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
