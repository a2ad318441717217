"""What one wait offers to those who enqueue: from one job that it is handed to the next."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.stores.contract import Fetched, Offer
from penstock.stores.redis.context import Ground
from penstock.stores.redis.direct_dispatch import Handover
from penstock.stores.redis.records import UNDECODABLE, UnknownProfile
from penstock.stores.redis.subscriber import Hearing, Sleeper
from penstock.stores.redis.verbs import consuming

__all__ = ["Offering", "is_fresh"]

#: A job that was leased with a wake-up call is begun if the call took no longer than this (ms).
_FRESH = 1_000


class Offering:
    """Its jobs go to the waiter as soon as they are here; those that cannot are left to his next fetch."""

    def __init__(
        self, ground: Ground, hearing: Hearing, sleeper: Sleeper, queues: Sequence[str], offer: Offer | None
    ) -> None:
        self._ground = ground
        self._hearing = hearing
        self._sleeper = sleeper
        self._queues = queues
        self._put_down(offer)
        sleeper.take = self._take

    def _put_down(self, offer: Offer | None) -> None:
        self._offer = offer
        #: As producers read it; empty if there is nothing to offer.
        self.said = "" if offer is None else consuming.offer_of(self._ground, self._queues, offer)
        if offer is not None:
            self._hearing.offers(self._sleeper, offer.token)

    def _take(self, one: Handover) -> bool:
        offer = self._offer
        if offer is None or offer.take is None or not is_fresh(self._ground, self._hearing, [one]):
            return False
        try:
            jobs = consuming.read_handed_over(self._ground, [one], offer.worker)
        except (UnknownProfile, *UNDECODABLE):  # the server has to be asked
            return False
        self._put_down(offer.take(Fetched(jobs, one.now)))
        self._sleeper.work = self._offer is None
        return True


def is_fresh(ground: Ground, hearing: Hearing, came: Sequence[Handover]) -> bool:
    """Whether most of the lease is still to come."""
    return ground.steered or hearing.age_of(came) <= _FRESH
