"""Large arguments and results in shared memory: places are reused, and nothing is overwritten unread."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from penstock.worker.pools.shared_state import LARGE, SIZE, Arena, CallPage

MB = 1 << 20


@pytest.fixture
def both() -> Iterator[tuple[Arena, Arena]]:
    """The worker's and the child's arena on the same memory."""
    fd = os.memfd_create("test")
    os.ftruncate(fd, SIZE)
    yield Arena(fd, 0), Arena(fd, 0)
    os.close(fd)


def test_arguments_written_by_the_worker_are_read_by_the_child(both: tuple[Arena, Arena]) -> None:
    worker, child = both
    places = [worker.put(bytes([n]) * LARGE) for n in range(4)]
    for n, place in enumerate(places):
        assert place is not None
        assert child.get(place) == bytes([n]) * LARGE


def test_a_full_arena_takes_no_more_until_a_place_is_freed(both: tuple[Arena, Arena]) -> None:
    worker, _ = both
    places = [worker.put(b"x" * MB) for _ in range(8)]
    assert None not in places
    assert worker.put(b"x") is None
    freed = places[3]
    assert freed is not None
    worker.free(freed)
    assert worker.put(b"y" * (MB + 1)) is None
    assert worker.put(b"y" * MB) == freed


def test_a_result_is_not_overwritten_before_it_is_read(both: tuple[Arena, Arena]) -> None:
    worker, child = both
    first, second = child.put_result(1, b"1" * MB), child.put_result(2, b"2" * MB)
    assert first is not None
    assert second is not None
    assert child.put_result(3, b"3") is None
    assert worker.take_result(1, first) == b"1" * MB
    third = child.put_result(3, b"3" * MB)
    assert third is not None
    assert worker.take_result(2, second) == b"2" * MB
    assert worker.take_result(3, third) == b"3" * MB


def test_a_result_that_does_not_fit_goes_another_way(both: tuple[Arena, Arena]) -> None:
    assert both[1].put_result(1, b"x" * (4 * MB + 1)) is None


def test_without_anonymous_files_there_is_a_page_and_no_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    fd = CallPage.create()
    try:
        assert CallPage.arena(fd) is None
        page, same = CallPage(fd), CallPage(fd)
        assert same.current() is None
        started = page.begin(7)
        assert same.current() == (7, started)
        page.end()
        assert same.current() is None
    finally:
        os.close(fd)
