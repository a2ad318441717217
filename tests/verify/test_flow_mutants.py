"""Flows of a run end as the reference evaluator says, and the checker finds the planted bug of each mutant.

The tasks are those of a run, on a store in memory, without faults: each bug shows without one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import msgspec
import pytest

from penstock import App, Worker
from penstock.core.flow import NodeState
from penstock.core.flow_engine import FlowEngine
from penstock.core.job import NewJob, Ref
from penstock.core.step_names import split_value, with_head
from penstock.stores.contract import (
    RecordedStep,
    RecordStatus,
    Signal,
    SignalStatus,
    StepRecord,
    Store,
    StoredStep,
)
from penstock.stores.sql.verbs.flow_session import SqlFlowSession
from penstock.verify.ledger import Verdict, acheck
from penstock.verify.ledger.facts import FlowExpected, timestamp
from penstock.verify.ledger.recorded_store import recorded_store
from penstock.verify.ledger.story import label_of
from penstock.verify.workload import flow_load
from penstock.verify.workload.application import app, ledger
from penstock.verify.workload.flow_load import FLOW_SHAPES, PlannedFlow
from penstock.workflows.step_plans import StepOptions, StepPlans
from tests.doubles import Double
from tests.verify.ledger.honest_ledger import promises

Run = Callable[..., Verdict]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Enqueues flows, runs them with a worker until nothing is left, and checks the ledger."""
    monkeypatch.setattr(flow_load, "_nap", lambda rng: 0.02)
    monkeypatch.setattr(flow_load, "_short", lambda rng: rng.choice((0.0, 0.02)))
    monkeypatch.setattr(ledger, "directory", tmp_path)
    before = app.store

    def run(*planned: PlannedFlow, mutant: Callable[[Store], Any] = lambda store: store) -> Verdict:
        store = App(f"memory://{uuid4().hex}").store
        app.use_store(recorded_store(cast(Store, mutant(store)), ledger))
        return asyncio.run(_run(planned, store))

    yield run
    app.use_store(before)
    ledger.close()


async def _run(planned: Sequence[PlannedFlow], store: Store) -> Verdict:
    for n, one in enumerate(planned):
        result = "" if one.result is None else msgspec.json.encode(one.result).decode()
        ledger.write(FlowExpected(*timestamp(), f"flow-{n}", one.shape, one.ends, result))
        handle = await one.canvas.aenqueue(id=f"flow-{n}", policy=one.policy)
        if one.cancel_after is not None:
            await handle.acancel()
    async with asyncio.timeout(60):
        while True:
            await Worker(app, queues=["flows", "main", "slow"], burst=True, concurrency=50).run()
            if not await store.advance_flows():
                return await acheck(ledger.directory, store)


def _drawn(name: str, seed: int = 0) -> PlannedFlow:
    (shape,) = [one for one in FLOW_SHAPES if getattr(one, "__name__", "") == f"_{name}"]
    return shape(random.Random(f"{name}/{seed}"))


def test_flows_of_every_shape_end_as_computed_beforehand(run: Run) -> None:
    shapes = [getattr(one, "__name__", "").removeprefix("_") for one in FLOW_SHAPES]
    verdict = run(*(_drawn(shape, seed) for shape in shapes for seed in range(4))).require()
    flows = verdict.flows
    assert (flows.stored, flows.hanging, verdict.lost, verdict.unfinished) == (4 * len(shapes), 0, 0, 0)
    assert min(flows.completed, flows.failed, flows.cancelled, flows.suspended) > 0
    assert min(flows.steps, flows.signals, flows.undone) > 0
    assert flows.effects >= flows.steps + flows.undone  # failed steps have effects, too


def test_a_wrong_result_is_found(run: Run) -> None:
    chained = _drawn("chained")
    verdict = run(PlannedFlow("chain", chained.canvas, chained.result + 1))
    assert [(one.promise, one.id) for one in verdict.findings] == [("flows", "flow-0")]
    assert "expected was" in verdict.findings[0].says


def test_a_flow_that_fails_without_a_reason_is_found(run: Run) -> None:
    failing = PlannedFlow("chain", _drawn("saga", 1).canvas, None, ("cancelled",))
    assert promises(run(failing).findings) == {"flows"}


