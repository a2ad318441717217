"""The jobs that long searches have found: an open page reads these again, and does not search again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from penstock.core.job import Ref

__all__ = ["LIVE_STEPS", "FoundList", "FoundLists"]

#: A search that took more steps is not repeated while its page is open. Each step costs the store some ms.
LIVE_STEPS = 2
#: The most lists that are remembered, each of a page of jobs.
_MOST = 200


@dataclass(frozen=True)
class FoundList:
    """What a search found, in its order; the cursor at which it goes on, how far it came, and the queues that
    it could not search."""

    refs: tuple[Ref, ...]
    next: str | None
    seen: int
    total: int
    away: tuple[str, ...] = ()


class FoundLists:
    """The lists that were found last."""

    def __init__(self) -> None:
        self._lists: OrderedDict[Hashable, FoundList] = OrderedDict()

    def get(self, key: Hashable) -> FoundList | None:
        """The list that was found for this visitor and address; None if its search is repeated."""
        found = self._lists.get(key)
        if found is not None:
            self._lists.move_to_end(key)
        return found

    def put(self, key: Hashable, found: FoundList | None) -> None:
        """Remember a list, or with None forget it: its search has become short."""
        self._lists.pop(key, None)
        if found is None:
            return
        self._lists[key] = found
        if len(self._lists) > _MOST:
            self._lists.popitem(last=False)
