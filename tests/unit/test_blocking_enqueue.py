"""A sync enqueue inside a running event loop blocks it; a warning says so once per process."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.app.app import App
from penstock.client import backpressure
from penstock.errors import BlockingCallWarning


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setattr(backpressure, "_warned", False)
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.task(name="send")
    def send(to: str) -> None: ...

    yield app
    app.close()


async def test_it_is_said_once_and_names_the_way_out(app: App) -> None:
    send = app.tasks["send"]
    with pytest.warns(BlockingCallWarning, match=r"await .*aenqueue") as told:
        send.enqueue("you")
    assert told[0].filename == __file__, "it points at the call"
    with warnings.catch_warnings():
        warnings.simplefilter("error", BlockingCallWarning)
        send.enqueue("you")
        app.enqueue_many([send.job("you")])


async def test_enqueue_many_says_it_too(app: App) -> None:
    with pytest.warns(BlockingCallWarning, match=r"await .*aenqueue_many") as told:
        app.enqueue_many([app.tasks["send"].job("you")])
    assert told[0].filename == __file__


async def test_the_search_for_a_job_says_it_too(app: App) -> None:
    handle = await app.tasks["send"].aenqueue("you")
    with pytest.warns(BlockingCallWarning, match=r"searches all queues.*await app\.ahandle") as told:
        app.handle(handle.id)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", BlockingCallWarning)
        assert await app.ahandle(handle.id) == handle


def test_outside_of_a_loop_nothing_is_said(app: App) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", BlockingCallWarning)
        handle = app.tasks["send"].enqueue("you")
        assert app.handle(handle.id) == handle


async def test_nor_where_nothing_can_block(app: App) -> None:
    memory = App("memory://")

    @memory.task
    def send(to: str) -> None: ...

    with warnings.catch_warnings():
        warnings.simplefilter("error", BlockingCallWarning)
        send.enqueue("you")
