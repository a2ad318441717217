"""Fleets whose processes have different keys: no job is lost, and none runs with the wrong data."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from penstock import App, Batch, Cancel, RawJob, Unique
from penstock.core.job import Job, NewJob, State
from penstock.core.relations import BatchTerms
from penstock.encryption import Cipher, Keyring, read_keys
from penstock.errors import ConfigError, JobDead, ResultCancelled, Undecodable
from penstock.stores.contract import Share
from penstock.stores.encrypted import encrypted_store
from penstock.workflows import chain
from tests.encryption.conftest import KEY, OTHER, NewApp
from tests.worker.conftest import at_work, becomes, ended, in_a_burst, until

WithGreet = Callable[..., App]


def id_of(key: str) -> str:
    return Keyring(read_keys(key)).first.id


async def the_payload(app: App, queue: str = "default") -> bytes:
    """What lies in the store, as this app sees it."""
    (job,) = (await app.store.list_jobs(queue=queue)).jobs
    return job.spec.payload


async def parked(app: App) -> int:
    return sum(one.jobs for one in await app.store.parked())


# ── workers without the key ──────────────────────────────────────────────────────────────────────


async def test_a_worker_without_the_key_sets_a_job_aside_for_one_that_has_it(with_greet: WithGreet) -> None:
    handle = await with_greet(key=KEY).tasks["greet"].aenqueue("ada")
    keyless, with_key = with_greet(), with_greet(key=KEY)
    async with at_work(keyless):
        job = await becomes(handle, State.PARKED)
        assert job.reason is not None
        assert "encrypted with the key " + id_of(KEY) in job.reason
        assert "PENSTOCK_KEY" in job.reason
        assert (job.attempt, job.errors) == (0, ())
        async with at_work(with_key):
            await ended(handle)
    assert await handle.aresult() == "hello ada"
    assert (keyless.state.greeted, with_key.state.greeted) == ([], ["ada"])


async def test_so_does_one_with_another_key(with_greet: WithGreet) -> None:
    handle = await with_greet(key=KEY).tasks["greet"].aenqueue("ada")
    await in_a_burst(with_greet(key=OTHER))
    job = await handle.ajob()
    assert job is not None
    assert job.state is State.PARKED
    assert job.reason is not None
    assert id_of(KEY) in job.reason
    assert id_of(OTHER) in job.reason
    both = with_greet(key=[OTHER, KEY])
    await in_a_burst(both)
    assert await both.handle(handle.id).aresult() == "hello ada"


async def test_a_worker_that_cannot_read_a_job_does_not_take_it_again_and_again(
    with_greet: WithGreet, caplog: pytest.LogCaptureFixture
) -> None:
    app, keyless = with_greet(key=KEY), with_greet()
    with caplog.at_level(logging.WARNING, "penstock.worker"):
        async with at_work(keyless) as worker:
            handles = [await app.tasks["greet"].aenqueue(f"ada {i}") for i in range(20)]
            for handle in handles:
                await becomes(handle, State.PARKED)
            await until(lambda: worker.info().tasks == (), "it says that it has not that task")
            clear = await keyless.tasks["greet"].aenqueue("grace")
            assert await clear.aresult(timeout=60) == "hello grace"
            met = worker._services.unknown_tasks.count if worker._services else 0
            again = await keyless.tasks["greet"].aenqueue("linus")
            assert await again.aresult(timeout=60) == "hello linus"
            assert worker._services is not None
            assert worker._services.unknown_tasks.count == met
    assert await parked(app) == 20
    lines = [record.message for record in caplog.records if "cannot be read here" in record.message]
    assert 1 <= len(lines) <= 3, "a line for each would hide all others"


async def test_a_raw_handler_without_the_key_never_sees_encrypted_bytes(new_app: NewApp) -> None:
    seen: list[bytes] = []

    def with_handler(**options: Any) -> App:
        app = new_app(**options)

        @app.handler(queue="raw")
        async def handle(job: RawJob) -> None:
            seen.append(job.payload)

        return app

    with_key = with_handler(key=KEY)
    handle = await with_key.aenqueue_raw("raw", b"\x00 any bytes", retention="1h")
    async with at_work(with_handler()):
        await becomes(handle, State.PARKED)
        assert seen == []
        async with at_work(with_key):
            await ended(handle)
    assert seen == [b"\x00 any bytes"]


async def test_nor_does_who_takes_a_job(with_greet: WithGreet) -> None:
    with_key, keyless = with_greet(key=KEY), with_greet()
    handle = await with_key.tasks["greet"].aenqueue("ada")
    async with keyless.take(wait="100ms") as job:
        assert job is None
    await becomes(handle, State.PARKED)
    await in_a_burst(with_key)
    assert await handle.aresult() == "hello ada"


async def test_a_job_never_gets_an_encrypted_result_of_its_flow(with_greet: WithGreet) -> None:
    old, both = with_greet(key=KEY), with_greet(key=[OTHER, KEY])
    greet = old.tasks["greet"]
    handle = await chain(greet.job("ada"), greet.using(queue="late")).aenqueue()
    await in_a_burst(both, queues=["default"])
    await in_a_burst(old, queues=["late"])
    assert old.state.greeted == []
    (job,) = (await old.store.list_jobs(queue="late")).jobs
    assert job.state is State.PARKED
    assert job.reason is not None
    assert id_of(OTHER) in job.reason
    async with old.take("late", wait="100ms") as taken:
        assert taken is None
    await in_a_burst(both, queues=["late"])
    assert both.state.greeted == ["ada", "hello ada"]
    assert await both.store.get_flows([handle.ref]) != [None]


async def test_a_batch_with_a_member_that_does_not_open_is_set_aside_whole(new_app: NewApp) -> None:
    def collecting(**options: Any) -> App:
        app = new_app(**options)

        @app.task(name="collect", batch=Batch(max_size=2))
        def collect(docs: list[dict[str, str]]) -> None:
            app.state.docs = docs

        return app

    with_key, keyless = collecting(key=KEY), collecting()
    first = await keyless.tasks["collect"].aenqueue({"x": "clear"})
    await with_key.tasks["collect"].aenqueue({"x": "encrypted"})
    batch = f"{first.id}.batch"
    await in_a_burst(keyless)
    assert (await becomes(with_key.handle(batch), State.PARKED)).attempt == 0
    await in_a_burst(with_key)
    assert with_key.state.docs == [{"x": "clear"}, {"x": "encrypted"}]
    assert not hasattr(keyless.state, "docs")


async def test_an_element_that_contains_what_looks_encrypted_is_an_element(new_app: NewApp) -> None:
    app = new_app()

    @app.task(name="collect", batch=Batch(max_size=1), retention="1h")
    def collect(docs: list[dict[str, dict[str, str]]]) -> str:
        return docs[0]["x"]["$sealed"]

    handle = await app.tasks["collect"].aenqueue({"x": {"$sealed": "1.0000"}})
    await in_a_burst(app)
    assert (await ended(handle)).state is State.COMPLETED


async def test_what_looks_encrypted_and_was_encrypted_is_what_it_was(new_app: NewApp) -> None:
    """A caller's own bytes cannot pretend, once opened, that they were not."""
    app = new_app(key=KEY)
    seen: list[bytes] = []

    @app.handler(queue="raw")
    async def handle(job: RawJob) -> None:
        seen.append(job.payload)

    mimicry = b'{"$sealed":"1.01234567.AAAA"}'
    await app.aenqueue_raw("raw", mimicry)
    await in_a_burst(app)
    assert seen == [mimicry]


