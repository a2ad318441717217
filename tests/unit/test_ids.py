"""Ids: ascending UUIDv7, user-defined ids from a safe alphabet, and unguessable tokens."""

from __future__ import annotations

import threading
import time
import uuid

import pytest

from penstock.core.ids import check_id, check_queue, mint, mint_many, mint_token
from penstock.errors import ConfigError


def test_an_id_is_a_uuid_of_version_7_with_the_time_in_front() -> None:
    before = time.time_ns() // 1_000_000
    id = mint()
    after = time.time_ns() // 1_000_000
    parsed = uuid.UUID(id)
    assert str(parsed) == id
    assert parsed.variant == uuid.RFC_4122
    assert parsed.int >> 76 & 0xF == 7
    assert before <= parsed.int >> 80 <= after


def test_a_batch_rises_and_repeats_nothing() -> None:
    ids = mint_many(10_000)
    assert len(set(ids)) == 10_000
    assert ids == sorted(ids)
    for id in ids[:100]:
        parsed = uuid.UUID(id)
        assert (str(parsed), parsed.variant, parsed.int >> 76 & 0xF) == (id, uuid.RFC_4122, 7)


def test_no_ids_are_no_ids() -> None:
    assert mint_many(0) == []


def test_two_processes_or_threads_mint_different_ids() -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.extend(mint_many(500))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 4_000


def test_an_id_of_ours_may_be_an_id() -> None:
    id = mint()
    assert check_id(id) is id


def test_tokens_differ_and_are_long_enough() -> None:
    tokens = {mint_token() for _ in range(1_000)}
    assert len(tokens) == 1_000
    assert {len(token) for token in tokens} == {24}
    assert all(int(token, 16) >= 0 for token in tokens)


@pytest.mark.parametrize("name", ["a", "order-17", "A.z_0:9@+=~-", "x" * 128, "-", "...", "0"])
def test_what_may_be_a_name(name: str) -> None:
    assert check_id(name) == check_queue(name) == name


def test_the_name_of_a_queue_may_be_longer_than_an_id() -> None:
    assert check_queue("x" * 255) == "x" * 255
    for check, length in ((check_id, 129), (check_queue, 256)):
        with pytest.raises(ConfigError, match=f"1 to {length - 1} of the characters"):
            check("x" * length)


@pytest.mark.parametrize(
    "name",
    ["", "x" * 256, "a b", "a/b", "a\n", "\n", "é", "a\0", "{a}", "a*", "a,b", "a'b", "½", None, 5, b"a"],
    ids=repr,
)
def test_what_may_not_be_a_name(name: object) -> None:
    with pytest.raises(ConfigError, match="1 to 128 of the characters"):
        check_id(name)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="1 to 255 of the characters"):
        check_queue(name)  # type: ignore[arg-type]
