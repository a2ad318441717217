"""Reports jobs that died with another worker of the same supervisor, and calls their callbacks."""

from __future__ import annotations

from penstock.maintenance.service import Service
from penstock.worker.reporter import Reporter

__all__ = ["CallbackAdopter"]

_SELDOM = 3600.0


class CallbackAdopter(Service):
    """Takes over from workers that can report nothing any more. `dead`: the jobs (queue, id) to report."""

    name = "callback adopter"

    def __init__(self, reporter: Reporter, dead: list[tuple[str, str]]) -> None:
        super().__init__()
        self._reporter = reporter
        self._dead = dead

    async def tick(self) -> float:
        dead = self._dead[:]
        del self._dead[:]
        await self._reporter.adopt_callbacks(dead)
        return _SELDOM  # woken by the next death
