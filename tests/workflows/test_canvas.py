"""Chains, groups, chords and graphs, from the call to the result."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from penstock import App, JobEnqueued, JobExists, current_job
from penstock.core.errors import ArgumentError, ConfigError, JobDead, ResultCancelled, ResultTimeout
from penstock.core.job import NewJob, Ref, State
from penstock.core.unique import UniqueKey
from penstock.workflows import Flow, FlowState, chain, chord, current_flow, group, immutable, into
from tests.workflows.conftest import in_a_burst


class Tasks:
    """The tasks of one app, and what they have done."""

    def __init__(self, app: App) -> None:
        self.calls: list[Any] = []
        calls = self.calls

        @app.task
        async def add(x: int, y: int) -> int:
            calls.append(("add", x, y))
            return x + y

        @app.task
        async def total(numbers: list[int]) -> int:
            calls.append(("total", numbers))
            return sum(numbers)

        @app.task
        def double(x: int) -> int:
            calls.append(("double", x))
            return 2 * x

        @app.task
        async def nothing(x: int) -> None:
            calls.append(("nothing", x))

        @app.task
        async def show(value: Any) -> Any:
            calls.append(("show", value))
            return value

        @app.task(max_attempts=1)
        async def fail(x: int) -> int:
            calls.append(("fail", x))
            raise ValueError(f"no luck with {x}")

        @app.task
        async def note(text: str) -> None:
            calls.append(("note", text))

        @app.task
        async def collect(*values: int) -> list[int]:
            return list(values)

        self.add, self.total, self.double, self.nothing = add, total, double, nothing
        self.show, self.fail, self.note, self.collect = show, fail, note, collect


@pytest.fixture
def tasks(app: App) -> Tasks:
    return Tasks(app)


# ── results pass on ──────────────────────────────────────────────────────────────────────────────


async def test_a_chain_passes_each_result_on(app: App, tasks: Tasks) -> None:
    handle = await chain(tasks.add.job(2, 3), tasks.add.partial(y=10), tasks.double).aenqueue()
    await in_a_burst(app)
    assert await handle.aresult(60) == 30
    assert await handle.astatus() is FlowState.COMPLETED
    assert await handle.aprogress() == type(await handle.aprogress())(3, 3)


async def test_a_group_gives_the_results_of_its_members_in_order(app: App, tasks: Tasks) -> None:
    handle = await group(tasks.double.job(n) for n in range(7)).aenqueue()
    await in_a_burst(app)
    assert await handle.aresult(60) == [0, 2, 4, 6, 8, 10, 12]


async def test_a_chord_passes_the_list_to_its_body(app: App, tasks: Tasks) -> None:
    handle = await chord([tasks.double.job(n) for n in range(5)], then=tasks.total).aenqueue()
    await in_a_burst(app)
    assert await handle.aresult(60) == 20
    assert tasks.calls.count(("total", [0, 2, 4, 6, 8])) == 1


async def test_an_empty_group_calls_its_body_at_once(app: App, tasks: Tasks) -> None:
    handle = await chord([], then=tasks.total).aenqueue()
    await in_a_burst(app)
    assert await handle.aresult(60) == 0
    assert tasks.calls == [("total", [])]


async def test_an_empty_group_in_a_chain_gives_an_empty_list(app: App, tasks: Tasks) -> None:
    handle = await chain(tasks.double.job(1), group([]), tasks.total).aenqueue()
    await in_a_burst(app)
    assert await handle.aresult(60) == 0


async def test_a_chord_of_one_gives_a_list_of_one(app: App, tasks: Tasks) -> None:
    handle = await chord([tasks.double.job(4)], then=tasks.show).aenqueue()
    await in_a_burst(app)
    assert await handle.aresult(60) == [8]


async def test_none_is_a_result(app: App, tasks: Tasks) -> None:
    handle = await chain(tasks.nothing.job(1), tasks.show).aenqueue()
    await in_a_burst(app)
    assert await handle.aresult(5) is None
    assert tasks.calls == [("nothing", 1), ("show", None)]


async def test_canvases_nest_to_any_depth(app: App, tasks: Tasks) -> None:
    inner = chord([tasks.double.job(1), chain(tasks.double.job(2), tasks.double)], then=tasks.total)
    handle = await group(
        chain(inner, group(tasks.double, tasks.double)), group(group(tasks.double.job(7)))
    ).aenqueue()
    await in_a_burst(app)
    assert await handle.aresult(60) == [[20, 20], [[14]]]


async def test_a_group_after_a_group_takes_a_join_and_not_every_pair(app: App, tasks: Tasks) -> None:
    first, second = [tasks.double.job(n) for n in range(20)], [tasks.total] * 20
    handle = await chain(group(first), group(second)).aenqueue()
    info = await handle.ainfo()
    assert info.total == 42
    await in_a_burst(app)
    assert await handle.aresult(60) == [380] * 20


async def test_a_graph_passes_results_by_position_and_by_name(app: App, tasks: Tasks) -> None:
    flow = Flow()
    a = flow.add(tasks.double.job(1))
    b = flow.add(tasks.double.job(10), name="b")
    flow.add(tasks.add, after=[a, b], name="by position")
    flow.add(tasks.add.partial(), after={"y": a, "x": "b"}, name="by name")
    handle = await flow.aenqueue(name="a graph")
    await in_a_burst(app)
    assert await handle.aresult(60) == [22, 22]
    assert ("add", 2, 20) in tasks.calls
    assert ("add", 20, 2) in tasks.calls


async def test_results_fill_variable_parameters(app: App, tasks: Tasks) -> None:
    flow = Flow()
    parts = [flow.add(tasks.double.job(n)) for n in range(3)]
    flow.add(tasks.collect.partial(7), after=parts)
    handle = await flow.aenqueue()
    await in_a_burst(app)
    assert await handle.aresult(60) == [7, 0, 2, 4]


async def test_an_immutable_call_takes_no_result(app: App, tasks: Tasks) -> None:
    handle = await chain(
        tasks.double.job(1), immutable(tasks.double.job(50)), into("y", tasks.add.partial(1))
    ).aenqueue()
    await in_a_burst(app)
    assert await handle.aresult(60) == 101


async def test_map_starmap_and_chunks_are_groups(app: App, tasks: Tasks) -> None:
    handles = [
        await tasks.double.map([1, 2, 3]).aenqueue(),
        await tasks.add.starmap([(1, 2), (3, 4)]).aenqueue(),
        await tasks.total.chunks(range(5), 2).aenqueue(),
    ]
    await in_a_burst(app)
    assert [await handle.aresult(60) for handle in handles] == [[2, 4, 6], [3, 7], [1, 5, 4]]


async def test_options_of_a_call_are_kept(app: App, tasks: Tasks) -> None:
    handle = await chain(tasks.double.using(queue="blue", priority=7).job(1), tasks.double).aenqueue()
    (node,) = await app.store.flow_nodes(handle.ref, [0])
    assert node is not None
    assert node.job is not None
    (job,) = await app.store.get([node.job])
    assert job is not None
    assert (job.queue, job.spec.priority) == ("blue", 7)
    assert handle.queue == "blue"
    await in_a_burst(app, queues=["blue", "default"])
    assert await handle.aresult(60) == 4


def test_a_flow_is_enqueued_and_awaited_without_an_event_loop(app: App, tasks: Tasks) -> None:
    import asyncio

    handle = chord([tasks.double.job(n) for n in range(3)], then=tasks.total).enqueue(id="the-flow")
    assert handle.status() is FlowState.RUNNING
    asyncio.run(in_a_burst(app))
    assert handle.result(60) == 6
    assert handle.progress().done == 5
    with pytest.raises(JobExists):
        chain(tasks.double.job(1)).enqueue(id="the-flow")


# ── failures and callbacks ───────────────────────────────────────────────────────────────────────


async def test_a_failure_is_the_result_of_the_flow(app: App, tasks: Tasks) -> None:
    handle = await chord([tasks.double.job(1), tasks.fail.job(2)], then=tasks.total).aenqueue()
    await in_a_burst(app)
    with pytest.raises(JobDead, match="no luck with 2"):
        await handle.aresult(5)
    assert await handle.astatus() is FlowState.FAILED
    assert not any(call[0] == "total" for call in tasks.calls)


async def test_callbacks_run_once_after_a_success(app: App, tasks: Tasks) -> None:
    canvas = (
        group(tasks.double.job(1), tasks.double.job(2))
        .on_success(tasks.show)
        .on_error(tasks.note.job("error"))
        .on_complete(tasks.note.job("complete"))
    )
    handle = await canvas.aenqueue()
    await in_a_burst(app)
    assert await handle.aresult(60) == [2, 4]
    assert sorted(tasks.calls, key=str)[2:] == [("note", "complete"), ("show", [2, 4])]
    assert await handle.astatus() is FlowState.COMPLETED


@pytest.mark.parametrize("policy", ["stop", "finish"])
async def test_callbacks_run_once_after_a_failure(app: App, tasks: Tasks, policy: str) -> None:
    canvas = (
        group(tasks.fail.job(1), tasks.fail.job(2), tasks.double.job(3))
        .on_success(tasks.show)
        .on_error(tasks.note.job("error"))
        .on_complete(tasks.note.job("complete"))
    )
    handle = await canvas.aenqueue(policy=policy)
    await in_a_burst(app, concurrency=1)
    notes = [call for call in tasks.calls if call[0] in ("note", "show")]
    assert sorted(notes) == [("note", "complete"), ("note", "error")]
    assert await handle.astatus() is FlowState.FAILED


async def test_ignored_failures_are_none_in_the_list(app: App, tasks: Tasks) -> None:
    handle = await chord([tasks.double.job(1), tasks.fail.job(2)], then=tasks.show).aenqueue(policy="ignore")
    await in_a_burst(app)
    assert await handle.aresult(60) == [2, None]


async def test_cancelling_cancels_all(app: App, tasks: Tasks) -> None:
    handle = await chord([tasks.double.job(n) for n in range(3)], then=tasks.total).aenqueue()
    assert await handle.acancel() is FlowState.CANCELLED
    await in_a_burst(app)
    assert tasks.calls == []
    with pytest.raises(ResultCancelled):
        await handle.aresult(5)


@pytest.mark.parametrize("kind", ["chain", "group", "chord", "graph"])
async def test_a_cancelled_flow_calls_back_once_when_all_have_ended(
    app: App, tasks: Tasks, kind: str
) -> None:
    graph = Flow()
    graph.add(tasks.show, after=graph.add(tasks.double.job(1)))
    canvas = {
        "chain": lambda: chain(tasks.double.job(1), tasks.show),
        "group": lambda: group(tasks.double.job(1), tasks.double.job(2)),
        "chord": lambda: chord([tasks.double.job(1)], then=tasks.total),
        "graph": lambda: graph,
    }[kind]()
    canvas.on_success(tasks.show).on_error(tasks.note.job("error"))
    handle = await canvas.on_complete(tasks.note.job("complete")).aenqueue()
    assert await handle.acancel() is FlowState.STOPPING
    await in_a_burst(app)
    assert tasks.calls == [("note", "complete")]
    assert await handle.astatus() is FlowState.CANCELLED
    with pytest.raises(ResultCancelled):
        await handle.aresult(5)


async def test_the_callback_of_a_cancelled_flow_waits_for_the_job_that_stops(app: App) -> None:
    seen: list[str] = []
    running = asyncio.Event()

    @app.task
    async def slow() -> None:
        try:
            running.set()
            await asyncio.Event().wait()
        finally:
            seen.append("slow is over")

    @app.task
    async def note(text: str) -> None:
        seen.append(text)

    handle = (
        await group(chain(slow.job()).on_complete(note.job("inner")))
        .on_complete(note.job("outer"))
        .aenqueue()
    )
    work = asyncio.ensure_future(in_a_burst(app))
    await running.wait()
    await handle.acancel()
    await work
    assert seen == ["slow is over", "inner", "outer"]
    assert await handle.astatus() is FlowState.CANCELLED


async def test_a_retried_member_resumes_its_flow(app: App) -> None:
    luck: list[int] = []

    @app.task(max_attempts=1)
    async def shaky(x: int) -> int:
        if not luck:
            raise ValueError("not yet")
        return x

    @app.task
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    handle = await chord([shaky.job(n) for n in range(3)], then=total).aenqueue(policy="finish")
    await in_a_burst(app)
    assert await handle.astatus() is FlowState.FAILED
    luck.append(1)
    await handle.aretry()
    await in_a_burst(app)
    assert await handle.aresult(60) == 3


async def test_a_flow_runs_again_from_a_node(app: App, tasks: Tasks) -> None:
    parts = (tasks.double.job(1), tasks.double, tasks.double)
    handle = await chain(*parts).aenqueue(keep_nodes="1d")
    other = await chain(*parts).aenqueue()
    await in_a_burst(app)
    assert await handle.aresult(60) == await other.aresult(60) == 8
    with pytest.raises(ConfigError, match="takes the result of node 0, which was removed after its use"):
        await other.aretry(node=1)
    tasks.calls.clear()
    assert await handle.aretry(node=1) is FlowState.RUNNING
    await in_a_burst(app)
    assert await handle.aresult(60) == 8
    assert tasks.calls == [("double", 2), ("double", 4)]


async def test_members_are_added_while_the_group_runs(app: App) -> None:
    @app.task
    async def page(n: int) -> int:
        if n < 4:
            await current_flow().add(page.job(n + 1))
        return n

    @app.task
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    handle = await chord([page.job(0)], then=total).aenqueue()
    await in_a_burst(app)
    assert await handle.aresult(60) == 10


async def test_a_job_of_a_flow_names_it(app: App) -> None:
    seen: list[Any] = []

    @app.task
    async def look() -> None:
        seen.append(current_job().job.to_dict()["flow"])

    handle = await chain(look.job()).aenqueue()
    await in_a_burst(app)
    assert seen == [{"id": handle.id, "queue": "default"}]


async def test_what_a_job_enqueues_inherits_its_headers(app: App) -> None:
    seen: dict[str, Any] = {}

    @app.task(headers={"kind": "look"})
    async def look(where: str) -> None:
        seen[where] = dict(current_job().headers)

    @app.task
    async def begin() -> None:
        await look.using(headers={"tenant": "own"}).aenqueue("job")
        await chain(look.job("first"), immutable(look.job("second"))).aenqueue()

    await begin.using(headers={"tenant": "north", "traceparent": "00-1"}).aenqueue()
    await look.aenqueue("outside")
    await in_a_burst(app)
    inherited = {"kind": "look", "tenant": "north", "traceparent": "00-1"}
    assert seen == {
        "outside": {"kind": "look"},
        "job": inherited | {"tenant": "own"},
        "first": inherited,
        "second": inherited,
    }


async def test_a_result_that_takes_too_long_is_a_timeout(app: App, tasks: Tasks) -> None:
    handle = await chain(tasks.double.job(1)).aenqueue()
    with pytest.raises(ResultTimeout):
        await handle.aresult(0.01)


async def test_a_deleted_member_does_not_hang_the_flow(app: App, tasks: Tasks) -> None:
    handle = await chord([tasks.double.job(n) for n in range(3)], then=tasks.total).aenqueue()
    (node,) = await app.store.flow_nodes(handle.ref, [1])
    assert node is not None
    assert node.job is not None
    assert await app.store.delete([Ref(node.job.queue, node.job.id)]) == [State.AVAILABLE]
    await in_a_burst(app)
    with pytest.raises(JobDead, match="it is gone"):
        await handle.aresult(5)


# ── what is refused when it is built ─────────────────────────────────────────────────────────────


async def test_what_does_not_fit_is_refused_and_nothing_is_stored(app: App, tasks: Tasks) -> None:
    loop = Flow()
    loop.add(tasks.double, after="y", name="x")
    loop.add(tasks.double, after="x", name="y")
    unknown = Flow()
    unknown.add(tasks.double, after="nobody")
    foreign = Flow()
    foreign.add(tasks.double, after=Flow().add(tasks.double.job(1)))
    wrong = {
        "in a circle": loop,
        "no node of this flow; known are": None,
        "no nodes": Flow(),
        "'y' is missing": chain(tasks.add.partial(1)),
        "no parameter left": chain(tasks.double.job(1), tasks.double.job(2)),
        "does not fit the parameter 'text'": chain(tasks.double.job(1), tasks.note),
        "a list of results does not fit": chord([tasks.double.job(1)], then=tasks.double),
        "does not fit the parameter 'numbers'": chord([tasks.collect.job(1)], then=tasks.total),
        "given twice": chain(tasks.double.job(1), into("x", tasks.double.job(2))),
        "no parameter 'z'": chain(tasks.double.job(1), into("z", tasks.double)),
        "unique": chain(tasks.double.using(unique=True).job(1)),
        "id of the caller's choice": chain(tasks.double.using(id="mine").job(1)),
        "is unknown: use one of": None,
    }
    for words, canvas in wrong.items():
        if canvas is not None:
            with pytest.raises(ConfigError, match=words):
                await canvas.aenqueue()
    for canvas in (unknown, foreign):
        with pytest.raises(ConfigError, match="is no node of this flow"):
            await canvas.aenqueue()
    with pytest.raises(ConfigError, match="use one of"):
        await chain(tasks.double.job(1)).aenqueue(policy="hope")
    with pytest.raises(ArgumentError, match="does not fit"):
        tasks.add.partial("a text")
    with pytest.raises(ConfigError, match="no part of a flow"):
        await chain(tasks.double.job(1), 7).aenqueue()
    assert (await app.store.list_flows()).flows == []


def test_there_is_no_flow_outside_of_one() -> None:
    from penstock import NoCurrentJob

    with pytest.raises(NoCurrentJob):
        current_flow()


async def test_listeners_hear_of_the_jobs_with_which_a_flow_starts(app: App) -> None:
    @app.task
    async def work(x: int = 0) -> int:
        return x

    told: list[str] = []
    app.on(JobEnqueued)(lambda event: told.append(event.id))
    handle = await chord([work.job(1), work.job(2)], immutable(work.job())).aenqueue()
    app.events.close()
    nodes = await app.store.flow_nodes(handle.ref, [0, 1])
    assert told == [node.job.id for node in nodes if node and node.job]


async def test_middleware_cannot_make_a_node_unique(app: App) -> None:
    @app.task
    async def work() -> None: ...

    @app.around_enqueue
    def unique(new: NewJob) -> NewJob:
        return replace(new, unique=UniqueKey("k"))

    with pytest.raises(ConfigError, match="enqueue middleware makes the job unique"):
        await group([work.job()]).aenqueue()
    assert not (await app.store.list_flows()).flows
