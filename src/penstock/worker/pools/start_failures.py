"""Notes that children could not start, and when the next one may."""

from __future__ import annotations

import errno
import logging
import time

from penstock.core.text import number
from penstock.worker.logs import log_with_traceback
from penstock.worker.pools.calls import ChildBroken, NoChild

__all__ = ["StartFailures"]

_log = logging.getLogger("penstock.worker")

#: After a child that could not start, the next one waits this long, doubling (s).
_FIRST_BACKOFF = 0.5
_LAST_BACKOFF = 30.0
#: After a child for which the system had no resources, the next one waits this long (s).
RETRY_AFTER = 0.5
_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOBUFS}


class StartFailures:
    """The failed starts since the last child that got ready."""

    def __init__(self, start_timeout: float) -> None:
        self._start_timeout = start_timeout
        self._failures = 0
        self._last: ChildBroken | None = None
        self._not_before = 0.0

    def clear(self) -> None:
        """Note that a child is ready."""
        self._failures, self._last = 0, None

    @property
    def any(self) -> bool:
        """Whether no child has got ready since the last failure."""
        return self._last is not None

    def holds(self) -> NoChild | None:
        """Why no child may be started yet; None if one may."""
        if self._last is None or time.monotonic() >= self._not_before:
            return None
        return NoChild(self._last.why, self._last.traceback)

    def note(self, error: OSError | RuntimeError | MemoryError | ChildBroken) -> ChildBroken:
        """Log a failed start and set the pause before the next one. Returns the error for a call."""
        broken = error if isinstance(error, ChildBroken) else self._as_broken(error)
        if isinstance(broken, NoChild):
            if not isinstance(self._last, NoChild):
                _log.error(
                    "a child process %s; its jobs are released, and the start is retried", broken.cause
                )
            wait = RETRY_AFTER
        else:
            wait = min(_LAST_BACKOFF, _FIRST_BACKOFF * 2**self._failures)
            self._failures += 1
            says = "a child process %s; the next one waits %.3g s"
            log_with_traceback(_log, logging.ERROR, broken.traceback, says, broken.cause, wait)
        self._last, self._not_before = broken, time.monotonic() + wait
        return broken

    def _as_broken(self, error: OSError | RuntimeError | MemoryError) -> ChildBroken:
        if not isinstance(error, OSError) or error.errno in _NO_ROOM:
            return NoChild(str(error) or type(error).__name__)
        if isinstance(error, TimeoutError):
            return ChildBroken(
                f"its imports and start-up hooks took more than {number(self._start_timeout)} s"
            )
        return ChildBroken(str(error))
