"""A call in the middle of another one of the same thread: it works or fails at once, and hangs nobody.

A signal handler, a `__del__`, a logging handler and a callback of the garbage collector run between any two
lines; a trace function stands for all of them here.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from penstock.core.job import NewJob
from penstock.errors import StoreReentered
from penstock.stores.contract import EnqueueStatus, Store
from tests.store.facts import OpenStore, new

Place = tuple[str, int]


def traced(act: Callable[[], Any], at_line: Callable[[Place], None]) -> Any:
    """Run this, calling `at_line` at each line of Penstock that this thread comes to."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if "penstock" not in frame.f_code.co_filename:
            return None
        if event == "line":
            at_line((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return act()
    finally:
        sys.settrace(before)


def statuses(store: Store, *jobs: NewJob) -> list[EnqueueStatus]:
    return [answer.status for answer in store.sync.enqueue(jobs)]


class InTheMiddle:
    """Enqueues a job once, at this place."""

    def __init__(self, store: Store, place: Place) -> None:
        self.store = store
        self.place: Place | None = place
        self.stored: list[NewJob] = []
        self.refused = False

    def __call__(self, place: Place) -> None:
        if place == self.place:
            self.place, job = None, new()
            try:
                assert statuses(self.store, job) == [EnqueueStatus.NEW]
                self.stored.append(job)
            except StoreReentered:
                self.refused = True


@pytest.mark.parametrize("of", ["the same store object", "another store object"])
def test_a_call_in_the_middle_of_another_works_or_fails_at_once(
    store: Store, open_store: OpenStore, of: str
) -> None:
    inner = store if of == "the same store object" else open_store()
    assert statuses(inner, new()) == statuses(store, new()) == [EnqueueStatus.NEW]
    places: dict[Place, None] = {}
    traced(lambda: store.sync.enqueue([new()]), lambda place: places.setdefault(place))
    calls = [InTheMiddle(inner, place) for place in places]
    for call in calls:
        outer = new()
        assert traced(lambda outer=outer: statuses(store, outer), call) == [EnqueueStatus.NEW]
        assert None not in store.sync.get([job.ref for job in [outer, *call.stored]])
    reached = [call for call in calls if call.place is None]  # a line of a rare moment comes once only
    assert all(call.stored or call.refused for call in reached)
    assert any(call.stored for call in reached)
    assert 2 * len(reached) > len(calls)


FIRST_USE = """
import sys
from penstock import App

app = App(sys.argv[1])

@app.task(name="t")
def t() -> None: ...

said, inside = [], False

def trace(frame, event, _):
    global inside
    if event == "call" and frame.f_code.co_name == "<module>" and "penstock" in frame.f_code.co_filename:
        if not inside:
            inside = True
            try:
                t.enqueue()
            except Exception as error:
                said.append(type(error).__name__)
            inside = False

sys.settrace(trace)
t.enqueue()
sys.settrace(None)
print(*sorted(set(said)))
"""


def test_a_call_in_the_middle_of_the_import_of_its_store_is_refused_as_a_reentry(store: Store) -> None:
    url = "memory://" if store.url.startswith("memory:") else store.url
    done = subprocess.run(
        [sys.executable, "-c", FIRST_USE, url], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["StoreReentered"]
