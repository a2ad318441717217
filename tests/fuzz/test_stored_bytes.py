"""Fuzz tests of stored bytes: arguments, results, elements, envelopes, records, rows."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.codec import ArgsCodec, ElementCodec, ResultCodec
from penstock.core.formats import shown_text
from penstock.core.job import Job, NewJob, State, read_json
from penstock.encryption import (
    CannotDecrypt,
    Cipher,
    Keyring,
    additional_data,
    is_envelope,
    why_unreadable,
)
from penstock.errors import ArgumentError, ResultError, StoreError, Undecodable
from penstock.stores.contract import Share
from penstock.stores.encrypted import encrypted_store
from penstock.stores.memory import MemoryStore
from penstock.stores.redis.layout import packed
from penstock.stores.redis.store import RedisStore
from penstock.stores.sqlite import SqliteStore
from tests.fuzz import anything, fuzzed, jsons, mangled
from tests.servers import RedisServer


@dataclass
class Doc:
    name: str
    at: datetime
    sizes: list[int]


def typed(a: int, doc: Doc, when: datetime | None = None, ids: tuple[UUID, ...] = ()) -> None: ...
def untyped(a, *rest, b=None, **more): ...  # type: ignore[no-untyped-def]
def of_docs(docs: list[Doc]) -> None: ...
def of_any(docs: list[Any]) -> None: ...


ARGS = {f.__name__: ArgsCodec(f, name=f.__name__) for f in (typed, untyped)}
ELEMENTS = {f.__name__: ElementCodec(f, name=f.__name__) for f in (of_docs, of_any)}
RESULTS = {str(kind): ResultCodec(kind, name="f") for kind in (int, Any, Doc, dict[str, datetime])}
DOC = b'{"name":"a","at":"2024-05-01T12:00:00Z","sizes":[1,2]}'
SEEDS = [
    b"{}",
    b'{"a":1,"doc":' + DOC + b',"when":null,"ids":[]}',
    b"[1," + DOC + b"]",
    b'{"a":{"$datetime":"2024-05-01T12:00:00Z"},"rest":[1],"more":{"x":{"$set":[1]}}}',
    DOC,
    b'{"$decimal":"1.5"}',
    b"7",
]
stored = mangled(st.sampled_from(SEEDS)) | jsons.map(lambda value: msgspec.json.encode(_finite(value)))


def _finite(value: Any) -> Any:
    try:
        msgspec.json.encode(value)
    except (UnicodeEncodeError, msgspec.ValidationError, OverflowError):
        return None
    return value


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ARGS, *ELEMENTS])
@fuzzed(150)
@given(payload=stored)
@example(payload=b"[" * 100_000)
@example(payload=b'{"a":1e999}')
@example(payload=b'{"$sealed":"1.01234567.AAAA"}')
@example(payload=b'{"a":1,"a":2}')
def test_arguments_are_read_or_undecodable(name: str, payload: bytes) -> None:
    codec = {**ARGS, **ELEMENTS}[name]
    try:
        args, kwargs = codec.decode(payload)
    except Undecodable as error:
        assert str(error).startswith(name)
    else:
        assert isinstance(args, tuple)
        assert isinstance(kwargs, dict)
    assert isinstance(codec.canonical(payload), bytes)


@pytest.mark.parametrize("name", list(RESULTS))
@fuzzed(100)
@given(payload=stored)
@example(payload=b'{"$signed":"1.')
def test_results_are_read_or_undecodable(name: str, payload: bytes) -> None:
    try:
        RESULTS[name].decode(payload)
    except Undecodable as error:
        assert str(error)


@fuzzed(150)
@given(args=st.lists(anything, max_size=3), kwargs=st.dictionaries(st.text(max_size=5), anything, max_size=3))
def test_what_is_taken_comes_back(args: list[Any], kwargs: dict[str, Any]) -> None:
    codec = ARGS["untyped"]
    try:
        payload = codec.encode(tuple(args), kwargs)
    except ArgumentError:
        return
    taken, named = codec.decode(payload)
    bound, back = codec.signature.bind(*args, **kwargs), codec.signature.bind(*taken, **named)
    assert back.arguments == bound.arguments


@fuzzed(100)
@given(value=anything)
def test_a_result_that_is_taken_comes_back(value: Any) -> None:
    codec = RESULTS[str(Any)]
    try:
        payload = codec.encode(value)
    except ResultError:
        return
    assert codec.decode(payload) == value


@fuzzed(50)
@given(payload=stored)
@example(payload=b"[" * 100_000)
def test_a_raw_payload_is_json_or_undecodable(payload: bytes) -> None:
    try:
        read_json(payload, "1")
    except Undecodable as error:
        assert "not JSON" in str(error)


# ── envelopes ────────────────────────────────────────────────────────────────────────────────────

CIPHERS = [Cipher(Keyring([bytes(32)]), encrypt=encrypt, required=True) for encrypt in (True, False)]
HERE = additional_data("arguments", "", "q", "t", "1")
envelopes = mangled(
    st.builds(
        lambda cipher, data: cipher.encrypt(data, HERE), st.sampled_from(CIPHERS), st.sampled_from(SEEDS)
    )
)


@fuzzed(200)
@given(data=envelopes)
@example(data=b'{"$sealed":"1."}')
@example(data=b'{"$sealed":"1.\xff')
@example(data=b'{"$signed":"1.01234567.","is":}')
def test_an_envelope_decrypts_to_what_was_encrypted_or_not_at_all(data: bytes) -> None:
    for cipher in CIPHERS:
        try:
            decrypted = cipher.decrypt(data, HERE)
        except CannotDecrypt as error:
            assert str(error)
        else:
            assert decrypted in SEEDS
    job = Job(NewJob("1", "t", data), State.AVAILABLE)
    assert (why_unreadable(job) is not None) == is_envelope(data)


@fuzzed(100)
@given(
    text=st.text(max_size=40)
    | st.text("$sealed:1.0a=", max_size=40)
    | st.text(max_size=9).map("$sealed:1.".__add__)
)
@example(text="$sealed:1.\ud800")
def test_a_text_opens_or_says_that_it_does_not(text: str) -> None:
    said = CIPHERS[0].decrypt_text(text, HERE)
    assert said == text or said.startswith("(encrypted; ")
    assert isinstance(shown_text(text), str)


@fuzzed(50)
@given(payload=stored | envelopes, members=st.lists(st.sampled_from("123"), max_size=3))
def test_every_batch_is_decrypted_or_unreadable(payload: bytes, members: list[str]) -> None:
    clear = MemoryStore()
    batch = Job(NewJob("b", "t", payload), State.AVAILABLE, members=tuple(members))
    cipher: Any = encrypted_store(clear, CIPHERS[0])
    (job,) = cipher._cipher.decrypt_jobs([batch])
    why = cipher.why_unreadable(job)
    assert why is None or why_unreadable(job) is not None


# ── records and rows that somebody else has written over ─────────────────────────────────────────


async def everywhere(store: Any) -> int:
    """How many verbs could do their work; all others raise an error of ours."""
    share = [Share("q", 10, 10)]
    terms = {"limit": 10, "lease": 1000, "worker": "w", "token": f"t{time.monotonic_ns()}"}
    done = 0
    for act in (
        lambda: store.list_jobs(queue="q"),
        lambda: store.find("b"),
        lambda: store.promote(["q"], limit=10),
        lambda: store.fetch(share, **terms),
        lambda: store.reclaim(["q"], **terms, of=["w"]),
        lambda: store.queues(),
        lambda: store.prune(),
    ):
        try:
            await act()
            done += 1
        except StoreError as error:
            assert str(error)
    return done


class Rows:
    """A SQLite store whose rows are written over between two verbs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._n = 0

    def with_spec(self, change: bytes | None, column: str) -> SqliteStore:
        self._n += 1
        file = self._path / f"{self._n}.db"
        store = SqliteStore(file, durability="normal")
        store.sync.enqueue([NewJob(id, "t", b"{}", "q") for id in "abc"])
        with sqlite3.connect(file) as cx:
            cx.execute(f"UPDATE penstock_job SET {column} = ? WHERE id = 'b'", (change,))
        cx.close()
        return store


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return Rows(tmp_path_factory.mktemp("rows"))


