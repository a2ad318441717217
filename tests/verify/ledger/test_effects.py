"""Effects of steps outside of the store: once, and once more for each run that was lost in the step."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.job import Ref, State
from penstock.stores.contract import StoredStep
from penstock.verify.effects import StepEffect, StepEffects
from penstock.verify.ledger import facts
from penstock.verify.ledger.story import StepLabel, label_of
from tests.verify.ledger.history_builder import QUEUE, HistoryBuilder


@pytest.fixture
def history() -> HistoryBuilder:
    """A job that has begun and not ended."""
    history = HistoryBuilder()
    history.enqueue("a", 0)
    history.keep("a", State.SUSPENDED)
    return history


def _says(history: HistoryBuilder, promise: str = "effects") -> list[str]:
    findings = history.verdict_on(finished=False).findings
    assert {finding.promise for finding in findings} <= {promise}
    return [finding.says for finding in findings]


# ── once ─────────────────────────────────────────────────────────────────────────────────────────


def test_an_effect_that_is_stored_happens_once(history: HistoryBuilder) -> None:
    first = history.start("a", 10)
    history.act("a", "charge", 12, first)
    history.settle("a", 20, first, "suspended", charge=False)
    history.act("a", "send", 35, history.start("a", 30, pid=3))
    assert _says(history) == []


@pytest.mark.parametrize("effects", [2, 3])
def test_a_kill_allows_one_effect_more(history: HistoryBuilder, effects: int) -> None:
    first = history.start("a", 10)
    history.effect("a", "charge", 12, first)
    history.fault("kill", 14, target=2)
    second = history.start("a", 30, pid=3, attempt=2)
    history.effect("a", "charge", 32, second, "m2")
    history.settle("a", 40, second, "suspended", charge=False)
    if effects == 3:
        history.effect("a", "charge", 52, history.start("a", 50, pid=3, attempt=2), "m3")
        (says,) = _says(history)
        assert "the step 'charge' had 3 effects" in says
        assert says.endswith("and 1 run(s) were lost in it")
    else:
        assert _says(history) == []


def test_a_second_effect_in_a_run_is_found(history: HistoryBuilder) -> None:
    token = history.start("a", 10)
    history.effect("a", "charge", 12, token)
    history.effect("a", "charge", 14, token, "m2")
    history.fault("kill", 20, target=2)
    history.start("a", 30, pid=3, attempt=2)
    (says,) = _says(history)
    assert f"2 in the run {token}" in says


def test_a_kill_after_the_step_was_stored_allows_no_second_effect(history: HistoryBuilder) -> None:
    history.act("a", "charge", 12, history.start("a", 10))
    history.fault("kill", 20, target=2)
    history.effect("a", "charge", 32, history.start("a", 30, pid=3, attempt=2), "m2")
    findings = history.verdict_on(finished=False).findings
    assert {finding.promise for finding in findings} == {"effects", "steps"}


def test_a_run_without_its_lease_may_have_an_effect_of_its_own(history: HistoryBuilder) -> None:
    first = history.start("a", 10)
    history.fault("stop", 11, target=2, seconds=30.0)
    history.act("a", "charge", 20_010, history.start("a", 20_000, pid=3, attempt=2), "m2")
    history.effect("a", "charge", 30_020, first)
    history.write(facts.StepRecorded, 30_030, QUEUE, "a", first, "!step/charge", "lost", 30_025_000_000)
    assert _says(history) == []


@pytest.mark.parametrize("returned", [False, True])
def test_an_attempt_that_fails_in_a_step_allows_one_effect_more(
    history: HistoryBuilder, returned: bool
) -> None:
    first = history.start("a", 10)
    history.effect("a", "charge", 12, first)
    history.write(facts.StepRan, 13, QUEUE, "a", first, "charge", True, "" if returned else "Boom", pid=2)
    history.settle("a", 20, first, "retryable", error="Boom")
    history.effect("a", "charge", 32, history.start("a", 30, pid=3, attempt=2), "m2")
    assert len(_says(history)) == int(returned)


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_caught_failure_has_no_second_effect_until_it_is_forgotten(
    history: HistoryBuilder, forgotten: bool
) -> None:
    first = history.start("a", 10)
    history.effect("a", "charge", 12, first)
    history.write(facts.StepRan, 13, QUEUE, "a", first, "charge", True, "Boom", pid=2)
    history.record("a", "!step/charge!failed", 15, first)
    if forgotten:
        history.write(
            facts.StepChanged, 18, QUEUE, "a", first, "!step/charge!failed", "stored", 17_000_000, pid=2
        )
    history.settle("a", 20, first, "retryable", error="Boom")
    history.effect("a", "charge", 32, history.start("a", 30, pid=3, attempt=2), "m2")
    promises = {finding.promise for finding in history.verdict_on(finished=False).findings}
    assert promises == (set() if forgotten else {"effects", "steps"})


# ── of this job, and none missing ────────────────────────────────────────────────────────────────


def test_arguments_of_another_job_are_found(history: HistoryBuilder) -> None:
    history.effect("a", "charge", 12, history.start("a", 10), given='[1,"b"]')
    assert _says(history) == ["""the step 'charge' was called for another job: [1,"b"]"""]


def test_an_answer_of_another_step_is_found(history: HistoryBuilder) -> None:
    token = history.start("a", 10)
    history.act("a", "charge", 12, token, "m1")
    history.act("a", "send", 20, token, "m2")
    for step, mark in (("charge", "m1"), ("send", "m1")):
        history.write(facts.StepAnswered, 30, QUEUE, "a", token, step, mark, pid=2)
    assert _says(history) == ["the code got the answer m1 for 'send', which is not from this step"]


def test_an_undo_with_the_answer_of_another_step_is_found(history: HistoryBuilder) -> None:
    token = history.start("a", 10)
    history.act("a", "charge", 12, token, "m1")
    history.effect("a", "undo!charge", 20, token, "m2", '[[1,"m1"]]')
    assert _says(history) == []
    history.effect("a", "undo!send", 22, token, "m3", '[[1,"m1"]]')
    assert _says(history) == ["""the step 'undo!send' was called for another job: [[1,"m1"]]"""]


def test_a_step_without_its_effect_is_found(history: HistoryBuilder) -> None:
    token = history.start("a", 10)
    history.act("a", "charge", 12, token)
    history.record("a", "!step/send", 20, token)
    history.steps[Ref(QUEUE, "a")] = [
        StoredStep("!step/charge", 17, b"f -\n1"),
        StoredStep("!step/send", 20, b"f -\n1"),
        StoredStep("!sleep/", 21, b"f -\n1"),
    ]
    assert _says(history) == ["'send' is stored as done, and had no effect"]


def test_an_undo_of_a_completed_job_is_found(history: HistoryBuilder) -> None:
    token = history.start("a", 10)
    history.act("a", "charge", 12, token)
    history.effect("a", "undo!charge", 20, token, "m2", '[[1,"m1"]]')
    history.settle("a", 30, token)
    history.keep("a", State.COMPLETED)
    assert _says(history) == ["the job has completed, and had the effects undo!charge"]


@pytest.mark.parametrize("undone", [False, True])
@pytest.mark.parametrize("end", [State.DEAD, State.CANCELLED])
def test_a_flow_that_failed_or_was_cancelled_is_undone(
    history: HistoryBuilder, end: State, undone: bool
) -> None:
    token = history.start("a", 10)
    history.record("a", "!step/a/charge", 12, token)
    history.keep("a", end)
    names = ["undo!", "!step/a/charge", *(["!step/a/charge!undone"] if undone else [])]
    history.steps[Ref(QUEUE, "a")] = [StoredStep(name, 12, b"1") for name in names]
    if undone:
        history.effect("a", "undo!a/charge", 14, token, "m2", '[[1,"m1"]]')
        history.effects[Ref(QUEUE, "a")]["a/charge"] = [StepEffect(token, 12, 2, "m1", '[1,"a"]')]
        history.write(facts.StepRan, 15, QUEUE, "a", token, "undo!a/charge", over=True)
    history.settle("a", 30, token, end.value)
    if undone:
        assert _says(history) == []
    else:
        (says,) = _says(history, "steps")
        assert says.endswith("with the steps a/charge, and undone were: ")


@pytest.mark.parametrize("charge", [False, True])
def test_the_run_that_undoes_a_lost_run_costs_no_attempt(history: HistoryBuilder, charge: bool) -> None:
    history.start("a", 10)
    history.fault("kill", 12, target=2)
    lease = history.lease("a", 30, pid=3, by="reclaim")
    state = "retryable" if charge else "suspended"
    history.settle("a", 35, lease, state, error="WorkerLost", charge=charge)
    history.start("a", 60, pid=3, attempt=1)
    promises = {finding.promise for finding in history.verdict_on(finished=False).findings}
    assert promises == ({"attempts"} if charge else set())


# ── names and files ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("!step/charge", StepLabel("step", "charge")),
        ("!step/a/rows[3]/charge=7#2!failed", StepLabel("step", "a/rows[3]/charge=7#2", "failed")),
        ("!step/charge!undone", StepLabel("step", "charge", "undone")),
        ("!gather/!1", StepLabel("gather", "", "1")),
        ("!wait/packed!until", StepLabel("wait", "packed", "until")),
        ("!version", StepLabel("mark", "!version")),
        ("charge#2", StepLabel("step", "charge#2")),
        ("charge!1", StepLabel("step", "charge", "1")),
        ("undo!charge#2", StepLabel("step", "charge#2", "undone")),
        ("sleep!#2", StepLabel("sleep", "#2")),
        ("wait!packed!until", StepLabel("wait", "packed", "until")),
        ("gather!!1", StepLabel("gather", "", "1")),
        ("iterate!rows", StepLabel("loop", "rows")),
        ("failed!", StepLabel("mark", "failed!")),
        ("undo!", StepLabel("mark", "undo!")),
        ("version!", StepLabel("mark", "version!")),
        ("log!1", StepLabel("mark", "log!1")),
    ],
)
def test_a_stored_step_of_either_release_is_recognised(name: str, label: StepLabel) -> None:
    assert label_of(name) == label


def test_effects_are_read_as_they_happened(tmp_path: Path) -> None:
    effects = [StepEffect("t", n, 1, f"m{n}", "[1]") for n in range(3)]
    for effect in effects:
        StepEffects(tmp_path).happen(Ref("q", "a/b"), "rows[1]/charge=7", effect)
    assert StepEffects(tmp_path).read() == {Ref("q", "a/b"): {"rows[1]/charge=7": effects}}
