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


def test_outside_of_a_loop_nothing_is_said(app: App) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", BlockingCallWarning)
        app.tasks["send"].enqueue("you")


async def test_nor_where_nothing_can_block(app: App) -> None:
    memory = App("memory://")

    @memory.task
    def send(to: str) -> None: ...

    with warnings.catch_warnings():
        warnings.simplefilter("error", BlockingCallWarning)
        send.enqueue("you")
