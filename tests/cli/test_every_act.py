"""Every act of `penstock jobs` on a job that a worker holds, a member of a batch and a node of a flow."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.job import State
from penstock.core.relations import BatchTerms
from penstock.inspector import JobAct
from penstock.stores.contract import Store
from tests.cli.conftest import Cli, fetch, put
from tests.store.flow_facts import flow_of, nodes_of
from tests.store.flow_facts import put as put_flow

OPTIONS = {"move": ("--to", "other"), "reschedule": ("--delay", "1h")}
#: The outcomes for the running job, the member of the batch and the node; else only the node is changed.
SINGLE = {
    "retry": "refused done done",
    "cancel": "asked refused done",
    "duplicate": "done done done",
    "move": "refused refused refused",
}
#: The numbers of jobs that are done, asked and refused, of all four; a bulk act leaves members alone.
BULK = {"cancel": (1, 1, 2), "duplicate": (2, 0, 2), "move": (0, 0, 4)}


@pytest.fixture
def node(store: Store) -> str:
    """The id of a node that is due later; before it, `held` runs, and `m` and `n` are in a batch."""

    async def flow() -> str:
        made = flow_of()
        await put_flow(store, made, nodes_of(made, 1, delay=60_000))
        return f"{made.id}.0"

    put(store, "held")
    fetch(store)
    put(store, "m", "n", batch_terms=BatchTerms("", 2), payload=b"1")
    return asyncio.run(flow())


@pytest.mark.parametrize("act", JobAct)
def test_an_act_by_id_says_what_became_of_each_job(penstock: Cli, store: Store, node: str, act: str) -> None:
    expected = SINGLE.get(act, "refused refused done").split()
    code = int("refused" in expected)
    shown = penstock.json("jobs", act, "held", "m", node, *OPTIONS.get(act, ()), code=code)
    assert [change["outcome"] for change in shown["jobs"]] == expected
    assert fetch(store, 9)[0].members == ("m", "n"), "the batch runs as before"
    (held,) = [job for job in asyncio.run(store.find("held")) if job.state is State.RUNNING]
    assert held.worker == "w1"
    (entry,) = penstock.json("audit")["entries"]
    assert (entry["act"], entry["to"]) == (f"jobs.{act}", f"held, m, {node}")


@pytest.mark.parametrize("act", JobAct)
def test_an_act_by_filter_counts_what_became_of_the_jobs(
    penstock: Cli, store: Store, node: str, act: str
) -> None:
    which = ("--all", "-q", "default", "-s", "running", "-s", "collecting", "-s", "scheduled", "--yes")
    done, asked, refused = BULK.get(act, (1, 0, 3))
    bulk = penstock.json("jobs", act, *which, *OPTIONS.get(act, ()), code=1)
    assert (bulk["done"], bulk["asked"], bulk["refused"], bulk["missing"]) == (done, asked, refused, 0)
    assert bulk["skipped"]["part of a batch: change the batch instead"] == 2
    acts = [entry["act"] for entry in penstock.json("audit")["entries"]]
    assert acts == ["bulk.end", f"bulk.{act}"]
    assert asyncio.run(store.find("held"))[0].state is State.RUNNING


@pytest.mark.parametrize("retry", [(), ("--retry",)])
def test_only_the_arguments_of_a_queued_job_that_is_in_no_batch_are_edited(
    penstock: Cli, node: str, retry: tuple[str, ...]
) -> None:
    for id, code, says in (
        ("held", 1, "not edited: it is running"),
        ("m", 1, "not edited: part of the batch m.batch, which has its arguments already"),
        (node, 0, "retried with new arguments" if retry else "edited (is scheduled)"),
    ):
        (change,) = penstock.json("jobs", "edit", id, "--args", "[7]", *retry, code=code)["jobs"]
        assert change["says"] == says
