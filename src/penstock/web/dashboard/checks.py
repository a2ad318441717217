"""The checks of the doctor, for the pages that show them: those of the store, and those of the fleet."""

from __future__ import annotations

from penstock.stores.contract import Finding
from penstock.web.dashboard.cards import Card
from penstock.web.dashboard.shared_reads import FRESH, FRESH_CHECKS
from penstock.web.dashboard.view import View

__all__ = ["doctor_findings", "fleet_checks", "store_checks"]

#: Reads of the checks of the store and of the fleet, about.
_STORE_COST, _FLEET_COST = 4, 8


async def store_checks(view: View, fresh: float = FRESH) -> Card[list[Finding]]:
    """The checks of the settings and the health of the store."""
    return await view.card(
        ("store checkup", fresh), view.inspector.store_checkup, cost=_STORE_COST, fresh=fresh
    )


async def fleet_checks(view: View, fresh: float = FRESH) -> Card[list[Finding]]:
    """The checks of workers, queues, leases, batches and flows."""
    return await view.card(("checkup", fresh), view.inspector.checkup, cost=_FLEET_COST, fresh=fresh)


async def doctor_findings(view: View) -> list[Finding]:
    """All findings, up to a minute old, for a visitor who may read all queues. Checks that fail have none."""
    if not view.may("read"):
        return []
    found = [await store_checks(view, FRESH_CHECKS), await fleet_checks(view, FRESH_CHECKS)]
    return [finding for card in found for finding in card.value or []]
