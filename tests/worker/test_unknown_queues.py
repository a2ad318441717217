"""A worker whose queue is unknown reports it: a typo would look like a worker without work."""

from __future__ import annotations

import logging
from typing import cast

import pytest

from penstock.app.app import App
from penstock.core.job import RawJob
from penstock.errors import StoreCorrupt
from penstock.stores.contract import Store
from penstock.testing import FaultyStore
from tests.worker.conftest import at_work, in_a_burst, until


async def nothing() -> None: ...


async def read(job: RawJob) -> None: ...


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING, "penstock.worker")

    def found() -> list[str]:
        return [one for one in caplog.messages if "and to the store" in one]

    return found


@pytest.fixture
def mail(app: App) -> App:
    app.task(name="send", queue="mail")(nothing)
    app.task(name="other")(nothing)
    return app


async def test_a_queue_that_nobody_knows_is_warned_of_with_the_near_one(mail: App, warnings):
    async with at_work(mail, ["mial", "default"]) as worker:
        await until(lambda: bool(warnings()), "it is said")
    assert warnings() == [
        f"worker {worker.id} serves the queue 'mial', unknown to the app's tasks and to the store "
        "(did you mean 'mail'?): it waits there for jobs"
    ]


async def test_it_is_said_in_a_burst_too(mail: App, warnings):
    await in_a_burst(mail, ["mial"])
    assert len(warnings()) == 1


async def test_queues_of_tasks_and_of_handlers_and_of_the_store_are_known(mail: App, warnings):
    mail.enqueue_raw("legacy", b"1")
    mail.handler(queue="raw")(read)
    await in_a_burst(mail, ["mail", "default", "legacy", "raw"], concurrency=1)
    async with at_work(mail):
        pass
    assert warnings() == []


async def test_a_queue_of_a_near_name_in_the_store_is_named(mail: App, warnings):
    mail.enqueue_raw("critical", b"1")
    await in_a_burst(mail, ["crtical"])
    assert "(did you mean 'critical'?)" in warnings()[0]


async def test_many_unknown_queues_are_one_line_of_bounded_length(mail: App, warnings):
    await in_a_burst(mail, [f"q{n}" for n in range(1_000)])
    (line,) = warnings()
    assert len(line) < 2_000
    assert "and 990 more" in line


async def test_a_store_that_cannot_list_its_queues_stops_nothing(mail: App, warnings):

    faulty = FaultyStore(mail.store)
    faulty.fail("queues", error=StoreCorrupt("damaged"))
    mail.use_store(cast(Store, faulty))
    await in_a_burst(mail, ["mial"])
