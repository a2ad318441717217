"""The processes of a run are replaced when they die, up to a limit."""

from __future__ import annotations

import contextlib
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.verify.fleet import Fleet
from penstock.verify.run_folder import RunFolder, RunRequest, VerifyFailed
from tests.servers import until


@pytest.mark.slow
def test_a_process_that_exits_at_once_is_restarted_later_each_time_and_then_given_up(tmp_path: Path) -> None:
    place = RunFolder(tmp_path, "sqlite:////nowhere/jobs.db", "verify-1")
    place.make()
    starts: dict[int, float] = {}
    with contextlib.closing(Fleet(place, RunRequest(1.0, [], seed=1, workers=0, rate=1))) as fleet:
        fleet.add_worker("lone", version="1")
        (member,) = fleet.workers

        def keep() -> bool:
            starts[member.pid] = member.started_at
            fleet.replace_dead()
            return False

        with pytest.raises(VerifyFailed, match=r"lone 1 does not stay alive: 001-lone\.log"):
            until(keep, "it to be given up", timeout=60)
    pauses = [after - before for before, after in pairwise(starts.values())]
    assert len(pauses) == 5
    assert [pause >= least for least, pause in enumerate(pauses)] == [True] * 5
