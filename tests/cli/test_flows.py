"""`penstock flows` lists, shows, cancels and retries flows."""

from __future__ import annotations

import asyncio

from penstock.core.flow import FlowPolicy
from tests.cli.conftest import IN_A_FILE
from tests.store.flow_facts import flow_of, nodes_of

pytestmark = IN_A_FILE


def stored(store):
    flow = flow_of(name="the import", policy=FlowPolicy.STOP)
    asyncio.run(store.put_flow(flow, nodes_of(flow, 4, [(0, 2), (1, 2), (2, 3)], joins=[2])))
    return flow


def test_flows_are_listed_and_shown(penstock, store):
    flow = stored(store)
    (line,) = penstock.ok("flows", "list").splitlines()[1:]
    assert line.startswith(f"default/{flow.id}")
    assert "2 active, 2 waiting" in line
    shown = penstock.ok("flows", "show", f"default/{flow.id}")
    assert "the import" in shown
    assert "(join)" in shown
    told = penstock.json("flows", "show", f"default/{flow.id}")
    assert [node["next"] for node in told["nodes"]] == [[2], [2], [3], []]
    diagram = penstock.ok("flows", "show", f"default/{flow.id}", "--mermaid")
    assert "n2 --> n3" in diagram


def test_a_flow_is_cancelled_and_retried(penstock, store):
    flow = stored(store)
    assert "cancelled" in penstock.ok("flows", "cancel", f"default/{flow.id}")
    assert "running (2 active, 2 waiting)" in penstock.ok("flows", "retry", f"default/{flow.id}")
    penstock.says(3, "flows", "cancel", f"default/{flow.id}", "default/nothing")  # then it cancels neither
    acts = [(one["act"], one["to"], one["facts"]) for one in penstock.json("audit")["entries"]]
    assert acts == [("flows.retry", f"default/{flow.id}", {}), ("flows.cancel", f"default/{flow.id}", {})]


def test_a_flow_runs_again_from_a_node(penstock, store):
    flow = stored(store)
    penstock.ok("flows", "cancel", f"default/{flow.id}")
    assert "no job that has run" in penstock.says(2, "flows", "retry", f"default/{flow.id}", "--from", "2")
    again = penstock.ok("flows", "retry", f"default/{flow.id}", "--from", "1")
    assert "running (2 active, 2 waiting)" in again
    (entry, *_) = penstock.json("audit")["entries"]
    assert (entry["act"], entry["facts"]) == ("flows.rerun", {"node": "1"})


def test_a_flow_that_is_not_there_is_said(penstock, store):
    assert "there is no flow" in penstock.says(3, "flows", "show", "default/nothing")


def test_a_signal_is_sent(penstock, store):
    assert "stored" in penstock.ok("flows", "signal", "packed", "--key", "7", "--data", '{"parcels": 2}')
    (entry,) = penstock.json("audit")["entries"]
    facts = {"name": "packed", "key": "7", "data": "(14 characters)"}
    assert (entry["act"], entry["facts"]) == ("flows.signal", facts)
    assert penstock.json("flows", "signal", "packed", "--key", "7") == {"status": "exists"}
    assert "has no '!' or '#'" in penstock.says(2, "flows", "signal", "a#b")
    assert "no JSON" in penstock.says(2, "flows", "signal", "packed", "--data", "{")
