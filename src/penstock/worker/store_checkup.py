"""Logs settings of the store that put jobs at risk, once, when the store first answers."""

from __future__ import annotations

import logging

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.maintenance.service import Service
from penstock.stores.contract import Level, Store

__all__ = ["StoreCheckup"]

_log = logging.getLogger("penstock.worker")


class StoreCheckup(Service):
    """Runs the store's checkup and logs each finding whose level is not FINE."""

    name = "checkup"

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    async def tick(self) -> float:
        try:
            findings = await self._store.checkup()
        except StoreUnavailable:
            raise  # retried later
        except StoreError as error:  # the store may refuse only the checkup
            _log.warning(
                "%s: the store refused the checkup, so its settings are unknown: %s", self._store.url, error
            )
            findings = []
        for finding in findings:
            if finding.level is not Level.FINE:
                level = logging.ERROR if finding.level is Level.ERROR else logging.WARNING
                _log.log(level, "%s: %s", self._store.url, finding)
        self.stop()
        return 0.0
