"""How long a bulk act pauses after a step."""

import pytest

from penstock.core.errors import ConfigError
from penstock.core.job import State
from penstock.inspector import BulkActs, BulkState, JobAct
from penstock.inspector.bulk_acts import PacedSteps, pause_after_step
from penstock.stores.contract import JobFilter
from penstock.stores.memory.store import MemoryStore


@pytest.mark.parametrize(
    ("took", "changed", "pace", "pause"),
    [
        (0.01, 100, 500, 0.19),
        (0.15, 100, 500, 0.15),  # a slow store is left half of the time
        (0.01, 0, 500, 0.09),  # a search that finds nothing costs something, too
        (0.01, 100, 100_000, 0.01),
        (30.0, 100, 500, 5.0),  # another process must not take the act over
        (0.0, 100, 1, 5.0),
    ],
)
def test_a_pause_keeps_the_pace(took: float, changed: int, pace: int, pause: float) -> None:
    assert pause_after_step(took, changed, pace) == pytest.approx(pause)


@pytest.mark.parametrize("pace", [0, -1, 100_001])
async def test_a_pace_out_of_range_is_refused(pace: int) -> None:
    with pytest.raises(ConfigError, match=f"the pace {pace} is out of range"):
        await BulkActs(MemoryStore()).start(JobAct.RETRY, JobFilter(queues=("mail",)), by="ann", pace=pace)


async def test_nothing_is_paused_for_after_the_end() -> None:
    acts = BulkActs(MemoryStore())
    bulk = await acts.start(JobAct.RETRY, JobFilter(queues=("mail",), states=(State.DEAD,)), by="ann")
    steps = PacedSteps(acts, bulk.id, "w1")
    assert 0.05 < (await steps.next())[1] <= 5.0  # it has taken the act
    ended, pause = await steps.next()
    assert ended is not None
    assert (ended.state, pause) == (BulkState.DONE, 0.0)
    assert await steps.next() == (None, 0.25)
