"""Counts wrong logins by address: too many are answered with 429, and said in the log once a minute."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from dataclasses import dataclass

__all__ = ["LoginTries"]

_log = logging.getLogger("penstock.web")

#: The most wrong logins of one address in this time (s).
_MOST, _TIME = 20, 60.0
#: The addresses that are remembered.
_ADDRESSES = 1_000


@dataclass
class _Count:
    since: float
    tries: int = 0


class LoginTries:
    """The wrong logins of the last minute.

    A right token is accepted all the same. Nobody finds one by guessing, and behind a proxy that is not told
    apart, one visitor would lock out all others.
    """

    def __init__(self) -> None:
        self._counts: OrderedDict[str, _Count] = OrderedDict()

    def too_many(self, address: str) -> bool:
        """Count a wrong login, and say whether there were too many."""
        now = time.monotonic()
        count = self._counts.pop(address, None)
        if count is None or now - count.since > _TIME:
            count = _Count(now)
        count.tries += 1
        self._counts[address] = count
        if len(self._counts) > _ADDRESSES:
            self._counts.popitem(last=False)
        if count.tries == _MOST + 1:
            _log.warning("more than %d wrong logins from %s in a minute", _MOST, address or "a socket")
        return count.tries > _MOST
