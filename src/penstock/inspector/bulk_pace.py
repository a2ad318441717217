"""The steps of a bulk act one after the other, slowly enough that running jobs keep their speed."""

from __future__ import annotations

import time

from penstock.inspector.bulk_acts import BulkAct, BulkActs, BulkState

__all__ = ["PacedSteps"]

#: A step counts as at least this many jobs: the search costs time even if it finds none.
_LEAST = 50
#: The longest pause (s), much shorter than the time for which a process holds a bulk act.
_LONGEST = 5.0
#: The pause (s) before the act is read again if another process does its steps.
_ELSEWHERE = 0.25


class PacedSteps:
    """Does the steps of one bulk act for `holder` and says how long to pause after each.

    The pause is as long as the step or longer, so that a store that has become slow is left half of the time.
    """

    def __init__(self, acts: BulkActs, id: str, holder: str) -> None:
        self.id = id
        self._acts = acts
        self._holder = holder
        self._changed: int | None = None

    async def next(self) -> tuple[BulkAct | None, float]:
        """Do the next step: what `BulkActs.step` returns, and how long (s) to pause now."""
        began = time.monotonic()
        stepped = await self._acts.step(self.id, self._holder)
        if stepped is None:
            return None, _ELSEWHERE
        changed = 0 if self._changed is None else stepped.changed - self._changed
        self._changed = stepped.changed
        if stepped.state is not BulkState.RUNNING:
            return stepped, 0.0
        return stepped, pause_after_step(time.monotonic() - began, changed, stepped.pace)


def pause_after_step(took: float, changed: int, pace: int) -> float:
    """Seconds to pause after a step of `took` seconds that changed this many jobs."""
    return min(_LONGEST, max(max(changed, _LEAST) / pace - took, took))
