"""Acts of an operator with rights on some queues: none changes jobs of other queues by way of a flow."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import App, Worker
from penstock.core.job import Ref, State
from penstock.inspector import Inspector, JobAct
from penstock.stores.contract import JobFilter, Store
from penstock.workflows import chain, current_flow, group, immutable
from tests.store.facts import counts, end, retryable, take, the

_SPREADING = [JobAct.RETRY, JobAct.CANCEL, JobAct.DELETE, JobAct.DISCARD, JobAct.COMPLETE]


class Tasks:
    def __init__(self, store: Store) -> None:
        self.app = App("memory://")
        self.app.use_store(store)

        @self.app.task(queue="pub")
        async def public() -> None: ...

        @self.app.task(queue="sec")
        async def secret() -> None: ...

        @self.app.task(queue="pub", max_attempts=1)
        async def gathers() -> None:
            await current_flow().gather([secret.job(), secret.job()])

        self.public, self.secret, self.gathers = public, secret, gathers


@pytest.fixture
def tasks(store: Store) -> Tasks:
    return Tasks(store)


async def jobs_of(store: Store, queue: str) -> list[Ref]:
    return [job.ref for job in (await store.list_jobs(queue=queue)).jobs]


async def everything(store: Store) -> Any:
    jobs = (await store.list_jobs()).jobs
    return sorted((job.queue, job.id, job.state, job.attempt, job.reason) for job in jobs)


@pytest.mark.parametrize("act", _SPREADING)
async def test_an_act_that_would_change_jobs_of_another_queue_is_refused(
    store: Store, tasks: Tasks, act: JobAct
) -> None:
    await group([tasks.public.job(), tasks.secret.job()]).aenqueue()
    await chain(tasks.public.job(), immutable(tasks.secret.job())).aenqueue()
    before = await everything(store)
    refs = await jobs_of(store, "pub")
    changes = await Inspector(store).act(act, refs, within=["pub"])
    assert [change.outcome for change in changes] == ["refused"] * 2
    assert all("queues on which you have no right" in change.says for change in changes)
    assert await everything(store) == before


@pytest.mark.parametrize("within", [["pub", "sec"], ["p*", "se?"], ["*"], None])
async def test_with_the_right_on_all_queues_of_the_flow_it_is_done(
    store: Store, tasks: Tasks, within: list[str] | None
) -> None:
    await group([tasks.public.job(), tasks.secret.job()]).aenqueue()
    (ref,) = await jobs_of(store, "pub")
    (change,) = await Inspector(store).act(JobAct.CANCEL, [ref], within=within)
    assert change.outcome == "done"
    while await store.advance_flows():
        pass
    assert await counts(store, "sec") == {State.CANCELLED: 1}


async def test_other_jobs_of_the_same_call_are_changed_and_answers_keep_their_order(
    store: Store, tasks: Tasks
) -> None:
    await group([tasks.public.job(), tasks.secret.job()]).aenqueue()
    (member,) = await jobs_of(store, "pub")
    await group([tasks.public.job(), tasks.public.job()]).aenqueue(id="own")
    plain = (await tasks.public.aenqueue()).ref
    missing = Ref("pub", "nothing")
    own = [ref for ref in await jobs_of(store, "pub") if ref not in (member, plain)]
    asked = [plain, member, missing, *own]
    changes = await Inspector(store).act(JobAct.CANCEL, asked, within=["pub"])
    assert [(change.queue, change.id) for change in changes] == [(ref.queue, ref.id) for ref in asked]
    assert [change.outcome for change in changes] == ["done", "refused", "missing", "done", "done"]


@pytest.mark.parametrize("policy", ["finish", "ignore"])
async def test_a_flow_whose_policy_cancels_nothing_is_no_obstacle(
    store: Store, tasks: Tasks, policy: str
) -> None:
    await group([tasks.public.job(), tasks.secret.job()]).aenqueue(policy=policy)
    (ref,) = await jobs_of(store, "pub")
    (change,) = await Inspector(store).act(JobAct.CANCEL, [ref], within=["pub"])
    assert change.outcome == "done"
    assert await counts(store, "sec") == {State.AVAILABLE: 1}


async def test_a_job_that_waits_for_jobs_of_another_queue_takes_part_in_it(
    store: Store, tasks: Tasks
) -> None:
    handle = await tasks.gathers.aenqueue()
    await group([tasks.public.job(), tasks.gathers.job()]).aenqueue(id="outer")
    await Worker(tasks.app, ["pub"], burst=True).run()
    assert (await the(store, handle.ref)).state is State.SUSPENDED
    assert (await counts(store, "sec"))[State.AVAILABLE] == 4
    before = await everything(store)
    inspector = Inspector(store)
    for act in (JobAct.CANCEL, JobAct.DISCARD, JobAct.DELETE):
        (change,) = await inspector.act(act, [handle.ref], within=["pub"])
        assert change.outcome == "refused"
    assert await inspector.flows.leaves("pub/outer", ["pub"])
    assert not await inspector.flows.leaves("pub/outer", ["*"])
    assert await everything(store) == before


async def test_a_bulk_act_passes_over_what_is_beyond_the_rights_of_who_has_started_it(
    store: Store, tasks: Tasks
) -> None:
    await group([tasks.public.job(), tasks.secret.job()]).aenqueue()
    plain = (await tasks.public.aenqueue()).ref
    acts = Inspector(store).bulk
    bulk = await acts.start(JobAct.CANCEL, JobFilter(queues=("pub",)), by="ann", within=["pub"])
    while await acts.step(bulk.id, "me"):
        pass
    ended = await acts.get(bulk.id)
    assert ended is not None
    assert (ended.done, ended.refused) == (1, 1)
    assert (await the(store, plain)).state is State.CANCELLED
    assert await counts(store, "sec") == {State.AVAILABLE: 1}


async def test_a_retry_that_brings_others_back_is_refused_too(store: Store, tasks: Tasks) -> None:
    await group([tasks.public.using(max_attempts=1).job(), tasks.secret.job()]).aenqueue()
    (job,) = await take(store, queue="pub")
    await end(store, job, retryable())
    await store.cancel([job.ref])
    while await store.advance_flows():
        pass
    assert await counts(store, "sec") == {State.CANCELLED: 1}
    (change,) = await Inspector(store).act(JobAct.RETRY, [job.ref], within=["pub"])
    assert change.outcome == "refused"
    (change,) = await Inspector(store).act(JobAct.RETRY, [job.ref])
    assert change.outcome == "done"
    while await store.advance_flows():
        pass
    assert await counts(store, "sec") == {State.AVAILABLE: 1}
