"""Who ends a run early: the first Ctrl-C, TERM or hang-up ends it in order, and nothing disturbs that."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["interruptible", "undisturbed"]

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _unheard(*_: Any) -> None:
    """Not SIG_IGN: Python complains of a signal that has come already and that nobody handles any more."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Each of them ends the run as Ctrl-C does. Who is impatient, and asks again, has to wait: what would be
    cut short is the cleaning up."""

    def interrupt(*_: Any) -> None:
        for number in heeded:
            signal.signal(number, _unheard)
        raise KeyboardInterrupt

    heeded = [number for number in _ENDS if signal.getsignal(number) != signal.SIG_IGN]  # as under nohup
    with _handled(heeded, interrupt):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Until it is done none of them counts."""
    with _handled(_ENDS, _unheard):
        yield


@contextmanager
def _handled(numbers: Any, handler: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # no other may say what signals mean
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)
