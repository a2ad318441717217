"""The first signal ends a run in order; a second one does not disturb that."""

from __future__ import annotations

import os
import signal

import pytest

from penstock.verify.interrupts import interruptible, undisturbed

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", _ENDS)
def test_who_asks_twice_waits_until_all_is_cleaned_up(number: int) -> None:
    before = [signal.getsignal(one) for one in _ENDS]
    done = []
    with pytest.raises(KeyboardInterrupt), interruptible():  # noqa: PT012 (what is asked for while it ends)
        try:
            os.kill(os.getpid(), number)
        finally:
            for one in _ENDS:
                os.kill(os.getpid(), one)
            done.append("cleaned up")
    assert done == ["cleaned up"]
    assert [signal.getsignal(one) for one in _ENDS] == before


def test_cleaning_up_is_not_disturbed_even_by_the_first() -> None:
    with interruptible():
        with undisturbed():
            for one in _ENDS:
                os.kill(os.getpid(), one)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


def test_who_has_said_that_a_hang_up_does_not_matter_is_heeded() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
