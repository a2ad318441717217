"""The outbox: while the store is away, new jobs wait in memory; later each is sent once, in order."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from penstock import (
    App,
    ConfigError,
    EnqueueError,
    EnqueueManyError,
    EnqueueUnknown,
    Handle,
    JobEnqueued,
    JobExists,
    JobNotEnqueued,
    NewJob,
    NotReplicated,
    OutboxFull,
    StoreBusy,
    StoreFull,
    StoreReentered,
    StoreUnavailable,
)
from penstock.client.outbox import _shortened
from penstock.stores.contract import Enqueue, Enqueued, EnqueueStatus, Request
from penstock.stores.memory import MemoryStore
from penstock.testing import FaultyStore

PATIENCE = 60.0


class InParts(MemoryStore):
    """Like a store of several servers: of some places in its next call it says something else."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses: dict[int, EnqueueStatus] = {}

    def judged(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        said, self.statuses = self.statuses, {}
        undone = {place for place, status in said.items() if status is EnqueueStatus.FAILED}
        done = iter(super().sync.enqueue([job for place, job in enumerate(jobs) if place not in undone]))
        answers = [
            Enqueued(EnqueueStatus.FAILED, job.id) if place in undone else next(done)
            for place, job in enumerate(jobs)
        ]
        for place, status in said.items():
            answers[place] = Enqueued(status, jobs[place].id, cause="a test says so")
        return answers

    async def ask(self, request: Request[Any]) -> Any:
        return self.judged(request.jobs) if isinstance(request, Enqueue) else await super().ask(request)

    @property
    def sync(self) -> Any:
        return _Door(self, super().sync)


class _Door:
    def __init__(self, store: InParts, door: Any) -> None:
        self._store, self._door = store, door

    def ask(self, request: Request[Any]) -> Any:
        return self._store.judged(request.jobs) if isinstance(request, Enqueue) else self._door.ask(request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._door, name)


class Kit:
    """An app with an outbox, over a store that fails on demand."""

    def __init__(self, limit: int = 100, store: InParts | None = None) -> None:
        self.kept = store or InParts()
        self.store = FaultyStore(self.kept)
        self.app = App(store=self.store.store, outbox=limit)
        self.told: list[Any] = []

        @self.app.task(name="add")
        def add(n: int) -> int:
            return n

        self.add = add

    def listen(self) -> None:
        self.app.on(JobEnqueued)(self.told.append)
        self.app.on(JobNotEnqueued)(self.told.append)

    def stored(self) -> list[str]:
        """The ids, in order of enqueue."""
        page = asyncio.run(self.kept.list_jobs(limit=10_000))
        return [job.id for job in reversed(page.jobs)]


@pytest.fixture
def kit() -> Iterator[Kit]:
    kit = Kit()
    yield kit
    kit.store.up()
    kit.app.close()


@pytest.fixture(params=["sync", "async"])
def enqueue(request: pytest.FixtureRequest, kit: Kit) -> Callable[..., Handle[Any]]:
    """One job by either door."""
    if request.param == "sync":
        return lambda n, **options: kit.add.using(**options).enqueue(n)
    return lambda n, **options: asyncio.run(kit.add.using(**options).aenqueue(n))


@pytest.fixture(params=["sync", "async"])
def many(request: pytest.FixtureRequest, kit: Kit) -> Callable[[Any], list[Handle[Any]]]:
    if request.param == "sync":
        return kit.app.enqueue_many
    return lambda jobs: asyncio.run(kit.app.aenqueue_many(jobs))


# ── off ──────────────────────────────────────────────────────────────────────────────────────────


def test_without_an_outbox_the_error_is_the_callers() -> None:
    kit = Kit(limit=0)
    kit.store.down()
    with pytest.raises(StoreUnavailable):
        kit.add.enqueue(1)
    assert kit.app.outbox.pending == 0
    assert kit.app.flush(0)


def test_its_size_is_a_setting_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert App("memory://").outbox.limit == 0
    monkeypatch.setenv("PENSTOCK_OUTBOX", "7")
    assert App("memory://").outbox.limit == 7
    assert App("memory://", outbox=3).outbox.limit == 3
    with pytest.raises(ConfigError, match="outbox=-1 is out of range"):
        App("memory://", outbox=-1)


# ── the store is away ────────────────────────────────────────────────────────────────────────────


def test_jobs_wait_and_are_stored_in_their_order_when_the_store_is_back(
    kit: Kit, enqueue: Callable[..., Handle[Any]]
) -> None:
    before = enqueue(0)
    kit.store.down()
    waiting = [enqueue(n) for n in range(1, 20)]
    assert kit.app.outbox.pending == len(kit.app.outbox) == 19
    assert kit.stored() == [before.id]
    kit.store.up()
    assert kit.app.flush(PATIENCE)
    assert kit.stored() == [before.id, *(handle.id for handle in waiting)]
    assert kit.app.outbox.pending == 0
    job = waiting[4].job()
    assert job is not None
    assert (job.task, job.spec.payload) == ("add", b'{"n":5}')


def test_a_store_that_is_busy_is_away_too(kit: Kit, enqueue: Callable[..., Handle[Any]]) -> None:
    kit.store.fail("enqueue", error=StoreBusy("somebody writes"))
    handle = enqueue(1)
    assert kit.app.flush(PATIENCE)
    assert kit.stored() == [handle.id]


def test_a_call_in_the_middle_of_another_one_waits_until_that_is_done(
    kit: Kit, enqueue: Callable[..., Handle[Any]]
) -> None:
    kit.store.fail("enqueue", error=StoreReentered("memory://"))
    handle = enqueue(1)
    assert kit.app.flush(PATIENCE)
    assert kit.stored() == [handle.id]


def test_a_failed_enqueue_is_sent_again_without_a_flush(kit: Kit) -> None:
    kit.listen()
    kit.store.fail("enqueue", times=3)
    stored = threading.Event()
    kit.app.on(JobEnqueued)(lambda event: stored.set())
    handle = kit.add.enqueue(1)
    assert stored.wait(PATIENCE)
    assert kit.stored() == [handle.id]


def test_while_some_wait_new_jobs_wait_behind_them(kit: Kit, enqueue: Callable[..., Handle[Any]]) -> None:
    kit.store.down()
    ids = [enqueue(n).id for n in range(3)]
    calls = kit.store.calls["enqueue"]
    kit.store.up()  # and the sender may not know yet
    ids += [enqueue(n).id for n in range(3)]
    assert kit.app.flush(PATIENCE)
    assert kit.stored() == ids
    assert kit.store.calls["enqueue"] > calls
    direct = enqueue(9)
    assert kit.app.outbox.pending == 0
    assert kit.stored() == [*ids, direct.id]


def test_many_wait_together(kit: Kit, many: Callable[[Any], list[Handle[Any]]]) -> None:
    kit.store.down()
    handles = many([kit.add.job(n) for n in range(30)])
    assert kit.app.outbox.pending == 30
    kit.store.up()
    assert kit.app.flush(PATIENCE)
    assert kit.stored() == [handle.id for handle in handles]


async def test_concurrent_callers_of_a_loop_all_wait() -> None:
    kit = Kit()
    kit.store.down()
    handles = await asyncio.gather(*(kit.add.aenqueue(n) for n in range(50)))
    assert kit.app.outbox.pending == 50
    kit.store.up()
    assert await kit.app.aflush(PATIENCE)
    jobs = await kit.kept.list_jobs(limit=100)
    assert {job.id for job in jobs.jobs} == {handle.id for handle in handles}


def test_threads_lose_nothing_while_the_store_comes_and_goes(kit: Kit) -> None:
    made: list[list[str]] = [[] for _ in range(4)]

    def produce(ids: list[str]) -> None:
        for n in range(20):
            kit.store.fail("enqueue")
            ids.append(kit.add.enqueue(n).id)

    threads = [threading.Thread(target=produce, args=(ids,)) for ids in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kit.store._next.clear()
    assert kit.app.flush(PATIENCE)
    stored = kit.stored()
    assert sorted(stored) == sorted(id for ids in made for id in ids)
    for ids in made:  # each thread's own order holds
        assert [id for id in stored if id in set(ids)] == ids


def test_a_store_that_is_full_meanwhile_gets_them_later(kit: Kit) -> None:
    kit.store.fail("enqueue")
    kit.store.fail("enqueue", times=2, error=StoreFull("no room"))
    handle = kit.add.enqueue(1)
    assert kit.app.flush(PATIENCE)
    assert kit.stored() == [handle.id]


def test_a_full_store_is_no_case_for_the_outbox(kit: Kit) -> None:
    kit.store.fail("enqueue", error=StoreFull("no room"))
    with pytest.raises(StoreFull):
        kit.add.enqueue(1)
    assert kit.app.outbox.pending == 0


def test_a_lost_reply_is_no_case_for_the_outbox(kit: Kit, enqueue: Callable[..., Handle[Any]]) -> None:
    kit.store.lose_reply("enqueue", error=EnqueueUnknown(["x"], "cut off"))
    with pytest.raises(EnqueueUnknown):
        enqueue(1)
    assert kit.app.outbox.pending == 0
    assert len(kit.stored()) == 1


def test_durations_count_from_the_enqueue() -> None:
    assert _shortened(NewJob("a", "t"), 5_000) == NewJob("a", "t")
    waited = _shortened(NewJob("a", "t", delay=60_000, expires_in=100_000), 40_000)
    assert (waited.delay, waited.expires_in) == (20_000, 60_000)
    over = _shortened(NewJob("a", "t", delay=60_000, expires_in=1_000), 90_000)
    assert (over.delay, over.expires_in) == (0, 1)


# ── full ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_full_outbox_says_why_and_keeps_what_it_has() -> None:
    kit = Kit(limit=2)
    kit.store.down()
    ids = [kit.add.enqueue(n).id for n in range(2)]
    with pytest.raises(
        OutboxFull, match=r"at most 2 job\(s\) .* \(a test has taken the store away\)"
    ) as caught:
        kit.add.enqueue(2)
    assert isinstance(caught.value, EnqueueError)
    assert caught.value.limit == 2
    kit.store.up()
    assert kit.app.flush(PATIENCE)
    assert kit.stored() == ids


def test_many_that_do_not_all_have_room_are_refused_together(
    many: Callable[[Any], list[Handle[Any]]], kit: Kit
) -> None:
    kit.store.down()
    with pytest.raises(OutboxFull):
        many([kit.add.job(n) for n in range(101)])
    assert kit.app.outbox.pending == 0


async def test_of_concurrent_callers_as_many_are_kept_as_have_room() -> None:
    kit = Kit(limit=3)
    kit.store.down()
    got = await asyncio.gather(*(kit.add.aenqueue(n) for n in range(5)), return_exceptions=True)
    assert [type(one) for one in got] == [Handle] * 3 + [OutboxFull] * 2
    kit.store.up()
    assert await kit.app.aflush(PATIENCE)
    assert len((await kit.kept.list_jobs()).jobs) == 3


# ── what the store says in the end ───────────────────────────────────────────────────────────────


def last_of(kit: Kit) -> list[Any]:
    kit.app.events.close()
    return kit.told


def test_a_job_with_an_existing_id_is_reported(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    kit.add.using(id="one").enqueue(1)
    kit.listen()
    kit.store.down()
    kit.add.using(id="one").enqueue(2)
    free = kit.add.enqueue(3)
    kit.store.up()
    assert kit.app.flush(PATIENCE)
    refused, stored = last_of(kit)
    assert (type(refused), refused.id, refused.queue, refused.task) == (
        JobNotEnqueued,
        "one",
        "default",
        "add",
    )
    assert refused.error == "not stored: a job of this id exists"
    assert (type(stored), stored.id) == (JobEnqueued, free.id)
    assert "not stored: a job of this id exists: one (add)" in caplog.text


def test_a_duplicate_is_reported(kit: Kit) -> None:
    first = kit.add.using(unique=True).enqueue(1)
    kit.listen()
    kit.store.down()
    kit.add.using(unique=True).enqueue(1)
    kit.store.up()
    assert kit.app.flush(PATIENCE)
    (told,) = last_of(kit)
    assert told.error == f"not stored: the unique job {first.id} exists"


def test_a_closed_queue_is_reported(kit: Kit) -> None:
    asyncio.run(kit.kept.settings("default", closed=True))
    kit.listen()
    kit.store.down()
    handle = kit.add.enqueue(1)
    kit.store.up()
    assert kit.app.flush(PATIENCE)
    (told,) = last_of(kit)
    assert (told.id, told.error) == (handle.id, "not stored: its queue is closed")


def test_a_lost_reply_is_reported_and_the_call_is_not_repeated(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    kit.listen()
    kit.store.down()
    handle = kit.add.enqueue(1)
    kit.store.lose_reply("enqueue", error=EnqueueUnknown([handle.id], "cut off"))
    kit.store.up()
    assert kit.app.flush(PATIENCE)
    (told,) = last_of(kit)
    assert (type(told), told.id) == (JobNotEnqueued, handle.id)
    assert told.error == "perhaps stored: the reply was lost (cut off)"
    assert handle.id in caplog.text
    assert kit.stored() == [handle.id]


def test_too_few_replicas_are_reported_and_the_job_is_stored(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    kit.kept.statuses = {2: EnqueueStatus.UNREPLICATED}
    kit.listen()
    kit.store.down()
    handles = [kit.add.enqueue(n) for n in range(4)]
    kit.store.up()
    assert kit.app.flush(PATIENCE)
    assert [(type(event), event.id) for event in last_of(kit)] == [(JobEnqueued, h.id) for h in handles]
    assert f"job {handles[2].id} is stored, but a test says so" in caplog.text
    assert kit.stored() == [handle.id for handle in handles]


def test_what_one_part_of_a_store_could_not_do_is_sent_again(kit: Kit) -> None:
    kit.kept.statuses = {1: EnqueueStatus.FAILED, 2: EnqueueStatus.FAILED}
    kit.store.down()
    ids = [kit.add.enqueue(n).id for n in range(4)]
    kit.store.up()
    assert kit.app.flush(PATIENCE)
    assert kit.stored() == [ids[0], ids[3], ids[1], ids[2]]


def test_one_job_that_cannot_be_stored_does_not_hold_up_the_others(caplog: pytest.LogCaptureFixture) -> None:
    class Picky(InParts):
        """Cannot bear one payload."""

        def judged(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
            if any(job.payload == b'{"n":2}' for job in jobs):
                raise ValueError("not that one")
            return super().judged(jobs)

    kit = Kit(store=Picky())
    kit.store.down()
    ids = [kit.add.enqueue(n).id for n in range(5)]
    kit.store.up()
    assert kit.app.flush(PATIENCE)
    assert kit.stored() == [id for id in ids if id != ids[2]]
    assert f"not stored: not that one: {ids[2]} (add)" in caplog.text


# ── the end ──────────────────────────────────────────────────────────────────────────────────────


def test_closing_sends_what_waits(kit: Kit) -> None:
    kit.store.down()
    handle = kit.add.enqueue(1)
    kit.store.up()
    kit.app.close()
    assert kit.stored() == [handle.id]


def test_closing_says_what_is_lost_by_id(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    kit.listen()
    kit.store.down()
    ids = [kit.add.enqueue(n).id for n in range(3)]
    assert not kit.app.flush(0.2)
    kit.app.outbox.close(0.1)
    assert kit.app.outbox.pending == 0
    lost = last_of(kit)
    assert [event.id for event in lost] == ids
    assert {type(event) for event in lost} == {JobNotEnqueued}
    assert "given up: the store did not take them in time (a test has taken the store away)" in caplog.text
    assert all(id in caplog.text for id in ids)


def test_after_closing_it_serves_again(kit: Kit) -> None:
    kit.store.down()
    kit.add.enqueue(1)
    kit.app.outbox.close(0.05)
    again = kit.add.enqueue(2)
    kit.store.up()
    assert kit.app.flush(PATIENCE)
    assert kit.stored() == [again.id]


PROGRAM = """
import logging, sys
from penstock import App
from penstock.stores.memory import MemoryStore
from penstock.testing import FaultyStore

logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
store = FaultyStore(MemoryStore())
app = App(store=store.store, outbox=10)

@app.task(name="add")
def add(n: int) -> None: ...

store.down()
print("id", add.enqueue(1).id)
if sys.argv[1] == "back":
    store.up()
"""


@pytest.mark.slow
@pytest.mark.parametrize("back", ["back", "away"])
def test_a_process_that_ends_sends_what_waits_or_says_what_is_lost(back: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, back], capture_output=True, text=True, check=True, timeout=60
    )
    id = ran.stdout.split("id ")[1].split()[0]
    if back == "back":
        assert "the outbox is empty: 1 job(s) went to the store" in ran.stdout
        assert "job(s) from the outbox" not in ran.stdout
    else:
        assert (
            f"given up: the store did not take them in time (a test has taken the store away): {id}"
            in ran.stdout
        )


def test_a_fork_does_not_send_what_its_parent_has(kit: Kit) -> None:
    kit.store.down()
    handle = kit.add.enqueue(1)
    fork = multiprocessing.get_context("fork")
    pending = fork.SimpleQueue()
    child = fork.Process(target=lambda: pending.put(kit.app.outbox.pending))
    child.start()
    assert pending.get() == 0
    child.join(PATIENCE)
    assert kit.app.outbox.pending == 1
    kit.store.up()
    assert kit.app.flush(PATIENCE)
    assert kit.stored() == [handle.id]


async def test_flush_would_block_a_loop(kit: Kit) -> None:
    with pytest.raises(ConfigError, match="aflush"):
        kit.app.flush(1)
    kit.store.down()
    await kit.add.aenqueue(1)
    assert not await kit.app.aflush("100ms")


def test_an_outage_is_said_once(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    kit.store.down()
    for n in range(20):
        kit.add.enqueue(n)
    assert not kit.app.flush(0.3)
    kit.store.up()
    assert kit.app.flush(PATIENCE)
    said = [record.message for record in caplog.records if record.name == "penstock.outbox"]
    assert said[0].startswith("the store does not answer (a test has taken the store away)")
    assert len(said) <= 2


# ── parts that go wrong, with an outbox and without ──────────────────────────────────────────────


def test_what_one_part_could_not_do_waits(kit: Kit, many: Callable[[Any], list[Handle[Any]]]) -> None:
    kit.kept.statuses = {1: EnqueueStatus.FAILED}
    handles = many([kit.add.job(n) for n in range(3)])
    assert kit.app.flush(PATIENCE)
    assert kit.stored() == [handles[0].id, handles[2].id, handles[1].id]


def test_what_one_part_could_not_do_is_an_error_where_nothing_waits() -> None:
    kit = Kit(limit=0)
    kit.kept.statuses = {0: EnqueueStatus.UNKNOWN, 2: EnqueueStatus.FAILED}
    with pytest.raises(EnqueueManyError, match="2 of 3 jobs were not stored") as caught:
        kit.app.enqueue_many([kit.add.job(n) for n in range(3)])
    assert [handle is None for handle in caught.value.handles] == [True, False, True]
    assert [type(caught.value.errors[index]) for index in (0, 2)] == [EnqueueUnknown, StoreUnavailable]


def test_a_failed_one_without_room_stays_failed() -> None:
    kit = Kit(limit=1)
    kit.kept.statuses = {0: EnqueueStatus.FAILED, 2: EnqueueStatus.FAILED}
    with pytest.raises(EnqueueManyError) as caught:
        kit.app.enqueue_many([kit.add.job(n) for n in range(3)])
    assert set(caught.value.errors) == {0, 2}
    assert kit.app.outbox.pending == 0


async def test_missing_replicas_are_reported_to_each_caller_for_its_own_job() -> None:
    kit = Kit(limit=0)
    kit.listen()
    kit.kept.statuses = {0: EnqueueStatus.UNREPLICATED, 2: EnqueueStatus.FAILED}
    ids = ("a", "b", "c", "a")
    got = await asyncio.gather(*(kit.add.using(id=id).aenqueue(0) for id in ids), return_exceptions=True)
    assert [type(one) for one in got] == [NotReplicated, Handle, StoreUnavailable, JobExists]
    assert isinstance(got[0], NotReplicated)
    assert got[0].ids == ("a",)
    assert "a test says so" in str(got[0])
    assert [event.id for event in last_of(kit)] == ["a", "b"]


def test_a_bulk_enqueue_says_which_are_on_too_few_replicas(kit: Kit) -> None:
    calls = [kit.add.job(n) for n in range(3)]
    kit.kept.statuses = {0: EnqueueStatus.UNREPLICATED, 2: EnqueueStatus.UNREPLICATED}
    with pytest.raises(NotReplicated) as caught:
        kit.app.enqueue_many(calls)
    assert caught.value.ids == (calls[0].id, calls[2].id)
    assert kit.stored() == [call.id for call in calls]


def test_a_bulk_enqueue_has_the_handles_of_those_on_too_few_replicas() -> None:
    kit = Kit(limit=0)
    kit.kept.statuses = {0: EnqueueStatus.UNREPLICATED, 1: EnqueueStatus.FAILED}
    with pytest.raises(EnqueueManyError, match="1 of 3 jobs were not stored") as caught:
        kit.app.enqueue_many([kit.add.job(n) for n in range(3)])
    assert [handle is None for handle in caught.value.handles] == [False, True, False]
    assert [type(caught.value.errors[index]) for index in (0, 1)] == [NotReplicated, StoreUnavailable]
