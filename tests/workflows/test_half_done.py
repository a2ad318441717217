"""Flows that a release with older names of steps has left half done end right, or park with their reason.

`tests/workflows/half_done/make.py` has left them, with commit adc1d680: in steps, in loops, asleep, waiting,
in gathers, between the tries of a step, and while they were being undone. Their workers were killed.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import App, Worker
from penstock.core.job import Job, Ref, State
from penstock.stores.contract import StoredStep
from tests.servers import RedisServer
from tests.workflows.half_done.flows import HalfDone
from tests.workflows.half_done.make import FILE, KEYS, NAMESPACE, read_keys

#: What each flow returns.
RESULTS: dict[str, Any] = {
    "steps": ["first", "a", "b", "c"],
    "tries": "acted",
    "loop": ["y", "z", "sent"],  # what is before the stored cursor does not come again
    "cells": ["y2"],
    "sleeps": ["first", "last"],
    "in_thread": ["first", "last"],
    "waits": ["first", 11],
    "received": ["first", 7],
    "timed": None,
    "branches": [["left", 1], ["right", 2]],
    "naps_in_branches": ["left", "right"],
    "gathers": [0, 1, 2],
    "given": [0, 1, 2],
    "unrecorded": [0, 1, 2],
    "unrecorded-given": [0, 1, 2],
    "unrecorded-at-once": [
        0,
        1,
        2,
    ],  # it enqueues its jobs again
    "saga": "charge",
    "versioned": "last",
}
#: What the functions of their steps have still to do; nothing else, and each once.
DONE = {
    "steps": ["c"],
    "tries": ["acted"],
    "loop": ["z", "sent"],
    "sleeps": ["last"],
    "in_thread": ["last"],
    "naps_in_branches": ["left", "right"],
    "saga": ["charge"],
    "undoes": ["undo charge", "undo reserve"],
    "ends_early": ["undo reserve"],
    "versioned": ["last"],
}
#: Why the others are parked, or dead.
PARKED = {
    "other_version": "the flow began with version '1', and this release has '2'",
    "late_version": "the flow began without a version, and this release has '2'",
    "unreadable": "the stored value of step 'act' (act) no longer fits the code",
    "unfit": "the stored value of wait 'unfit' (wait!unfit) no longer fits the code",
}
DEAD = {"undoes": "undone after: sold out", "ends_early": "undone after: the last attempt"}


@pytest.fixture(params=["sqlite", "redis"])
def app(
    request: pytest.FixtureRequest, tmp_path: Path, new_redis: Callable[..., RedisServer]
) -> Iterator[App]:
    if request.param == "sqlite":
        with sqlite3.connect(tmp_path / "jobs.db") as cx:
            cx.executescript(FILE.read_text())
        cx.close()
        url = f"sqlite:///{tmp_path / 'jobs.db'}"
    else:
        server = new_redis()
        with server.patient_client() as client:
            read_keys(client, KEYS.read_text())
        url = server.url
    app = App(url, namespace=NAMESPACE)
    yield app
    app.close()


async def _jobs(app: App) -> dict[str, Job]:
    names = (*RESULTS, *PARKED, *DEAD)
    found = await app.store.get([Ref("default", name) for name in names])
    return {job.id: job for job in found if job is not None}


async def test_flows_that_an_older_release_left_half_done_end_right_or_park(app: App) -> None:
    half = HalfDone(app)
    before = await _jobs(app)
    assert Counter(job.state for job in before.values()) == {
        State.SUSPENDED: 16,
        State.RUNNING: 5,
        State.AVAILABLE: 2,
        State.RETRYABLE: 1,
    }
    await app.asignal("packed", key="waits", data=11)
    await app.asignal("left", data=1)
    await app.asignal("right", data=2)
    worker = Worker(app, concurrency=20)
    running = asyncio.ensure_future(worker.run())
    try:
        async with asyncio.timeout(15):
            while not all(map(_is_over, (jobs := await _jobs(app)).values())):
                await asyncio.sleep(0.02)
            results = [await _result_of(app, name) for name in ("chain", "chord")]
    finally:
        worker.stop()
        await running
    for state, reasons in ((State.PARKED, PARKED), (State.DEAD, DEAD)):
        told = {name: job.reason or "" for name, job in jobs.items() if job.state is state}
        assert told.keys() == reasons.keys()
        assert [name for name in reasons if reasons[name] not in told[name]] == [], told
    assert {name: msgspec.json.decode(jobs[name].result or b"{}") for name in RESULTS} == RESULTS
    done: dict[str, list[str]] = {}
    for job, act in half.done:
        done.setdefault(job, []).append(act)
    assert {job: done[job] for job in done if job in before} == DONE
    assert results == ["first last", 2 + 3 + 5]


async def _result_of(app: App, flow: str) -> Any:
    """The result of a flow of jobs, when it has ended."""
    while True:
        (info,) = await app.store.get_flows([Ref("default", flow)])
        assert info is not None
        if info.ended:
            (node,) = await app.store.flow_nodes(info.ref, [info.spec.result])
            assert node is not None
            return msgspec.json.decode(node.result or b"")
        await asyncio.sleep(0.02)


def _is_over(job: Job) -> bool:
    return job.ended or job.state is State.PARKED


async def test_steps_of_an_older_release_are_shown(app: App) -> None:
    steps: list[StoredStep] = await app.store.steps(Ref("default", "steps"))
    assert [step.name for step in steps] == ["first", "send", "send#2"]
