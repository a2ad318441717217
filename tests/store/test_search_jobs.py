"""search: jobs by any of their facts, in order of a time, in bounded steps."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.clock import ManualClock
from penstock.core.job import TERMINAL, AttemptError, Job, Ref, State
from penstock.core.lifecycle import Transition
from penstock.core.relations import FlowMember
from penstock.errors import ConfigError
from penstock.stores.contract import (
    DUE_LATER,
    MOST_FOUND,
    SEARCH_STEP,
    JobFilter,
    JobOrder,
    SearchPage,
    Settlement,
    Store,
    TimeRange,
)
from tests.cases import each
from tests.store.facts import (
    AGAIN,
    DEAD,
    KEEP,
    MINUTE,
    RELEASED,
    SECOND,
    OpenStore,
    add,
    end,
    ids,
    in_state,
    new,
    one_of_each,
    retryable,
    running,
    some,
    take,
)


async def found(store: Store, *, limit: int = 50, after: str | None = None, **facts: Any) -> list[Job]:
    """All jobs that a search finds, step by step."""
    asked = {name: facts.pop(name) for name in ("order", "descending") if name in facts}
    jobs: list[Job] = []
    while True:
        page = await store.search(JobFilter(**facts), limit=limit, after=after, **asked)
        assert len(page.hits) <= limit
        jobs += page.jobs
        if (after := page.next) is None:
            return jobs


# ── which jobs ──


async def test_all_jobs_are_found_newest_first(store: Store) -> None:
    jobs = list((await one_of_each(store)).values())
    jobs += [await in_state(store, State.DEAD, queue="other", priority=3)]
    jobs = await found(store)
    newest_first = [job.generation for job in jobs]
    assert newest_first == sorted(newest_first, reverse=True)
    assert jobs == (await store.list_jobs(limit=100)).jobs
    assert await found(store, limit=1) == jobs
    assert await found(store, limit=2, descending=False) == jobs[::-1]


async def test_jobs_are_found_by_state_and_queue(store: Store) -> None:
    here, there = await one_of_each(store), await one_of_each(store, "other")
    for state in State:
        shown = await found(store, states=(state,))
        assert {here[state], there[state]} <= set(shown)
        assert {job.state for job in shown} == {state}
        assert here[state] in await found(store, states=(state,), queues=("default",), limit=1)
    both = await found(store, states=(State.DEAD, State.RUNNING), queues=("other", "none"))
    assert set(both) == {there[State.DEAD], there[State.RUNNING]}
    assert await found(store, queues=("none",)) == []


async def test_jobs_are_found_by_task_and_worker(store: Store) -> None:
    await add(store, new("1", task="x"), new("2", task="y", headers={"a": "b"}), new("3", task="x", delay=9))
    await take(store, 1, worker="w1")
    await take(store, 1, worker="w2")
    assert ids(await found(store, task="x")) == ["3", "1"]
    assert ids(await found(store, task="y")) == ["2"]
    assert ids(await found(store, worker="w1")) == ["1"]
    assert ids(await found(store, worker="w2", task="y")) == ["2"]
    assert ids(await found(store, worker="w2", task="x")) == []
    assert ids(await found(store, not_tasks=("x", "z"))) == ["2"]
    assert ids(await found(store, not_tasks=("x", "y"))) == []
    assert ids(await found(store, worker="w2", states=(State.AVAILABLE,))) == []


async def test_jobs_are_found_by_headers_and_flow(store: Store) -> None:
    await add(
        store,
        new("1", headers={"tenant": "Ann", "x": "1"}),
        new("2", headers={"tenant": "ann"}),
        new("3", flow=FlowMember("default", "f", 1)),
        new("4", flow=FlowMember("other", "f", 1)),
    )
    assert ids(await found(store, headers={"tenant": "Ann"})) == ["1"]
    assert ids(await found(store, headers={"tenant": "Ann", "x": "2"})) == []
    assert ids(await found(store, flow=Ref("default", "f"))) == ["3"]


#: Texts, and whether the job of the test has them.
TEXTS = {
    "order-4711": True,
    "ORDER-47": True,
    "Größe": True,
    "größe": True,
    "job-ünï": True,
    "ValueError: no such": True,
    "no such Kunde: 9": True,
    "error: no such kunde: 9": True,
    "Traceback": False,
    "ValueErrorno": False,
    "order-4712": False,
    "100%": False,
    ": ": True,
    "given UP": True,
}


async def test_jobs_are_found_by_text(store: Store) -> None:
    await add(store, *some(3))
    spec = new("job-ünï", payload='[["Order-4711"],{"size":"Größe"}]'.encode())
    await add(store, spec)
    job = (await take(store, 4))[-1]
    error = AttemptError(1, 0, "ValueError", "no such Kunde: 9", "Traceback …")
    await end(store, job, Transition(State.DEAD, keep=KEEP, error=error, reason="given up"))
    for text, there in TEXTS.items():
        assert ids(await found(store, text=text)) == ([spec.id] if there else []), text
    assert ids(await found(store, text="given UP", states=(State.DEAD,))) == [spec.id]


#: Texts, and which of the jobs of the test have them. JSON 1 is as Python writes it, 2 as PHP, 3 as Go.
AS_ESCAPES = {
    "Größe": "1",
    "größe 日": "1",
    "日本 😀": "1",
    r"gr\u00f6\u00": "1",
    "😀 ende": "",
    "http://a/b": "2",
    r"a\/b": "2",
    "<b>&amp;": "3",
    'say "hi"': "3",
    "c:\\temp": "3",
    "a\nb": "3",
    "é": "",  # 3 has a backslash before u00e9
}


async def test_a_text_is_found_in_json_that_has_it_as_escapes(store: Store) -> None:
    payloads = [
        rb'[["Gr\u00f6\u00dfe \u65E5\u672c \uD83D\ude00"]]',
        rb'[["http:\/\/a\/b"]]',
        rb'[["\u003cb\u003e\u0026amp;","say \"hi\"","C:\\temp a\nb \\u00e9"]]',
    ]
    jobs = [new(f"{n}", payload=payload) for n, payload in enumerate(payloads, 1)]
    await add(store, *some(2), *jobs, new("4", payload=rb'[{"pin":"gr\u00f6n"}]'))
    for text, there in AS_ESCAPES.items():
        assert ids(await found(store, text=text)) == list(there), text
    assert ids(await found(store, text="grön")) == ["4"]
    assert ids(await found(store, text="grön", hidden=("pin",))) == []


#: Texts, and whether a search that must not see values of names like `*pin` finds the job of the test.
WITH_HIDDEN_VALUES = {
    "ann": True,
    "1234": False,
    "Pin": True,  # names are shown
    '"Pin":': True,
    '"Pin":1': False,
    "5678": False,
    "secret": False,
    "hidden": False,
    "null": False,
    '"a":{"new pin"': True,
    "after": True,
}


async def test_a_text_is_not_found_in_values_that_the_viewer_may_not_see(store: Store) -> None:
    payload = b'[["ann"],{"Pin":1234,"a":{"new pin":["5678",{"b":"secret"}],"x pin":null},"z":"after"}]'
    await add(store, new("1", payload=payload, headers={"pin": "99", "tenant": "ann"}), new("2"), new("3"))
    for text, there in WITH_HIDDEN_VALUES.items():
        assert ids(await found(store, text=text, hidden=("*pin",))) == (["1"] if there else []), text
        assert ids(await found(store, text=text)) == ([] if text == "hidden" else ["1"]), text
    assert ids(await found(store, headers={"pin": "99"})) == ["1"]
    assert ids(await found(store, headers={"pin": "99"}, hidden=("*pin",))) == []
    assert ids(await found(store, headers={"tenant": "ann"}, hidden=("*pin",))) == ["1"]


async def test_an_error_is_found_by_a_text_that_begins_or_ends_between_its_kind_and_its_message(
    store: Store,
) -> None:
    job = await running(store)
    error = AttemptError(1, 0, "ValueError", "no luck")
    await end(store, job, Transition(State.RETRYABLE, delay=MINUTE, error=error))
    for text in ("ValueError:", "ValueError: ", " no luck", ": no luck", "r: n", ":"):
        assert ids(await found(store, text=text)) == [job.id], text
    assert ids(await found(store, text="ValueError:no luck")) == []


async def test_jobs_are_found_by_a_part_of_their_id(store: Store) -> None:
    own, uuid = "0198c0de-1234-7abc-8def-0123456789ab", "aaaaaaaa-bbbb-4ccc-9ddd-eeeeeeeeeeee"
    await add(store, *(new(id) for id in (own, uuid, "Order/7")))
    for text in (own, "c0de-1234", "4-7abc-8d", "-8def-01", "89AB"):
        assert ids(await found(store, text=text)) == [own], text
    assert ids(await found(store, text="BB-4ccc-9d")) == [uuid]
    assert ids(await found(store, text="order/7")) == ["Order/7"]


async def test_jobs_are_found_by_the_time_of_their_enqueue(store: Store, clock: ManualClock) -> None:
    start = clock.now()
    for n in range(6):
        await add(store, new(f"{n}", queue="ab"[n % 2]))
        clock.advance(MINUTE)
    third, fifth = start + 2 * MINUTE, start + 4 * MINUTE
    assert ids(await found(store, enqueued=TimeRange(third, fifth))) == ["3", "2"]
    assert ids(await found(store, enqueued=TimeRange(None, third), limit=1)) == ["1", "0"]
    assert ids(await found(store, enqueued=TimeRange(fifth), descending=False, limit=1)) == ["4", "5"]
    assert ids(await found(store, enqueued=TimeRange(fifth), queues=("a",))) == ["4"]


async def test_a_record_that_cannot_match_is_not_found(store: Store) -> None:
    job = await in_state(store, State.DEAD)
    assert await found(store, due=TimeRange(job.run_at, job.run_at + 1)) == [job]
    assert await found(store, due=TimeRange(job.run_at + 1)) == []
    assert await found(store, ended=TimeRange(None, job.ended_at)) == []
    await add(store, new())
    assert await found(store, ended=TimeRange(0)) == [job]


async def test_jobs_are_found_by_their_id_in_any_queue(store: Store) -> None:
    await add(
        store, *(new("same", queue=f"q{n}", task="ab"[n % 2], delay=n // 4) for n in range(7)), *some(600)
    )
    queues = [job.queue for job in await found(store, id="same", descending=False)]
    assert queues == [f"q{n}" for n in range(7)]
    for limit in (1, 2, 50):
        assert [job.queue for job in await found(store, id="same", limit=limit)] == queues[::-1]
    here = await found(store, id="same", queues=("q1", "q3", "none"), states=(State.AVAILABLE,), task="b")
    assert [job.queue for job in here] == ["q3", "q1"]
    assert await found(store, id="same", text="elsewhere") == []
    assert await found(store, id="other") == []


async def test_an_id_is_looked_up_at_once(store: Store) -> None:
    await add(store, new("old"), *some(SEARCH_STEP + 100))
    page = await store.search(JobFilter(id="old"))
    assert (ids(page.jobs), page.next) == (["old"], None)


@each("order", [JobOrder.DUE, JobOrder.ENDED, JobOrder.READY])
async def test_an_id_has_no_other_order(store: Store, order: JobOrder) -> None:
    with pytest.raises(ConfigError, match="enqueued time"):
        await store.search(JobFilter(("default",), id="x"), order, descending=False)


# ── other orders ──


async def test_jobs_are_found_in_order_of_their_due_times(store: Store) -> None:
    await add(store, new("busy", queue="a"))
    (job,) = await take(store, 1, "a")
    await add(
        store, new("late", delay=9), new("soon", delay=3), new("later", queue="b", delay=20), new("now")
    )
    await add(store, new("same", queue="b", delay=3), new("same too", delay=3))
    await end(store, job, retryable(5))
    order = ["soon", "same", "same too", "busy", "late", "later"]
    asked: dict[str, Any] = {"order": JobOrder.DUE, "limit": 1}
    for limit in (1, 2, 50):
        assert ids(await found(store, order=JobOrder.DUE, limit=limit)) == order[::-1]
    assert ids(await found(store, descending=False, **asked)) == order
    queued = ["soon", "same too", "late"]
    assert ids(await found(store, descending=False, queues=("default",), **asked)) == queued
    assert ids(await found(store, states=(State.RETRYABLE,), **asked)) == ["busy"]
    due = TimeRange(job.run_at + 5, job.run_at + 20)
    assert ids(await found(store, descending=False, due=due, **asked)) == ["busy", "late"]
    assert ids(await found(store, descending=True, due=due, **asked)) == ["late", "busy"]


@pytest.mark.parametrize("descending", [True, False])
async def test_jobs_are_found_in_order_of_their_ends(
    store: Store, clock: ManualClock, descending: bool
) -> None:
    await add(store, *(new(f"{n}", queue="ab"[n % 2], headers={"n": str(n % 3)}) for n in range(8)))
    jobs = [*await take(store, 8, "a"), *await take(store, 8, "b")]
    instants = []
    for job in (jobs[n] for n in (4, 1, 6, 0)):
        clock.advance(SECOND)
        instants.append(clock.now())
        await end(store, job, DEAD if job.id < "3" else Transition(State.CANCELLED, keep=KEEP))
    clock.advance(SECOND)
    await store.settle([Settlement(jobs[n].lease, DEAD) for n in (5, 2, 3)])
    order = [jobs[n].id for n in (4, 1, 6, 0)] + sorted(jobs[n].id for n in (5, 2, 3))
    asked: dict[str, Any] = {"order": JobOrder.ENDED, "descending": descending}
    turn = -1 if descending else 1
    for limit in (1, 2, 50):
        assert ids(await found(store, limit=limit, **asked)) == order[::turn]
    ended = TimeRange(instants[1], instants[3])
    assert ids(await found(store, ended=ended, **asked)) == order[1:3][::turn]
    cancelled = [id for id in order[:4] if id >= "3"]
    assert ids(await found(store, states=(State.CANCELLED,), **asked)) == cancelled[::turn]
    assert ids(await found(store, headers={"n": "1"}, limit=1, **asked)) == [
        id for id in order[::turn] if int(id) % 3 == 1
    ]


@pytest.mark.parametrize(
    ("order", "states"), [(JobOrder.DUE, DUE_LATER), (JobOrder.ENDED, TERMINAL)], ids=["due", "ended"]
)
async def test_a_state_without_such_a_time_is_refused(
    store: Store, order: JobOrder, states: frozenset[State]
) -> None:
    for state in State:
        if state not in states:
            with pytest.raises(ConfigError, match=state.value):
                await store.search(JobFilter(states=(state,)), order=order)


# ── steps ──


async def test_a_step_is_bounded_and_says_what_it_has_passed(store: Store) -> None:
    await add(store, *some(SEARCH_STEP + 500), new("needle"), *some(SEARCH_STEP + 500))
    seen, jobs = 0, []
    after: str | None = None
    steps: list[SearchPage] = []
    while not steps or after is not None:
        page = await store.search(JobFilter(text="needle"), after=after)
        assert page.seen <= SEARCH_STEP
        seen, after, jobs = seen + page.seen, page.next, jobs + page.jobs
        steps.append(page)
    assert ids(jobs) == ["needle"]
    assert seen == 2 * SEARCH_STEP + 1001
    assert 100 < len((await store.search(JobFilter(), limit=10**9)).hits) <= MOST_FOUND
    assert len((await store.search(JobFilter(), limit=0)).hits) == 1


async def test_jobs_beyond_the_limit_of_a_step_are_not_passed_by_it(store: Store) -> None:
    await add(store, *some(SEARCH_STEP))
    filter = JobFilter(enqueued=TimeRange(None, 2**50))
    page = await store.search(filter, limit=SEARCH_STEP // 5)
    assert (len(page.hits), page.seen) == (SEARCH_STEP // 5, SEARCH_STEP // 5)


async def test_a_step_by_due_time_passes_no_more_jobs_if_few_are_of_the_state(store: Store) -> None:
    await add(store, new("sent back"))
    (job,) = await take(store, 1)
    await end(store, job, retryable(5))
    await add(store, *some(SEARCH_STEP + 200, delay=9))
    asked: dict[str, Any] = {"order": JobOrder.DUE, "states": (State.RETRYABLE,)}
    page = await store.search(JobFilter(states=asked["states"]), order=JobOrder.DUE)
    assert page.jobs == []
    assert 0 < page.seen <= SEARCH_STEP
    assert page.next is not None
    assert ids(await found(store, **asked)) == ids(await found(store, descending=False, **asked)) == [job.id]


async def test_thousands_are_found_in_both_directions(store: Store) -> None:
    jobs = some(2_500)
    await add(store, *jobs)
    await store.delete([job.ref for job in jobs[::5]])
    busy = await take(store, 300)
    await store.settle([Settlement(job.lease, RELEASED if n % 2 else AGAIN) for n, job in enumerate(busy)])
    await add(store, *some(100, priority=9, delay=5))
    left = [job.id for n, job in enumerate(jobs) if n % 5]
    available = (State.AVAILABLE,)
    assert ids(await found(store, states=available, limit=500)) == left[::-1]
    assert ids(await found(store, states=available, limit=333, descending=False)) == left


async def test_many_running_jobs_are_found_in_both_directions_and_by_worker(store: Store) -> None:
    jobs = some(1_100)
    await add(store, *jobs)
    for n in range(11):
        await take(store, 100, worker=f"w{n % 2}")
    asked: dict[str, Any] = {"states": (State.RUNNING,), "limit": 400}
    assert ids(await found(store, **asked)) == ids(jobs)[::-1]
    assert ids(await found(store, **asked, descending=False)) == ids(jobs)
    of_one = [job.id for n, job in enumerate(jobs) if n // 100 % 2]
    assert ids(await found(store, **asked, worker="w1")) == of_one[::-1]
    assert ids(await found(store, **asked, worker="w1", descending=False)) == of_one
    page = await store.list_jobs(worker="w1", limit=450)
    assert ids([*page.jobs, *(await store.list_jobs(worker="w1", after=page.next)).jobs]) == of_one[::-1]


async def test_large_jobs_are_found(store: Store) -> None:
    jobs = some(5, payload=b'"' + b"x" * 700_000 + b'y"')
    await add(store, *jobs)
    assert ids(await found(store, text="xy")) == ids(jobs)[::-1]


async def test_a_search_goes_on_behind_any_hit(store: Store, open_store: OpenStore) -> None:
    await add(store, *(new(f"{n}", queue="abc"[n % 3]) for n in range(9)))
    page = await store.search(JobFilter())
    for n, hit in enumerate(page.hits):
        assert await found(open_store(), after=hit.after, limit=2) == page.jobs[n + 1 :]


async def test_jobs_of_many_queues_are_found_in_order(store: Store) -> None:
    jobs = [new(queue=f"q{n % 7 if n > 500 else 3}") for n in range(1_200)]
    for n in range(0, 1_200, 100):
        await add(store, *jobs[n : n + 100])
    assert ids(await found(store, limit=400)) == ids(jobs)[::-1]
    assert ids(await found(store, limit=400, descending=False)) == ids(jobs)


async def test_a_search_of_many_queues_takes_few_steps_if_their_jobs_came_one_queue_after_another(
    store: Store,
) -> None:
    jobs = [new(f"{n}", queue=f"q{n // 20 * 7 % 60}") for n in range(1_200)]
    for n in range(0, 1_200, 100):
        await add(store, *jobs[n : n + 100])
    for descending in (True, False):
        found_ids: list[str] = []
        steps, after = 0, None
        while steps == 0 or after is not None:
            page = await store.search(JobFilter(), descending=descending, after=after, limit=400)
            found_ids += ids(page.jobs)
            steps, after = steps + 1, page.next
        assert found_ids == ids(jobs)[:: -1 if descending else 1]
        assert steps <= 12


async def test_jobs_that_stay_are_found_once_while_others_move(store: Store) -> None:
    jobs = some(12)
    await add(store, *jobs)
    page = await store.search(JobFilter(), limit=4)
    await take(store, 3)
    await store.delete([jobs[9].ref, jobs[5].ref])
    await store.retry([jobs[6].ref])
    await add(store, new("urgent", priority=5), new("last"))
    rest = ids(await found(store, limit=3, after=page.next))
    assert rest == [jobs[n].id for n in (7, 6, 4, 3, 2, 1, 0)]


async def test_due_jobs_that_go_do_not_shift_the_steps(store: Store) -> None:
    jobs = [new(delay=n + 1) for n in range(8)]
    await add(store, *jobs)
    due: dict[str, Any] = {"order": JobOrder.DUE, "descending": False}
    page = await store.search(JobFilter(), limit=3, **due)
    await store.delete([jobs[0].ref, jobs[4].ref])
    await store.reschedule([jobs[2].ref], delay=MINUTE)
    rest = ids(await found(store, limit=1, after=page.next, **due))
    assert rest == [jobs[n].id for n in (3, 5, 6, 7, 2)]


async def test_a_running_job_keeps_its_place(store: Store) -> None:
    job = await running(store)
    await add(store, new())
    page = await store.search(JobFilter(), limit=1)
    assert await found(store, after=page.next) == [job]


async def test_what_is_no_cursor_is_refused(store: Store) -> None:
    await add(store, new())
    for wrong in ("", "x", "1:x:2", "::", "1", "1:1:", "9" * 5_000, "1:" + "9" * 30 + ":3"):
        for order in JobOrder:
            with pytest.raises(ConfigError, match="cursor"):
                await store.search(JobFilter(("default",)), order, descending=False, after=wrong)


async def test_jobs_that_are_left_to_the_next_step_are_not_counted(store: Store, clock: ManualClock) -> None:
    """The progress of a bulk act is the sum of these numbers."""
    await add(store, *some(300), *some(300, queue="other"))
    filter = JobFilter(states=(State.AVAILABLE,), enqueued=TimeRange(until=clock.now() + 1))
    seen, found, after = 0, 0, None
    while found < 600:
        page = await store.search(filter, descending=False, after=after, limit=40)
        seen, found, after = seen + page.seen, found + len(page.hits), page.next
    assert 500 <= seen <= 700
