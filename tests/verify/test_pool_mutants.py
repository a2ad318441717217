"""The checker finds the planted bug of each mutant of the process pool, and none in the pool itself.

Many short calls lie ready in two children; a few of them take long, and a few kill their child.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.core.job import State
from penstock.verify.ledger import Verdict, check
from tests.system.conftest import Place
from tests.verify.ledger.honest_ledger import promises
from tests.verify.pool_mutants import FOLDER, make

pytestmark = [pytest.mark.slow, pytest.mark.system]

ROOT = Path(__file__).parents[2]
_UNDONE = (State.SCHEDULED, State.AVAILABLE, State.RUNNING, State.RETRYABLE)
_ROUND = [*["short"] * 20, "crash", *["short"] * 40, "long", *["short"] * 40]
_ROUNDS = 3
#: A planted bug shows when a call runs at the moment of a fault: it is looked for in at most so many rounds.
_MOST_ROUNDS = 40


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_a_pool_that_keeps_its_promises_passes(place: Place) -> None:
    verdict = chaos(place, "none", lambda verdict: False).require()
    assert verdict.completed == verdict.enqueued
    assert verdict.reruns == {"crash": _ROUNDS}


@pytest.mark.parametrize(
    ("mutant", "promise", "says"),
    [
        ("takes back what runs", "fencing", " ran "),
        ("leaves the tokens", "fencing", " ran "),
        ("charges all", "attempts", "charged with ChildDied, and its function had not begun"),
        ("completes all", "attempts", "completed, and its function never began"),
    ],
)
def test_a_pool_with_a_planted_bug_is_found(place: Place, mutant: str, promise: str, says: str) -> None:
    verdict = chaos(place, mutant, lambda verdict: promise in promises(verdict.findings), _MOST_ROUNDS)
    assert promise in promises(verdict.findings), verdict.report()
    assert [finding for finding in verdict.findings if says in finding.says], verdict.report()


def chaos(place: Place, mutant: str, found: Callable[[Verdict], bool], rounds: int = _ROUNDS) -> Verdict:
    """Run rounds, until the checker has found what is looked for."""
    (place.folder / "ledger").mkdir()
    app, work = make(place.folder)
    path = f"{ROOT / 'src'}:{ROOT}"
    settings = {"PYTHONPATH": path, "PENSTOCK_PROCESS_SLOTS": "2", FOLDER: str(place.folder)}
    worker = place.start("-m", "tests.verify.pool_mutants", mutant, **settings)
    app.enqueue_many([work.job("short") for _ in range(200)])  # so that the duration of a call is known
    place.until(lambda: _undone(app) == 0, "the first calls have ended")
    for _ in range(rounds):
        app.enqueue_many([work.job(what) for what in _ROUND])
        place.until(lambda: _undone(app) == 0, "all calls have ended")
        if found(check(place.folder / "ledger", app.store)):
            break
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    verdict = check(place.folder / "ledger", app.store)
    app.close()
    return verdict


def _undone(app) -> int:
    (info,) = app.store.sync.queues()
    return sum(info.counts.get(state, 0) for state in _UNDONE)