# ── rotation, and jobs from before there was a key ───────────────────────────────────────────────


async def test_keys_are_changed_without_losing_a_job(with_greet: WithGreet) -> None:
    before = await with_greet(key=OTHER).tasks["greet"].aenqueue("ada")
    both = with_greet(key=[KEY, OTHER])
    after = await both.tasks["greet"].aenqueue("grace")
    encrypted = {job.id: job.spec.payload for job in (await with_greet().store.list_jobs()).jobs}
    assert id_of(OTHER).encode() in encrypted[before.id]
    assert id_of(KEY).encode() in encrypted[after.id]
    await in_a_burst(both)
    now = with_greet(key=KEY)
    assert await now.handle(before.id).aresult() == "hello ada"
    assert await now.handle(after.id).aresult() == "hello grace"


async def test_clear_jobs_are_read_unless_a_key_is_required(with_greet: WithGreet) -> None:
    handle = await with_greet().tasks["greet"].aenqueue("ada")
    strict = with_greet(key=KEY, key_required=True)
    await in_a_burst(strict)
    job = await becomes(handle, State.PARKED)
    assert "key_required" in (job.reason or "")
    assert strict.state.greeted == []
    await in_a_burst(with_greet(key=KEY))
    assert await with_greet(key=KEY).handle(handle.id).aresult() == "hello ada"


