"""Signals to flows, as an app sends them."""

from __future__ import annotations

from typing import Any

from penstock.codec import ANY_RESULT
from penstock.core.duration import Duration, milliseconds
from penstock.core.errors import ArgumentError, TooManySignals
from penstock.stores.contract import (
    LARGEST_SIGNAL,
    LONGEST_STEP_NAME,
    MOST_SIGNALS,
    SIGNAL_KEPT,
    Signal,
    SignalStatus,
)

__all__ = ["sent", "signal_of"]


def signal_of(
    name: str, key: str | int | None, data: Any, flow: str | None, keep: Duration | None, most: int | None
) -> Signal:
    """The signal for the store. Raises ArgumentError; then nothing is sent."""
    key = "" if key is None else str(key)
    for what, text in (("name", name), ("key", key)):
        if not isinstance(text, str) or len(text.encode("utf-8", "replace")) > LONGEST_STEP_NAME:
            raise ArgumentError(f"the {what} of a signal has at most {LONGEST_STEP_NAME} bytes of text")
    if not name or any(mark in name for mark in "!#"):
        raise ArgumentError(f"the name of a signal {name!r:.100} must not be empty or contain '!' or '#'")
    payload = ANY_RESULT.encode(data)
    if len(payload) > LARGEST_SIGNAL:
        raise ArgumentError(
            f"signal {name!r}: its data takes {len(payload):,} bytes; the limit is {LARGEST_SIGNAL:,}. "
            "Keep it elsewhere and send its key"
        )
    kept = SIGNAL_KEPT if keep is None else milliseconds(keep, what="signal(keep=)")
    return Signal(name, key, payload, flow, kept, MOST_SIGNALS if most is None else most)


def sent(signal: Signal, status: SignalStatus) -> SignalStatus:
    """The status of a signal that was accepted. Raises TooManySignals."""
    if status is SignalStatus.FULL:
        raise TooManySignals(
            f"signal {signal.name!r}: no flow waits for it, and {signal.most:,} such signals are stored"
        )
    return status
