"""Corrupts stored fields on Redis and Redis Cluster, with the driver's client."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from penstock.core.job import Ref
from penstock.stores.redis.layout import RedisKeys, packed
from penstock.stores.redis.profiles import Profile

__all__ = ["EXTRA", "PROFILE", "RedisCorruptor"]

GARBAGE = b"\xc1\xff\x00garbage"
WRONG = {"x": 1}
#: The fields of a job that are kept in its profile, but for the last, and those that only some have.
PROFILE = Profile.__struct_fields__
EXTRA = (
    "delay",
    "run_at",
    "expires_in",
    "expires_at",
    "deadline",
    "unique",
    "headers",
    "partition",
    "tenant",
)
_LONG, _EXTRA, _INLINE = 8, 16, 32


class RedisCorruptor:
    """`connect` gives a client of the server or the cluster, and `prefix` what all keys begin with."""

    record_fields = ("all of it", "its end", *PROFILE, *EXTRA)

    def __init__(self, connect: Callable[[], Any], prefix: str, namespace: str = "") -> None:
        self._connect = connect
        self._keys = RedisKeys(prefix, namespace)

    @contextlib.contextmanager
    def client(self) -> Iterator[Any]:
        client = self._connect()
        try:
            yield client
        finally:
            client.close()

    def key(self, queue: str, what: str) -> bytes:
        return self._keys.queue(queue) + b":" + what.encode()

    def _overwrite(self, key: bytes, field: bytes, value: bytes) -> None:
        with self.client() as client:
            _write_over(client, key, field, value)

    async def node(self, flow: Ref, index: int) -> None:
        """The call of a waiting node."""
        with self.client() as client:
            _write_over(client, self.key(flow.queue, f"flow/{flow.id}"), b"j%d" % index, GARBAGE)

    async def record(self, ref: Ref, field: str) -> None:
        jobs, id = self.key(ref.queue, "jobs"), packed(ref.id)
        with self.client() as client:
            record = client.hget(jobs, id)
            if field == "all of it":
                record = GARBAGE
            elif field == "its end":
                record = record[:-3]
            elif field in PROFILE:
                record = self._other_profile(client, ref.queue, record, field)
            else:
                record = _other_extra(record, field)
            _write_over(client, jobs, id, record)

    def _other_profile(self, client: Any, queue: str, record: bytes, field: str) -> bytes:
        """The job gets a profile of its own, which is spoiled."""
        profiles, at = self.key(queue, "profiles"), _tail(record)
        text = client.hget(profiles, record[at : at + 4])
        (size,) = struct.unpack_from("<H", text, 8)
        values = msgspec.msgpack.decode(text[10 + size :])
        values[PROFILE.index(field)] = WRONG
        digest = b"bad" + bytes((PROFILE.index(field),))
        client.hset(profiles, digest, text[: 10 + size] + msgspec.msgpack.encode(values))
        return record[:at] + digest + record[at + 4 :]

    async def detail(self, ref: Ref, field: str) -> None:
        """The field is among the parts of a long record; one that has none yet gets one."""
        jobs, id = self.key(ref.queue, "jobs"), packed(ref.id)
        with self.client() as client:
            record = _with_part(client.hget(jobs, id), ("errors", "progress", "reason").index(field), GARBAGE)
            _write_over(client, jobs, id, record)

    async def lease(self, ref: Ref, value: bytes = GARBAGE) -> None:
        self._overwrite(self.key(ref.queue, "held"), packed(ref.id), value)

    async def worker(self, id: str) -> None:
        self._overwrite(self._keys.workers, id.encode(), GARBAGE)

    async def entry(self, ref: Ref) -> None:
        self._overwrite(self.key(ref.queue, "periodic"), ref.id.encode(), GARBAGE)

    async def settings(self, queue: str) -> None:
        self._overwrite(self.key(queue, "meta"), b"limits", GARBAGE)


def _write_over(client: Any, key: bytes, field: bytes, value: bytes) -> None:
    assert client.hset(key, field, value) == 0, "nothing was there to be written over"


def _tail(record: bytes) -> int:
    return 9 + int.from_bytes(record[9:13], "little") if record[0] & _LONG else 9


def _other_extra(record: bytes, field: str) -> bytes:
    """A tail whose part of seldom fields has this one spoiled."""
    at = _tail(record) + 4
    values: list[Any] = []
    rest = record[at:]
    if record[0] & _EXTRA:
        size = int.from_bytes(rest[:4], "little")
        values, rest = msgspec.msgpack.decode(rest[4 : 4 + size]), rest[4 + size :]
    n = EXTRA.index(field)
    values += [0, None, None, None, None, None, None, None, None][len(values) :]
    values[n] = WRONG if field != "headers" else 7
    text = msgspec.msgpack.encode(values)
    flags = bytes((record[0] | _EXTRA,))
    return flags + record[1:at] + len(text).to_bytes(4, "little") + text + rest


def _with_part(record: bytes, which: int, value: bytes) -> bytes:
    bit = {0: 0, 1: 2, 2: 4}[which]
    flags = record[0]
    if not flags & _LONG:
        generation = int.from_bytes(record[1:8], "big")
        at = float((generation >> 12) + 1_577_836_800_000)
        none = float(-(2**53))
        head = struct.pack("<ddddddIIH", at, at, float(generation), none, none, none, 0, 0, 0)
        record = bytes((flags | _LONG,)) + record[1:9] + (62).to_bytes(4, "little") + head + record[9:]
    size = int.from_bytes(record[9:13], "little")
    (has,) = struct.unpack_from("<H", record, 69)
    parts, at = [], 71
    for n in range(9):
        part = None
        if has >> n & 1:
            length = int.from_bytes(record[at : at + 4], "little")
            part = record[at + 4 : at + 4 + length]
            at += 4 + length
        parts.append(part)
    assert at == 9 + size
    parts[bit] = value
    has |= 1 << bit
    body = b"".join(len(part).to_bytes(4, "little") + part for part in parts if part is not None)
    head = record[:9] + (62 + len(body)).to_bytes(4, "little") + record[13:69] + struct.pack("<H", has)
    return head + body + record[at:]