def test_a_lost_count_of_a_parent_is_found(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    spread, lost = FlowEngine._spread, []

    def forgets_one(self: FlowEngine, budget: int) -> int:
        if lost or self.flow.counts.get(NodeState.COMPLETED, 0) < 3:
            return spread(self, budget)
        lost.append(self.flow.work.pop(0))
        return 1

    monkeypatch.setattr(FlowEngine, "_spread", forgets_one)
    verdict = run(_drawn("wide"))
    (finding,) = verdict.findings
    assert (finding.promise, finding.id) == ("flows", "flow-0")
    assert "the flow hangs: it is running" in finding.says
    assert "total waiting (no job)" in finding.says
    assert verdict.flows.hanging == 1


def test_a_body_that_is_enqueued_twice_is_found(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    enqueue = SqlFlowSession.enqueue

    def twice(self: Any, job: NewJob) -> bool:
        if job.task.endswith("total"):
            enqueue(self, msgspec.structs.replace(job, id=f"{job.id}-2"))
        return enqueue(self, job)

    monkeypatch.setattr(SqlFlowSession, "enqueue", twice)
    findings = run(_drawn("wide")).findings
    assert any("was enqueued more than once" in one.says for one in findings if one.promise == "flows")


def test_a_body_that_starts_before_its_members_have_ended_is_found(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = FlowEngine._decide

    def impatient(self: FlowEngine, node: Any) -> None:
        node.pending = max(0, node.pending - 1)
        decide(self, node)

    monkeypatch.setattr(FlowEngine, "_decide", impatient)
    assert "flows" in promises(run(_drawn("wide")).findings)


class _Mutant(Double):
    """The store itself; a mutant has another verb."""


class _ForgetsSteps(_Mutant):
    """It says that a step is stored, and forgets it."""

    async def record_steps(self, records: Sequence[StepRecord]) -> list[RecordedStep]:
        kept = [record for record in records if label_of(record.name).text != "before"]
        await self._store.record_steps(kept)
        return [RecordedStep(RecordStatus.STORED) for _ in records]


class _GivesOthersAnswers(_Mutant):
    """It gives each job the answer that any job has read first, as if its code had asked for it."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._first: dict[str, bytes] = {}

    async def steps(self, ref: Ref, **options: Any) -> list[StoredStep]:
        return [self._changed(step) for step in await self._store.steps(ref, **options)]

    def _changed(self, step: StoredStep) -> StoredStep:
        if not label_of(step.name).is_step:
            return step
        asked, answer = split_value(step.value or b"")
        first = self._first.setdefault(step.name, answer)
        return msgspec.structs.replace(step, value=with_head(asked, first))


class _SendsTwice(_Mutant):
    """It gives each signal to two jobs."""

    async def send_signals(self, signals: Sequence[Signal]) -> list[SignalStatus]:
        answers = await self._store.send_signals(signals)
        await self._store.send_signals(signals)
        return answers


def test_a_step_that_is_forgotten_is_found(run: Run) -> None:
    findings = run(_drawn("unsignalled"), mutant=_ForgetsSteps).findings
    says = {one.says for one in findings if one.promise == "steps"}
    assert "the function of 'before' ran again after its step was stored" in says
    assert "the step '!step/before' was stored, and is not in the store" in says


def test_an_effect_that_happens_twice_is_found(run: Run) -> None:
    findings = run(_drawn("unsignalled"), mutant=_ForgetsSteps).findings
    (says,) = [one.says for one in findings if one.promise == "effects"]
    assert says.startswith("the step 'before' had 2 effects")
    assert says.endswith("and 0 run(s) were lost in it")


def test_an_answer_of_another_job_is_found(run: Run) -> None:
    findings = run(_drawn("rivals"), mutant=_GivesOthersAnswers).findings
    assert promises(findings) == {"effects"}
    assert all("which is not from this step" in one.says for one in findings)


def test_a_signal_that_two_jobs_receive_is_found(run: Run) -> None:
    findings = run(_drawn("rivals"), mutant=_SendsTwice).findings
    assert promises(findings) == {"signals"}


def test_a_step_that_is_not_undone_is_found(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    step = StepPlans.step

    def without_undo(
        self: StepPlans, name: str, call: Any, key: Any, changing: bool, options: StepOptions
    ) -> Any:
        undo = None if name == "charge" else options.undo
        return step(self, name, call, key, changing, options._replace(undo=undo))

    monkeypatch.setattr(StepPlans, "step", without_undo)
    failing = next(one for seed in range(20) if (one := _drawn("saga", seed)).ends == ("failed",))
    (finding,) = run(failing).findings
    assert finding.promise == "steps"
    assert "the job has died with the steps reserve, charge" in finding.says
