"""Events: each listener gets the events that it subscribed to, and cannot delay or break anything."""

from __future__ import annotations

import logging
import threading

import pytest

from penstock.events import (
    Event,
    EventBus,
    JobCompleted,
    JobDied,
    JobFailed,
    JobStarted,
    WorkerStarted,
)

SOON = 60.0


def started(n: int = 1) -> JobStarted:
    return JobStarted(1_700_000_000_000, f"id-{n}", "default", "t", n)


class Recorder:
    """Listens, and tells when it has heard enough."""

    def __init__(self, enough: int = 1) -> None:
        self.heard: list[Event] = []
        self.enough = enough
        self.done = threading.Event()

    def __call__(self, event: Event) -> None:
        self.heard.append(event)
        if len(self.heard) >= self.enough:
            self.done.set()


def test_a_listener_gets_its_type_of_event_in_order() -> None:
    bus, recorder = EventBus(), Recorder(3)
    bus.listen(JobStarted, recorder)
    events = [started(1), JobDied(1, "x", "q", "t", 1, "no"), started(2), started(3)]
    for event in events:
        bus.emit(event)
    assert recorder.done.wait(SOON)
    bus.close()
    assert recorder.heard == [events[0], events[2], events[3]]


def test_a_kind_stands_for_all_that_derive_from_it() -> None:
    bus, every = EventBus(), Recorder(3)
    bus.listen(Event, every)
    bus.emit(started())
    bus.emit(WorkerStarted(1, "w1"))
    bus.emit(JobCompleted(1, "x", "q", "t", 1, 0.5))
    assert every.done.wait(SOON)
    bus.close()
    assert len(every.heard) == 3


def test_several_listeners_get_the_same_event() -> None:
    bus, recorders = EventBus(), [Recorder(), Recorder()]
    for recorder in recorders:
        bus.listen(JobStarted, recorder)
    bus.emit(started())
    assert all(recorder.done.wait(SOON) for recorder in recorders)
    bus.close()


def test_without_listeners_nothing_is_kept_and_no_thread_runs() -> None:
    bus = EventBus()
    threads = set(threading.enumerate())
    assert not bus.active
    bus.emit(started())
    assert not set(threading.enumerate()) - threads
    recorder = Recorder()
    bus.listen(JobStarted, recorder)
    assert bus.active
    bus.emit(started(2))
    assert recorder.done.wait(SOON)
    bus.close()
    assert recorder.heard == [started(2)]


def test_a_listener_that_raises_is_logged_and_the_next_one_is_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def bad(event: Event) -> None:
        raise RuntimeError("not my day")

    bus, recorder = EventBus(), Recorder(2)
    bus.listen(JobStarted, bad)
    bus.listen(JobStarted, recorder)
    with caplog.at_level(logging.ERROR, "penstock.events"):
        bus.emit(started(1))
        bus.emit(started(2))
        assert recorder.done.wait(SOON)
        bus.close()
    assert len(recorder.heard) == 2
    assert caplog.text.count("RuntimeError: not my day") == 2
    assert "JobStarted" in caplog.text


def test_a_slow_listener_delays_nobody_and_what_it_misses_is_counted() -> None:
    gate, entered, left = threading.Event(), threading.Event(), threading.Event()

    def slow(event: Event) -> None:
        entered.set()
        gate.wait(SOON)
        left.set()

    bus = EventBus(capacity=10)
    bus.listen(JobStarted, slow)
    bus.emit(started())
    assert entered.wait(SOON)
    for n in range(1_000):
        bus.emit(started(n))
    assert not left.is_set(), "nobody has waited for it"
    assert bus.dropped == 990
    gate.set()
    bus.close()


def test_events_may_come_from_many_threads() -> None:
    bus, recorder = EventBus(), Recorder(800)
    bus.listen(JobStarted, recorder)
    threads = [threading.Thread(target=lambda: [bus.emit(started(n)) for n in range(100)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.done.wait(SOON)
    bus.close()
    assert (len(recorder.heard), bus.dropped) == (800, 0)


def test_close_delivers_what_is_queued() -> None:
    bus, recorder = EventBus(), Recorder()
    bus.listen(JobStarted, recorder)
    for n in range(200):
        bus.emit(started(n))
    bus.close()
    assert len(recorder.heard) == 200
    bus.close()  # twice is once


def test_close_does_not_wait_for_ever() -> None:
    gate, entered, left = threading.Event(), threading.Event(), threading.Event()

    def stuck(event: Event) -> None:
        entered.set()
        gate.wait(SOON)
        left.set()

    bus = EventBus(capacity=1)
    bus.listen(JobStarted, stuck)
    bus.emit(started())
    assert entered.wait(SOON)
    bus.emit(started())
    bus.close(timeout=0.05)
    assert not left.is_set(), "it has not waited for the listener"
    gate.set()


def test_after_a_close_it_may_be_used_again() -> None:
    bus, recorder = EventBus(), Recorder(2)
    bus.listen(JobStarted, recorder)
    bus.emit(started(1))
    bus.close()
    bus.emit(started(2))
    assert recorder.done.wait(SOON)
    bus.close()


def test_an_event_says_what_it_is_when_it_is_written_down() -> None:
    import msgspec

    text = msgspec.json.encode(JobFailed(5, "id", "q", "t", 2, "ValueError: no", 1_000))
    assert msgspec.json.decode(text) == {
        "type": "JobFailed",
        "at": 5,
        "id": "id",
        "queue": "q",
        "task": "t",
        "attempt": 2,
        "error": "ValueError: no",
        "delay": 1_000,
    }
