"""A worker's standing offer: producers may lease jobs to the worker while it waits."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.stores.contract import Fetched, WorkerOffer
from penstock.stores.redis.context import Context
from penstock.stores.redis.direct_dispatch import DispatchedJob
from penstock.stores.redis.layout import UNDECODABLE
from penstock.stores.redis.profiles import UnknownProfile
from penstock.stores.redis.subscriber import Subscriber, Waiter
from penstock.stores.redis.verbs import fetching, waiting

__all__ = ["StandingOffer", "is_fresh"]

#: Most milliseconds from the lease of a dispatched job until its start; an older job is given back.
_FRESH = 1_000


class StandingOffer:
    """The offer of one wait: jobs go to the worker on arrival, or else to its next fetch."""

    def __init__(
        self,
        context: Context,
        subscriber: Subscriber,
        waiter: Waiter,
        queues: Sequence[str],
        offer: WorkerOffer | None,
    ) -> None:
        self._context = context
        self._subscriber = subscriber
        self._waiter = waiter
        self._queues = queues
        self._put_down(offer)
        waiter.take = self._take

    def _put_down(self, offer: WorkerOffer | None) -> None:
        self._offer = offer
        #: The offer in the form that producers read; "" without an offer.
        self.said = "" if offer is None else waiting.offer_of(self._context, self._queues, offer)
        if offer is not None:
            self._subscriber.offers(self._waiter, offer.token)

    def _take(self, one: DispatchedJob) -> bool:
        offer = self._offer
        if offer is None or offer.take is None or not is_fresh(self._context, self._subscriber, [one]):
            return False
        try:
            jobs = fetching.jobs_of_dispatched(self._context, [one], offer.worker)
        except (UnknownProfile, *UNDECODABLE):  # only the server can tell: the next fetch asks it
            return False
        self._put_down(offer.take(Fetched(jobs, one.now)))
        self._waiter.work = self._offer is None
        return True


def is_fresh(context: Context, subscriber: Subscriber, came: Sequence[DispatchedJob]) -> bool:
    """Return True if most of the lease is left."""
    return context.steered or subscriber.age_of(came) <= _FRESH
