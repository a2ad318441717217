"""Undo of acts on jobs: afterwards they are as before, and what has changed since is left alone."""

from __future__ import annotations

from penstock.core.job import Job, Ref, State
from penstock.core.relations import Partition
from penstock.core.unique import UniqueKey
from penstock.inspector import Inspector, JobAct, UndoStep
from penstock.stores.contract import Store
from tests.cases import each
from tests.store.facts import MINUTE, add, in_state, new, take_one, the

#: Acts, and the states of jobs for which they can be undone.
UNDONE = [
    (JobAct.RETRY, State.DEAD),
    (JobAct.RETRY, State.CANCELLED),
    (JobAct.RUN_NOW, State.SCHEDULED),
    (JobAct.RESCHEDULE, State.SCHEDULED),
    (JobAct.RESCHEDULE, State.AVAILABLE),
    (JobAct.CANCEL, State.AVAILABLE),
    (JobAct.DISCARD, State.AVAILABLE),
    (JobAct.COMPLETE, State.AVAILABLE),
    (JobAct.MOVE, State.SCHEDULED),
    (JobAct.MOVE, State.AVAILABLE),
]
#: Acts that would leave something else than there was, or have other effects by then.
NOT_UNDONE = [
    (JobAct.RETRY, State.COMPLETED),
    (JobAct.CANCEL, State.SCHEDULED),
    (JobAct.DISCARD, State.RETRYABLE),
    (JobAct.COMPLETE, State.DEAD),
    (JobAct.CANCEL, State.RUNNING),
    (JobAct.DELETE, State.DEAD),
    (JobAct.DUPLICATE, State.DEAD),
]


async def done(store: Store, act: JobAct, job: Job) -> list[UndoStep]:
    """Do the act; return its undo."""
    inspector = Inspector(store)
    steps = await inspector.prepare_undo(act, [job.ref], to="other")
    (change,) = await inspector.act(act, [job.ref], delay=MINUTE, to="other", reason="mine")
    assert change.outcome in ("done", "asked")
    return steps


@each("act, state", UNDONE)
async def test_a_job_is_as_before(store: Store, act: JobAct, state: State) -> None:
    before = await in_state(store, state)
    steps = await done(store, act, before)
    (change,) = await Inspector(store).undo(steps)
    assert change.outcome == "done", change.says
    after = await the(store, before)
    assert (after.state, after.reason, after.spec.payload) == (state, before.reason, before.spec.payload)
    assert after.errors == before.errors
    if state is State.SCHEDULED:
        assert after.run_at == before.run_at


@each("act, state", NOT_UNDONE)
async def test_what_would_not_be_as_before_has_no_undo(store: Store, act: JobAct, state: State) -> None:
    assert await done(store, act, await in_state(store, state)) == []


async def test_a_job_that_has_started_since_is_left_alone(store: Store) -> None:
    steps = await done(store, JobAct.RETRY, await in_state(store, State.DEAD))
    job = await take_one(store)
    (change,) = await Inspector(store).undo(steps)
    assert (change.outcome, change.says) == ("refused", "not undone: it is running")
    assert (await the(store, job)).state is State.RUNNING


async def test_a_job_with_a_place_that_another_may_take_has_no_undo(store: Store) -> None:
    await add(store, new("u", unique=UniqueKey("k")), new("p", partition=Partition("k")))
    both = [Ref("default", "u"), Ref("default", "p")]
    assert await Inspector(store).prepare_undo(JobAct.CANCEL, both) == []
