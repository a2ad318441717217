"""`penstock jobs steps` and `penstock flows signals`: what a flow remembers, and signals not received."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.job import Ref, State
from penstock.core.lifecycle import Transition
from penstock.stores.contract import Signal, SignalWait, StepRecord, Store
from tests.cli.conftest import IN_A_FILE, Cli, fetch, put
from tests.store.facts import end

pytestmark = IN_A_FILE
LEASE = 60_000
FLOW = Ref("default", "f")


@pytest.fixture
def parked(store: Store) -> str:
    """The id of a job with steps of all kinds, which is parked."""

    async def remember() -> None:
        (job,) = fetched
        stored = {
            "!version": b"1",
            "!step/charge": b'charge 1a\n{"id":7}',
            "!step/charge!1": b"1700000000000",
            "!step/a/reserve=x#2!failed": b'reserve 2b\n{"name":"SoldOut","text":"no box"}',
            "!sleep/": b"sleep 5\n1700000000000",
            "!wait/packed=7!of": b'{"type":"array","items":{"type":"integer"}}',
            "!wait/packed=7!aside1": b'{"data":"no list","why":"Expected `array`","at":1700000000000}',
        }
        records = [StepRecord(job.lease, name, value, LEASE) for name, value in stored.items()]
        await store.record_steps(records)
        await store.await_signals([SignalWait(job.lease, "!wait/packed=7", "packed", "7", LEASE)])
        await end(store, job, Transition(State.PARKED, charge=False, reason="the code no longer asks"))

    put(store, "f")
    fetched = fetch(store)
    asyncio.run(remember())
    return "f"


def steps_of(penstock: Cli, id: str) -> dict[str, dict[str, object]]:
    return {step["stored"]: step for step in penstock.json("jobs", "steps", id)["steps"]}


def test_steps_are_listed(penstock: Cli, parked: str) -> None:
    lines = [line.split("  ") for line in penstock.ok("jobs", "steps", parked).splitlines()[1:]]
    shown = {line[0]: " ".join(line[1:]) for line in lines}
    assert "1 failed try" in shown["step/charge"]
    assert "failed: SoldOut: no box" in shown["step/a/reserve=x#2"]
    assert "waits" in shown["wait/packed=7"]
    assert "a signal set aside: Expected `array`" in shown["wait/packed=7"]
    assert steps_of(penstock, parked)["!step/charge"]["value"] == {"id": 7}
    assert penstock.json("jobs", "steps", "list", parked) == penstock.json("jobs", "steps", parked)
    assert "there is no job" in penstock.says(3, "jobs", "steps", "none")


def test_a_step_is_dropped_with_what_belongs_to_it(penstock: Cli, store: Store, parked: str) -> None:
    says = penstock.ok("jobs", "steps", "drop", parked, "step/charge")
    assert "dropped step/charge; it is parked: `penstock jobs retry default/f` runs it again" in says
    names = {step.name for step in asyncio.run(store.steps(FLOW))}
    assert not {"!step/charge", "!step/charge!1"} & names
    penstock.ok("jobs", "steps", "drop", parked, "!wait/packed=7")
    assert asyncio.run(store.signal_waiters("packed", "7")) == []
    assert "!wait/packed=7" not in steps_of(penstock, parked)
    entry, *_ = penstock.json("audit", "--act", "jobs.drop-step")["entries"]
    assert (entry["to"], entry["facts"]) == ("f", {"step": "!wait/packed=7"})
    assert "retried (was parked)" in penstock.ok("jobs", "retry", parked)


def test_the_value_of_a_step_is_replaced_behind_its_line(penstock: Cli, store: Store, parked: str) -> None:
    penstock.ok("jobs", "steps", "set", parked, "step/charge", '{"id": 8}')
    penstock.ok("jobs", "steps", "set", parked, "step/a/reserve=x#2", '"box 1"')
    penstock.ok("jobs", "steps", "set", parked, "wait/packed=7", "[1, 2]")
    values = {step.name: step.value for step in asyncio.run(store.steps(FLOW))}
    assert values["!step/charge"] == b'charge 1a\n{"id": 8}'
    assert values["!step/a/reserve=x#2"] == b'reserve 2b\n"box 1"'
    assert values["!wait/packed=7"] == b"[1, 2]"
    assert "!step/a/reserve=x#2!failed" not in values
    assert asyncio.run(store.signal_waiters("packed", "7")) == []


@pytest.mark.parametrize(
    ("code", "args", "says"),
    [
        (3, ("drop", "f", "step/charg"), "no step 'step/charg' (did you mean 'step/charge'?)"),
        (3, ("set", "f", "step/none", "1"), "it has no step 'step/none'"),
        (3, ("drop", "none", "step/charge"), "there is no job"),
        (2, ("set", "f", "step/charge", "{"), "the value of step/charge is not JSON"),
        (2, ("set", "f", "wait/packed=7", '[1, "b"]'), "expected integer, got string - at `$[1]`"),
        (1, ("set", "f", "sleep/", "1"), "a timer has no value to replace: drop it"),
    ],
)
def test_what_cannot_be_edited_is_said(
    penstock: Cli, store: Store, parked: str, code: int, args: tuple[str, ...], says: str
) -> None:
    before = asyncio.run(store.steps(FLOW))
    result = penstock("jobs", "steps", *args)
    assert (result.exit_code, result.stdout) == (code, "")
    assert says in result.stderr
    assert asyncio.run(store.steps(FLOW)) == before


def test_the_steps_of_a_running_job_stay(penstock: Cli, store: Store) -> None:
    put(store, "r")
    (job,) = fetch(store)
    asyncio.run(store.record_steps([StepRecord(job.lease, "charge", b"1", LEASE)]))
    (change,) = penstock.json("jobs", "steps", "drop", "r", "charge", code=1)["jobs"]
    assert (change["outcome"], change["says"][:26]) == ("refused", "not changed: it is running")
    asyncio.run(end(store, job, Transition(State.SUSPENDED, delay=60_000, charge=False)))
    assert "dropped charge; it runs again at once" in penstock.ok("jobs", "steps", "drop", "r", "charge")


def test_a_signal_that_does_not_fit_a_wait_is_not_sent(penstock: Cli, store: Store, parked: str) -> None:
    says = penstock.says(2, "flows", "signal", "packed", "--key", "7", "--data", '{"n": 1}')
    assert "its data does not fit what job f waits for: expected array, got object; nothing was sent" in says
    assert penstock.json("flows", "signals")["signals"] == []
    assert penstock.json("flows", "signal", "packed", "--key", "7", "--data", "[1]") == {"status": "received"}


def test_stored_signals_are_listed_replaced_and_dropped(penstock: Cli, store: Store) -> None:
    sent = [Signal("packed", "7", b"1"), Signal("packed", "8", b"2", flow="o"), Signal("other", "", b"{}")]
    asyncio.run(store.send_signals(sent))
    lines = penstock.ok("flows", "signals").splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "other", "packed", "packed"]
    assert len(penstock.ok("flows", "signals", "--limit", "1").splitlines()) == 2
    (eight,) = penstock.json("flows", "signals", "--name", "packed", "--key", "8")["signals"]
    assert (eight["flow"], eight["data"], eight["size"]) == ("o", 2, 1)
    replaced = ("flows", "signal", "packed", "--key", "7", "--data", "9")
    assert penstock.json(*replaced) == {"status": "exists"}
    assert penstock.json(*replaced, "--replace") == {"status": "replaced"}
    (seven,) = penstock.json("flows", "signals", "--name", "packed", "--key", "7")["signals"]
    assert seven["data"] == 9
    assert "stored of this name: --key 7; --key 8 --flow o" in penstock.says(
        3, "flows", "signals", "drop", "packed"
    )
    assert "dropped" in penstock.ok("flows", "signals", "drop", "packed", "--key", "8", "--flow", "o")
    penstock.says(3, "flows", "signals", "drop", "packed", "--key", "8", "--flow", "o")
    (entry,) = penstock.json("audit", "--act", "flows.drop-signal")["entries"]
    assert (entry["to"], entry["facts"]) == ("o", {"name": "packed", "key": "8"})
    assert [one["name"] for one in penstock.json("flows", "signals")["signals"]] == ["other", "packed"]