async def test_a_required_key_must_be_there(new_app: NewApp) -> None:
    with pytest.raises(ConfigError, match="key_required=True, and there is no key"):
        new_app(key_required=True)


# ── what was changed, or moved ───────────────────────────────────────────────────────────────────


async def forged(app: App, keyless: App, **changes: Any) -> Job:
    """A copy of the only job, put there by somebody without the key; as a worker with it leaves it."""
    (job,) = (await keyless.store.list_jobs(queue="default")).jobs
    new = replace(NewJob("forged", "greet", job.spec.payload), **changes)
    await keyless.store.enqueue([new])
    await in_a_burst(app, queues=[new.queue])
    (found,) = await app.store.get([new.ref])
    assert found is not None
    return found


@pytest.mark.parametrize("changes", [{}, {"queue": "other"}, {"task": "dismiss"}])
async def test_encrypted_arguments_do_not_open_in_another_job(
    with_greet: WithGreet, changes: dict[str, str]
) -> None:
    app = with_greet(key=KEY)
    app.task(name="dismiss")(never_runs)
    await app.tasks["greet"].aenqueue("ada")
    job = await forged(app, with_greet(), **changes)
    assert job.state is State.PARKED
    assert "moved from another" in (job.reason or "")


def never_runs(name: str) -> None:
    raise AssertionError("a forged job has run")


async def test_a_call_is_no_element_of_a_batch_that_somebody_made_up(with_greet: WithGreet) -> None:
    """Its task would be called with a list of what it was called with."""
    app = with_greet(key=KEY, key_required=True)
    handle = await app.tasks["greet"].aenqueue("ada")
    payload = await the_payload(with_greet())
    batch = Job(
        NewJob("batch", "greet", b"[[" + payload + b"]]", batch_terms=BatchTerms("", 1, 0)),
        State.RUNNING,
        members=(handle.id,),
    )
    app_store: Any = app.store
    for one in (batch, replace(batch, spec=replace(batch.spec, batch_terms=None))):
        (decrypted,) = app_store._cipher.decrypt_jobs([one])
        assert "moved from another" in getattr(decrypted.spec.payload, "why", "it opened")


async def test_nor_in_another_namespace(with_greet: WithGreet) -> None:
    app = with_greet(key=KEY)
    handle = await app.tasks["greet"].aenqueue("ada")
    keys = Cipher(Keyring(read_keys(KEY)))
    elsewhere = encrypted_store(with_greet().store, keys, "elsewhere")
    (job,) = await elsewhere.get([handle.ref])
    assert job is not None
    assert "moved from another" in (getattr(job.spec.payload, "why", ""))


async def test_a_changed_ciphertext_is_refused(with_greet: WithGreet) -> None:
    app, keyless = with_greet(key=KEY), with_greet()
    await app.tasks["greet"].aenqueue("ada")
    payload = bytearray(await the_payload(keyless))
    at = len(payload) - 10
    payload[at] = ord("A") if payload[at] != ord("A") else ord("B")
    assert (await forged(app, keyless, payload=bytes(payload))).state is State.PARKED