@fuzzed(20)
@given(spec=mangled(st.just(msgspec.msgpack.encode(NewJob("b", "t", b"{}", "q")))))
def test_a_row_of_any_bytes_is_an_error_of_ours_at_most(rows: Rows, spec: bytes) -> None:
    store = rows.with_spec(spec, "spec")
    try:
        assert asyncio.run(everywhere(store)) >= 2
    finally:
        store.close()


@pytest.fixture(scope="module")
def on_redis(redis: RedisServer) -> Iterator[RedisServer]:
    return redis


@fuzzed(20)
@given(record=st.data())
def test_a_record_of_any_bytes_is_an_error_of_ours_at_most(
    on_redis: RedisServer, record: st.DataObject
) -> None:
    client = on_redis.client(decode_responses=False)
    prefix = f"penstock-fuzz-{time.time_ns()}"
    store = RedisStore(f"{on_redis.url}?prefix={prefix}")
    try:
        store.sync.enqueue([NewJob(id, "t", b"{}", "q") for id in "abc"])
        key, field = store._context.redis_keys.queue("q") + b":jobs", packed("b")
        found = client.hget(key, field)
        assert isinstance(found, bytes)
        client.hset(key, field, record.draw(mangled(st.just(found))))
        assert asyncio.run(everywhere(store)) >= 1
    finally:
        store.close()
        client.close()
