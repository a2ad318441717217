"""Middleware: global outside queue outside task, in order of registration; it may replace the outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.client.middleware import AroundAttempt, AroundEnqueue, MiddlewareStack, wrap
from penstock.core.job import Job, NewJob, State

JOB = Job(NewJob("id", "mail.send", queue="mail"), State.RUNNING, attempt=1)


def noting(name: str, said: list[str]) -> AroundAttempt:
    async def around(job: Job, call: Callable[[], Awaitable[Any]]) -> Any:
        said.append(f"{name} in")
        result = await call()
        said.append(f"{name} out")
        return result

    return around


def stamping(mark: str) -> AroundEnqueue:
    def stamp(new: NewJob) -> NewJob:
        marks = (new.headers or {}).get("marks", "")
        return replace(new, headers={"marks": marks + mark})

    return stamp


def marks(new: NewJob) -> str:
    return (new.headers or {}).get("marks", "")


async def run(stack: MiddlewareStack, call: Callable[[], Awaitable[Any]], job: Job = JOB) -> Any:
    return await wrap(stack.attempts(job.queue, job.task), job, call)()


async def answer() -> str:
    return "done"


# ── around attempts ──


async def test_without_middleware_the_call_is_the_call() -> None:
    stack = MiddlewareStack()
    assert stack.attempts("mail", "mail.send") == ()
    assert wrap((), JOB, answer) is answer


async def test_global_outside_queue_outside_task_each_in_order_of_registration() -> None:
    stack, said = MiddlewareStack(), []
    stack.add_attempt(noting("task 1", said), task="mail.send")
    stack.add_attempt(noting("queue 1", said), queue="mail")
    stack.add_attempt(noting("global 1", said))
    stack.add_attempt(noting("task 2", said), task="mail.send")
    stack.add_attempt(noting("global 2", said))
    stack.add_attempt(noting("queue 2", said), queue="mail")
    assert await run(stack, answer) == "done"
    names = ["global 1", "global 2", "queue 1", "queue 2", "task 1", "task 2"]
    assert said == [f"{name} in" for name in names] + [f"{name} out" for name in reversed(names)]


async def test_only_what_fits_is_called() -> None:
    stack, said = MiddlewareStack(), []
    stack.add_attempt(noting("other queue", said), queue="other")
    stack.add_attempt(noting("other task", said), task="other")
    stack.add_attempt(noting("both", said), queue="mail", task="mail.send")
    stack.add_attempt(noting("half", said), queue="other", task="mail.send")
    await run(stack, answer)
    assert said == ["both in", "both out"]


async def test_it_is_given_the_job() -> None:
    stack, seen = MiddlewareStack(), []

    async def look(job: Job, call: Callable[[], Awaitable[Any]]) -> Any:
        seen.append(job)
        return await call()

    stack.add_attempt(look)
    await run(stack, answer)
    assert seen == [JOB]


async def test_it_may_replace_the_result() -> None:
    stack = MiddlewareStack()

    async def shout(job: Job, call: Callable[[], Awaitable[Any]]) -> Any:
        return (await call()).upper()

    stack.add_attempt(shout)
    assert await run(stack, answer) == "DONE"


async def test_it_may_answer_without_calling_on() -> None:
    stack, said = MiddlewareStack(), []

    async def cached(job: Job, call: Callable[[], Awaitable[Any]]) -> Any:
        return "cached"

    stack.add_attempt(cached)
    stack.add_attempt(noting("inner", said))
    assert await run(stack, answer) == "cached"
    assert said == []


async def test_it_may_turn_a_failure_into_a_result_and_the_other_way_round() -> None:
    async def fail() -> str:
        raise ValueError("no")

    async def forgive(job: Job, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await call()
        except ValueError:
            return "forgiven"

    async def refuse(job: Job, call: Callable[[], Awaitable[Any]]) -> Any:
        await call()
        raise RuntimeError("refused")

    forgiving, refusing = MiddlewareStack(), MiddlewareStack()
    forgiving.add_attempt(forgive)
    refusing.add_attempt(refuse)
    assert await run(forgiving, fail) == "forgiven"
    with pytest.raises(RuntimeError, match="refused"):
        await run(refusing, answer)


async def test_it_may_call_twice() -> None:
    stack, calls = MiddlewareStack(), []

    async def twice(job: Job, call: Callable[[], Awaitable[Any]]) -> Any:
        return [await call(), await call()]

    async def count() -> int:
        calls.append(1)
        return len(calls)

    stack.add_attempt(twice)
    assert await run(stack, count) == [1, 2]


async def test_what_is_added_later_counts_from_then_on() -> None:
    stack, said = MiddlewareStack(), []
    await run(stack, answer)
    stack.add_attempt(noting("late", said))
    await run(stack, answer)
    assert said == ["late in", "late out"]


def test_a_job_of_any_name_may_come_and_nothing_grows_without_bound() -> None:
    stack = MiddlewareStack()
    stack.add_attempt(noting("x", []))
    for n in range(10_500):
        assert len(stack.attempts("mail", f"task-{n}")) == 1
    assert len(stack._cache) <= 10_000


# ── around enqueues ──


def test_a_new_job_is_rewritten_by_all_that_fit_global_first() -> None:
    stack = MiddlewareStack()
    stack.add_enqueue(stamping("t"), task="mail.send")
    stack.add_enqueue(stamping("q"), queue="mail")
    stack.add_enqueue(stamping("g"))
    stack.add_enqueue(stamping("h"))
    stack.add_enqueue(stamping("x"), queue="other")
    assert marks(stack.rewrite(JOB.spec)) == "ghqt"
    assert marks(stack.rewrite(replace(JOB.spec, queue="other", task="x"))) == "ghx"
    assert JOB.spec.headers is None


def test_a_rewritten_queue_decides_what_comes_after_it() -> None:
    stack = MiddlewareStack()
    stack.add_enqueue(lambda new: replace(new, queue="bulk"))
    stack.add_enqueue(stamping("bulk"), queue="bulk")
    stack.add_enqueue(stamping("mail"), queue="mail")
    new = stack.rewrite(JOB.spec)
    assert (new.queue, marks(new)) == ("bulk", "bulk")


def test_what_it_raises_goes_to_the_caller() -> None:
    def refuse(new: NewJob) -> NewJob:
        raise PermissionError("not this one")

    stack = MiddlewareStack()
    stack.add_enqueue(refuse)
    with pytest.raises(PermissionError, match="not this one"):
        stack.rewrite(JOB.spec)


def test_without_middleware_the_job_is_the_job() -> None:
    assert MiddlewareStack().rewrite(JOB.spec) is JOB.spec