async def test_a_call_that_replaces_the_arguments_of_another_is_read(new_app: NewApp) -> None:
    app = new_app(key=KEY)

    @app.task(name="index", unique=Unique(by="page", on_conflict="replace"), retention="1h")
    def index(page: str, text: str) -> str:
        return text

    first = await app.tasks["index"].using(delay="1h").aenqueue("a", "old")
    second = await app.tasks["index"].aenqueue("a", "new")
    assert second.id == first.id
    await in_a_burst(app)
    assert await first.aresult() == "new"


async def test_so_is_one_that_replaces_the_arguments_of_a_batchs_member(new_app: NewApp) -> None:
    app = new_app(key=KEY)
    once = Unique(on_conflict="replace", key="one", replace="arguments")

    @app.task(name="collect", batch=Batch(max_size=9, max_wait="20ms"), unique=once)
    def collect(docs: list[str]) -> None:
        app.state.docs = docs

    for text in ("old", "new"):
        await app.tasks["collect"].aenqueue(text)
    await asyncio.sleep(0.03)
    await in_a_burst(app)
    assert app.state.docs == ["new"]


async def test_unique_jobs_are_unique_across_apps_with_the_key(with_greet: WithGreet) -> None:
    apps = [with_greet(key=KEY), with_greet(key=KEY)]
    handles = [await app.tasks["greet"].using(unique=True).aenqueue("ada") for app in apps]
    assert [handle.existing for handle in handles] == [False, True]


# ── results ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_result_without_the_key_says_what_it_lacks(with_greet: WithGreet) -> None:
    app = with_greet(key=KEY)
    handle = await app.tasks["greet"].aenqueue("ada")
    await in_a_burst(app)
    for other, why in ((with_greet(), "PENSTOCK_KEY"), (with_greet(key=OTHER), id_of(KEY))):
        with pytest.raises(Undecodable, match=why):
            await other.handle(handle.id, task="greet").aresult()
        with pytest.raises(Undecodable, match=why):
            await other.handle(handle.id).aresult()


async def test_results_come_also_one_by_one(with_greet: WithGreet) -> None:
    app = with_greet(key=KEY)
    handles = [await app.tasks["greet"].aenqueue(name) for name in ("ada", "grace")]
    async with at_work(app):
        assert await app.aresults(handles, timeout=5) == ["hello ada", "hello grace"]
        found = {handle.id: await handle.aresult() async for handle in app.as_completed(handles, timeout=5)}
    assert sorted(found.values()) == ["hello ada", "hello grace"]


def test_sync_calls_open_the_store_too(with_greet: WithGreet) -> None:
    app = with_greet(key=KEY)
    handle = app.tasks["greet"].enqueue("ada")
    asyncio.run(in_a_burst(app))
    assert handle.result() == "hello ada"
    assert app.results([handle]) == ["hello ada"]
    assert [one.result() for one in app.as_completed([handle])] == ["hello ada"]


async def test_the_reason_of_a_failure_is_shown_without_encrypted_values(new_app: NewApp) -> None:
    app, keyless = new_app(key=KEY), new_app()

    @app.task(name="fail", max_attempts=1, retention="1h")
    def fail(why: str) -> None:
        raise (Cancel if why == "cancel" else ValueError)(why)

    handles = [await app.tasks["fail"].aenqueue(why) for why in ("cancel", "boom")]
    await in_a_burst(app)
    for handle, error in zip(handles, (ResultCancelled, JobDead), strict=True):
        with pytest.raises(error, match=f"encrypted with the key {id_of(KEY)}") as told:
            await keyless.handle(handle.id).aresult()
        assert "$sealed" not in str(told.value)


# ── signed ───────────────────────────────────────────────────────────────────────────────────────


async def test_signed_jobs_are_clear_and_cannot_be_forged(with_greet: WithGreet) -> None:
    app, keyless = with_greet(key=KEY, encrypt=False), with_greet()
    handle = await app.tasks["greet"].aenqueue("ada")
    payload = await the_payload(keyless)
    assert payload.startswith(b'{"$signed":"1.' + id_of(KEY).encode())
    assert payload.endswith(b',"is":{"name":"ada"}}')
    job = await forged(app, keyless, payload=payload.replace(b"ada", b"eve"), id="forged")
    assert job.state is State.PARKED
    assert "was changed" in (job.reason or "")
    assert await handle.aresult() == "hello ada"


