"""Relates the store's clock to the clock of this process, to ask for due jobs at the right moment."""

from __future__ import annotations

import math
import time

__all__ = ["StoreClock"]

#: How far two clocks may drift apart in a second (s): the bounds widen as the readings grow old.
_DRIFT = 5e-5
#: A reading is a whole millisecond: the clock shows at least it, and less than one more (s).
_UNIT = 0.001


class StoreClock:
    """Bounds of the store's clock, from the readings that come with its answers.

    The clock was read after the request was sent and before its answer came. The bounds of all readings
    together are much closer than a millisecond. A reading that contradicts them replaces them, e.g. because
    the store's clock was set.
    """

    def __init__(self) -> None:
        # bounds of the store's clock minus `time.monotonic` (s)
        self._least, self._most = -math.inf, math.inf
        self._at = 0.0  # when the last reading came

    def take(self, now: int, sent: float | None = None) -> float:
        """Take a reading that has just come, and return how far (s) the store's clock is past it.

        `sent`: `time.monotonic` before the request was sent; None if it is unknown.
        """
        came = time.monotonic()
        reading = now / 1000 - came
        limit = math.inf if sent is None else now / 1000 + _UNIT - sent
        widened = (came - self._at) * _DRIFT
        least, most = max(self._least - widened, reading), min(self._most + widened, limit)
        if least > most:
            least, most = reading, limit
        self._least, self._most, self._at = least, most, came
        return (least if most == math.inf else (least + most) / 2) - reading
