"""Logs once which settings of the store put jobs at risk, when the store first answers."""

from __future__ import annotations

import logging

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.maintenance.service import Service
from penstock.stores.contract import Level, Store

__all__ = ["StoreCheckup"]

_log = logging.getLogger("penstock.worker")


class StoreCheckup(Service):
    """Asks the store for its checkup and logs each finding that is not fine."""

    name = "checkup"

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    async def tick(self) -> float:
        try:
            findings = await self._store.checkup()
        except StoreUnavailable:
            raise  # later
        except StoreError as error:  # it may still do all that matters here
            _log.warning("%s does not let us look how safe jobs are there: %s", self._store.url, error)
            findings = []
        for finding in findings:
            if finding.level is not Level.FINE:
                level = logging.ERROR if finding.level is Level.ERROR else logging.WARNING
                _log.log(level, "%s: %s", self._store.url, finding)
        self.stop()
        return 0.0
