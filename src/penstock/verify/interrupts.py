"""Interrupts of a run: the first SIGINT, SIGTERM or SIGHUP ends it in order; later ones are ignored."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["interruptible", "without_interrupts"]

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _ignore(*_: Any) -> None:
    """Do nothing. Used in place of SIG_IGN, which makes Python complain about a pending signal."""


@contextmanager
def interruptible() -> Iterator[None]:
    """End the block at the first signal with KeyboardInterrupt, and ignore the next: they would cut the
    clean-up short."""

    def interrupt(*_: Any) -> None:
        for number in handled:
            signal.signal(number, _ignore)
        raise KeyboardInterrupt

    handled = [number for number in _ENDS if signal.getsignal(number) != signal.SIG_IGN]  # as under nohup
    with _handled(handled, interrupt):
        yield


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Ignore these signals until the block has ended."""
    with _handled(_ENDS, _ignore):
        yield


@contextmanager
def _handled(numbers: Any, handler: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)
