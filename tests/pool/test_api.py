"""The pool's API: small, with clear errors, and without other Penstock packages (Q22)."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from typing import Any

import pytest

import penstock.pool
from penstock import errors
from penstock.errors import ConfigError
from penstock.pool import CancelToken, JobQueue, Pool, ThreadJobQueue, ThreadPool


async def handler(job: int) -> None: ...


def handle(job: int) -> None: ...


class AsyncCall:
    async def __call__(self, job: int) -> None: ...


FRONTS = [(JobQueue, Pool, handler), (ThreadJobQueue, ThreadPool, handle)]


def test_there_are_12_public_names_at_most() -> None:
    assert len(penstock.pool.__all__) <= 12
    assert penstock.pool.QueueFull is errors.QueueFull
    assert penstock.pool.QueueClosed is errors.QueueClosed


@pytest.mark.parametrize("name", penstock.pool.__all__)
def test_each_of_them_and_each_of_their_verbs_says_what_it_does(name: str) -> None:
    found = getattr(penstock.pool, name)
    assert found.__doc__
    silent = [
        verb
        for verb, member in inspect.getmembers(found)
        if not verb.startswith("_") and verb != "add_note" and callable(member) and not member.__doc__
    ]
    assert not silent


def test_both_fronts_have_the_same_verbs() -> None:
    def verbs(kind: type) -> set[str]:
        return {verb for verb in dir(kind) if not verb.startswith("_")}

    assert verbs(JobQueue) == verbs(ThreadJobQueue)
    assert verbs(Pool) == verbs(ThreadPool)


@pytest.mark.parametrize(("queue", "pool", "works"), FRONTS, ids=["asyncio", "threads"])
@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"capacity": -1}, "capacity=-1 must be a whole number, 0 or more"),
        ({"capacity": 1.5}, "capacity=1.5 must be a whole number, 0 or more"),
        ({"capacity": None}, "capacity=None must be a whole number, 0 or more"),
        ({"capacity": True}, "capacity=True must be a whole number, 0 or more"),
        ({"workers": 0}, "workers=0 must be a whole number, 1 or more"),
        ({"workers": "4"}, "workers='4' must be a whole number, 1 or more"),
        ({"handler": None}, "handler=None"),
        ({"token": "stop"}, "'stop' is not a CancelToken"),
        ({"on_error": 1}, "on_error=1 must be a plain function of the job and the exception"),
        ({"on_error": handler}, "must be a plain function of the job and the exception"),
    ],
)
def test_what_makes_no_sense_is_refused(queue, pool, works, facts: dict[str, Any], says: str) -> None:
    right = {"handler": works, "workers": 1, "capacity": 1}
    with pytest.raises(ConfigError, match=re.escape(says)):
        pool(**{**right, **facts})
    if "capacity" in facts:
        with pytest.raises(ConfigError, match=re.escape(says)):
            queue(facts["capacity"])


def test_nothing_is_endless_by_default() -> None:
    for pool, works in ((Pool, handler), (ThreadPool, handle)):
        with pytest.raises(TypeError, match="capacity"):
            pool(works, workers=1)


@pytest.mark.parametrize("works", [handler, AsyncCall()], ids=["function", "object"])
def test_a_thread_pool_refuses_an_async_handler(works) -> None:
    with pytest.raises(ConfigError, match="is not a plain function of one job; for async functions use Pool"):
        ThreadPool(works, workers=1, capacity=1)


def test_a_token_needs_a_token_above_it() -> None:
    with pytest.raises(ConfigError, match="'up' is not a CancelToken"):
        CancelToken("up")  # type: ignore[arg-type]


def test_it_brings_in_nothing_of_penstock_but_the_errors_and_nobody_brings_it_in() -> None:
    code = (
        "import sys, penstock; assert 'penstock.pool' not in sys.modules; import penstock.pool; "
        "print(*sorted(name for name in sys.modules if name.startswith('penstock')))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [
        "penstock",
        "penstock.core",
        "penstock.core.errors",
        "penstock.core.lazy",  # what stands for work not done
        "penstock.core.portable",  # how errors cross processes
        "penstock.core.text",  # what errors say is safe to print
        "penstock.pool",
        "penstock.pool.loops",
        "penstock.pool.rules",
        "penstock.pool.threads",
    ]
