"""Errors, values and live objects go to other processes: pickled, copied, or refused with the way out."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import msgspec
import pytest

import penstock
from penstock import App, Unique, errors, events
from penstock.inspector import Inspector
from penstock.testing import AttemptFailed
from penstock.workflows import group
from tests.cases import case

app = App("memory://portable")


@app.task
def pay(invoice: int) -> int:
    """A task that pickle finds by its name."""
    return invoice


#: The arguments of errors that take something else than a message.
TAKEN: dict[str, tuple[Any, ...]] = {
    "DuplicateJob": ("q", "i", "t"),
    "EnqueueManyError": ([None], {0: errors.JobExists("q", "i")}),
    "EnqueueUnknown": (["a", "b"], "lost"),
    "FlowSuspended": (5,),
    "JobDead": ("dead", [penstock.AttemptError(1, 2, "E", "m", "tb")]),
    "JobExists": ("q", "i"),
    "MemberFailed": ("failed", ["a"]),
    "NotReplicated": (["a"], "1 of 2", "flow"),
    "OutboxFull": (3, "away"),
    "QueueClosed": ("q", "for good"),
    "QueueFull": ("q", 1.5, 10, "; wait"),
    "RateLimited": ("5s", "slow down"),
    "Snooze": ("5m",),
}
ERRORS = {name: getattr(errors, name) for name in errors.__all__ if isinstance(getattr(errors, name), type)}
ERRORS |= {"AttemptFailed": AttemptFailed, "NoCurrentJob": penstock.NoCurrentJob}
TAKEN["AttemptFailed"] = ("failed", [("i", "t", penstock.AttemptError(1, 2, "E", "m", "tb"))])
WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}
ways = pytest.mark.parametrize("way", WAYS)


def facts(error: BaseException) -> dict[str, str]:
    return {name: repr(value) for name, value in vars(error).items()}


@ways
def test_an_error_keeps_its_text_and_its_facts(way: str) -> None:
    for name in ERRORS:
        with case(name):
            error = ERRORS[name](*TAKEN.get(name, ("what went wrong",)))
            error.add_note("a note")
            again = WAYS[way](error)
            assert type(again) is type(error)
            assert (str(again), facts(again)) == (str(error), facts(error))


@ways
def test_so_does_one_of_a_users_own(way: str) -> None:
    again = WAYS[way](Declined(card="4000"))
    assert (str(again), again.delay, again.card) == ("the card 4000 was declined", "1h", "4000")


class Declined(penstock.Retry):
    def __init__(self, *, card: str) -> None:
        super().__init__(f"the card {card} was declined", delay="1h")
        self.card = card


def test_the_handles_of_an_error_go_to_other_processes_as_refs() -> None:
    handle = pay.enqueue(1)
    error = errors.EnqueueManyError([handle, None], {1: errors.JobExists("q", "i")})
    assert WAYS["pickle"](error).handles == (handle.ref, None)
    assert copy.copy(error).handles == copy.deepcopy(error).handles == (handle, None)


def values() -> dict[str, Any]:
    """One of each public value, made from the defaults where there are some."""
    job = pay.enqueue(1).job()
    assert job is not None
    found: dict[str, Any] = {
        "Job": job,
        "NewJob": job.spec,
        "Ref": job.ref,
        "RawJob": penstock.RawJob("i", "q", "t", b"{}", 1, {}),
        "Progress": penstock.Progress(1),
        "AttemptError": penstock.AttemptError(1, 2, "E", "m", "tb"),
        "State": penstock.State.DEAD,
        "Unkept": penstock.Unkept.ENDED,
        "Unique": Unique(by="a", period="1d"),
        "Rate": penstock.Rate(1, 1_000),
        "QueueLimits": penstock.QueueLimits(max_running=1),
        "exponential": penstock.exponential(),
        "fixed": penstock.fixed("1s"),
        "linear": penstock.linear("1s"),
        "steps": penstock.steps("1s", "2s"),
        "fibonacci": penstock.fibonacci(),
        "polynomial": penstock.polynomial(),
    }
    for name in events.__all__:
        kind = getattr(events, name)
        if isinstance(kind, type) and issubclass(kind, events.Event):
            needed = [field for field in msgspec.structs.fields(kind) if field.required]
            found[name] = kind(*range(len(needed)))
    return found


VALUES = values()


@ways
def test_a_value_is_equal_to_its_copy(way: str) -> None:
    for name, value in VALUES.items():
        with case(name):
            assert WAYS[way](value) == value


LIVE: dict[str, tuple[Callable[[], Any], str]] = {
    "App": (lambda: app, "import the module of the app"),
    "Using": (lambda: pay.using(priority=1), "task.using()"),
    "Handle": (lambda: pay.enqueue(1), "app.handle(id, queue)"),
    "JobCall": (lambda: pay.job(1), "task.job()"),
    "Queue": (lambda: app.queue("q"), "app.queue()"),
    "Worker": (lambda: penstock.Worker(app), "make the worker there"),
    "Inspector": (lambda: Inspector(app.store), "make an inspector there"),
    "FlowHandle": (lambda: group([pay.job(1)]).enqueue(), "its queue and id"),
}


@pytest.mark.parametrize("name", LIVE)
def test_a_live_object_is_its_own_copy_and_is_not_pickled(name: str) -> None:
    make, way_out = LIVE[name]
    one = make()
    assert copy.copy(one) is copy.deepcopy(one) is one
    assert copy.deepcopy([one])[0] is one
    with pytest.raises(TypeError, match="belongs to its process") as caught:
        pickle.dumps(one)
    assert way_out in str(caught.value)


def test_a_task_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(pay)) is pay
    assert copy.deepcopy({"task": pay}) == {"task": pay}
    local = app.task(name="local")(lambda invoice: invoice)
    assert copy.deepcopy(local) is local
    with pytest.raises(TypeError, match="a name in its module"):
        pickle.dumps(local)


def refuse(invoice: int) -> None:
    raise errors.QueueFull("q", 2.0, invoice)


@pytest.mark.system
def test_a_pool_of_processes_goes_on_after_an_error() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.raises(errors.QueueFull, match="5 jobs wait in it") as caught:
            pool.submit(refuse, 5).result()
        assert caught.value.retry_after == 2.0
        assert pool.submit(pay, 3).result() == 3