async def test_signed_and_encrypted_jobs_are_read_by_the_same_workers(with_greet: WithGreet) -> None:
    signing, encrypting = with_greet(key=KEY, encrypt=False), with_greet(key=KEY, key_required=True)
    handles = [await app.tasks["greet"].aenqueue("ada") for app in (signing, encrypting)]
    await in_a_burst(encrypting)
    assert [await encrypting.handle(one.id).aresult() for one in handles] == ["hello ada"] * 2


# ── periodic entries ─────────────────────────────────────────────────────────────────────────────


async def test_an_entry_that_is_put_again_is_the_same(new_app: NewApp) -> None:
    def with_entry() -> App:
        app = new_app(key=KEY)

        @app.periodic(every="1h", kwargs={"name": "ada"})
        @app.task(name="greet")
        def greet(name: str) -> None: ...

        return app

    puts = []
    for app in (with_entry(), with_entry()):
        puts += await app.store.put_entries(list(app.periodic_entries.values()))
    assert puts[0].revision == puts[1].revision
    assert puts[0].spec.job.payload == b'{"name":"ada"}'


async def test_a_worker_without_the_key_leaves_an_entry_to_those_who_have_it(with_greet: WithGreet) -> None:
    from penstock.core.schedule import NewEntry, Schedule
    from penstock.maintenance.periodic_enqueuer import PeriodicEnqueuer

    with_key, keyless = with_greet(key=KEY), with_greet()
    job = NewJob("", "greet", b'{"name":"ada"}')
    await with_key.store.put_entries([NewEntry("hourly", job, Schedule.of(every="1s"))])
    await asyncio.sleep(1.05)  # the clock of an app's store is the real one
    await PeriodicEnqueuer(keyless.store, ["default"], {}).tick()
    assert (await keyless.store.list_jobs()).jobs == []
    await PeriodicEnqueuer(with_key.store, ["default"], {}).tick()
    await in_a_burst(with_key)
    assert "ada" in with_key.state.greeted


async def test_an_encrypted_entry_is_triggered_only_with_the_key(with_greet: WithGreet) -> None:
    from penstock.core.schedule import NewEntry, Schedule
    from penstock.inspector import Inspector

    with_key, keyless = with_greet(key=KEY), with_greet()
    job = NewJob("", "greet", b'{"name":"ada"}')
    await with_key.store.put_entries([NewEntry("daily", job, Schedule("0 0 * * *"))])
    with pytest.raises(ConfigError, match=f"'daily' cannot be triggered here: .* the key {id_of(KEY)}"):
        await Inspector(keyless.store).trigger_entry("daily")
    assert (await keyless.store.list_jobs()).jobs == []
    await Inspector(with_key.store).trigger_entry("daily")
    await in_a_burst(with_key)
    assert with_key.state.greeted == ["ada"]


# ── the worker's offers ──────────────────────────────────────────────────────────────────────────


async def test_jobs_that_arrive_while_a_worker_waits_are_decrypted_too(with_greet: WithGreet) -> None:
    app = with_greet(key=KEY)
    async with at_work(app):
        for i in range(5):
            handle = await app.tasks["greet"].aenqueue(f"ada {i}")
            assert await handle.aresult(timeout=60) == f"hello ada {i}"


async def test_a_lost_encrypted_job_is_decrypted_by_its_reclaimer(with_greet: WithGreet) -> None:
    app = with_greet(key=KEY)
    await app.tasks["greet"].aenqueue("ada")
    terms = {"limit": 1, "lease": 60_000, "token": "t"}
    await with_greet().store.fetch([Share("default", 1, 1)], worker="gone", **terms)
    found = await app.store.reclaim(["default"], worker="here", of=["gone"], **terms)
    assert [job.spec.payload for job in found.jobs] == [b'{"name":"ada"}']
