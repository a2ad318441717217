"""The first signal ends a run in order; a second one is ignored."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from penstock.verify.conductor import interruptible, without_interrupts

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def _none_is_ignored() -> Iterator[None]:
    """Begin with default actions, also in a run that was started with `nohup`."""
    ignored = [number for number in _ENDS if signal.getsignal(number) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.mark.parametrize("number", _ENDS)
def test_a_second_interrupt_waits_for_the_clean_up(number: int) -> None:
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
        with without_interrupts():
            for one in _ENDS:
                os.kill(os.getpid(), one)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_an_inherited_ignored_signal_stays_ignored(number: int) -> None:
    before = signal.signal(number, signal.SIG_IGN)  # as `nohup` does, and `&` in a shell script
    try:
        with interruptible():
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)
