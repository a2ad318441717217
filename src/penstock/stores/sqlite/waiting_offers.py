"""The offers of waiting workers: a promotion in the same event loop leases a job to one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from penstock.stores.contract import Fetched, WorkerOffer

__all__ = ["WaitingOffer", "WaitingOffers"]


class WaitingOffer:
    """The offer of one wait. `ended`: a job was leased to the worker, and its wait ends."""

    def __init__(self, queues: Sequence[str], offer: WorkerOffer, wake: Callable[[], None]) -> None:
        self.queues = tuple(queues)
        self.offer: WorkerOffer | None = offer
        self.ended = False
        self._wake = wake

    def take(self, offer: WorkerOffer, found: Fetched | None) -> None:
        """Pass on what was leased under this offer.

        If the wait has ended meanwhile, the worker's next fetch has the same token, and gets the same jobs.
        """
        if self.offer is not offer or found is None or not found.jobs:
            return
        self.offer = None if offer.take is None else offer.take(found)
        if self.offer is None:
            self.ended = True
            self._wake()


class WaitingOffers:
    """The standing offers of one event loop."""

    def __init__(self) -> None:
        self._standing: list[WaitingOffer] = []

    @contextmanager
    def standing(
        self, queues: Sequence[str], offer: WorkerOffer | None, wake: Callable[[], None]
    ) -> Iterator[WaitingOffer | None]:
        """Keep an offer until the end of the block; `wake` is called when it ends the wait."""
        if offer is None:
            yield None
            return
        one = WaitingOffer(queues, offer, wake)
        self._standing.append(one)
        try:
            yield one
        finally:
            one.offer = None
            self._standing.remove(one)

    def first(self, queues: Sequence[str]) -> WaitingOffer | None:
        """The oldest offer to take a job of one of these queues."""
        for one in self._standing:
            if one.offer is not None and not set(queues).isdisjoint(one.queues):
                return one
        return None
