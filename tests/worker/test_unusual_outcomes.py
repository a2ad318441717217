"""Unusual exceptions, results and answers of user code: every attempt has an outcome, and none is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from penstock.app.app import App
from penstock.core.job import State
from penstock.stores.contract import Settled, Settlement, Store
from tests.worker.conftest import ended, in_a_burst
from tests.worker.task_bodies import (
    NO_RULES,
    ODD_ENDS,
    act,
    end_oddly,
    fail_by_no_rule,
    fill,
    made,
)


async def test_every_end_of_an_attempt_is_an_outcome_and_other_jobs_complete(app: App, run_in: str) -> None:
    odd, plain = made(app, run_in, end_oddly, retry="1h"), made(app, run_in, act)
    handles, good = {}, []
    for how in ODD_ENDS:
        handles[how] = await odd.aenqueue(how)
        good.append(await plain.aenqueue("return"))
    await in_a_burst(app, concurrency=4)
    for how, handle in handles.items():
        job = await handle.ajob()
        assert job is not None, how
        _, state, kind = ODD_ENDS[how]
        assert job.state == state, (how, job.errors)
        assert not job.lost, f"{how}: it is no crash"
        if state == "cancelled":
            assert job.reason, how
        elif kind is not None:
            assert job.errors[-1].kind == kind, (how, job.errors)
    assert [(await ended(one)).state for one in good] == [State.COMPLETED] * len(good)


async def test_rules_that_leave_are_the_defaults(app: App, run_in: str) -> None:
    handle = await made(app, run_in, fail_by_no_rule, **NO_RULES).aenqueue()
    await in_a_burst(app)
    job = await handle.ajob()
    assert job is not None
    assert (job.state, {error.kind for error in job.errors}) == (State.RETRYABLE, {"ValueError"})


class Choosy:
    """A store that cannot encode some outcomes, as no store should."""

    def __init__(self, store: Store, ids: set[str], *, states: set[State]) -> None:
        self._store, self._ids, self._states = store, ids, states

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        if any(one.lease.id in self._ids and one.transition.state in self._states for one in settlements):
            raise TypeError("Encoding objects of type Odd is unsupported")
        return await self._store.settle(settlements)


async def test_a_result_that_the_store_cannot_take_makes_its_job_dead_and_the_others_are_settled(
    app: App, run_in: str
) -> None:
    """Another attempt would do its work again, and return the same."""
    task = made(app, run_in, act, retry="1h")
    handles = [await task.aenqueue("return") for _ in range(6)]
    odd = {handles[1].id, handles[4].id}
    app.use_store(cast(Store, Choosy(app.store, odd, states={State.COMPLETED})))
    await in_a_burst(app, concurrency=3)
    for handle in handles:
        job = await handle.ajob()
        assert job is not None
        if handle.id in odd:
            assert (job.state, job.attempt, job.errors[-1].kind) == (State.DEAD, 1, "OutcomeNotStored")
            assert "Odd is unsupported" in job.errors[-1].message
        else:
            assert job.state is State.COMPLETED


@pytest.mark.parametrize("answer", [None, 5, "wrapped"])
async def test_middleware_that_is_no_coroutine_fails_the_attempt_alone(
    app: App, run_in: str, answer: Any
) -> None:
    async def junk(job: Any, call: Any) -> Any:
        return await call()

    app.middleware.add_attempt(lambda job, call: answer, task="act")  # type: ignore[arg-type, return-value]
    app.middleware.add_attempt(junk)
    task = made(app, run_in, act, retry="1h")
    handle = await task.aenqueue("return")
    good = await made(app, run_in, fill).aenqueue(9)
    await in_a_burst(app)
    job = await handle.ajob()
    assert job is not None
    assert (job.state, job.errors[-1].kind) == (State.RETRYABLE, "TypeError")
    assert (await ended(good)).state is State.COMPLETED
