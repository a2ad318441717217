"""Signals to flows, as apps and operators send them."""

from __future__ import annotations

from typing import Any

from penstock.codec import ANY_RESULT
from penstock.core.errors import ArgumentError, ConfigError, ResultError, TooManySignals
from penstock.core.formats import Duration, milliseconds
from penstock.core.ids import check_id
from penstock.core.text import plain, shown, whole
from penstock.stores.contract import (
    LARGEST_SIGNAL,
    LONGEST_SIGNAL_NAME,
    MOST_SIGNALS,
    SIGNAL_KEPT,
    Signal,
    SignalStatus,
)

#: The largest `most`.
_MOST = 10_000_000


def signal_of(
    name: str,
    key: str | int | None,
    data: Any,
    flow: str | None,
    keep: Duration | None,
    most: int | None,
    *,
    replace: bool = False,
) -> Signal:
    """The signal for the store. Raises ArgumentError; then nothing is sent."""
    try:
        name, key = _name_of(name), key_of(key)
        kept = SIGNAL_KEPT if keep is None else milliseconds(keep, what="keep")
        if kept < 1:
            raise ConfigError(f"keep={keep!r} keeps no signal: use at least 1 ms")
        limit = MOST_SIGNALS if most is None else most
        if type(limit) is not int or not 1 <= limit <= _MOST:
            raise ConfigError(f"most={shown(most)} is no number of signals: use 1 to {_MOST:,}")
        return Signal(name, key, _payload(data), flow and check_id(flow), kept, limit, replace)
    except ConfigError as error:
        raise ArgumentError(f"signal {shown(name)}: {error}; nothing was sent") from None


def key_of(key: str | int | None) -> str:
    """The key of a signal as text. Raises ConfigError."""
    if key is None:
        return ""
    if isinstance(key, bool) or not isinstance(key, (str, int)):
        raise ConfigError(f"key={shown(key)} is neither a text nor a number")
    return _bounded("key", plain(key) if isinstance(key, str) else str(whole(key)))


def _name_of(name: str) -> str:
    if not isinstance(name, str) or not name or any(mark in name for mark in "!#"):
        raise ConfigError("its name is a text that is not empty and has no '!' or '#'")
    return _bounded("name", plain(name))


def _bounded(what: str, text: str) -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ConfigError(
            f"its {what} {text!a:.100} holds half of a character: it cannot be stored"
        ) from None
    if size > LONGEST_SIGNAL_NAME:
        raise ConfigError(f"its {what} takes {size:,} bytes; the limit is {LONGEST_SIGNAL_NAME}")
    return text


def _payload(data: Any) -> bytes:
    try:
        payload = ANY_RESULT.encode(data)
    except ResultError:
        raise ConfigError(f"its data, {shown(data)}, is nothing that a task could return") from None
    if len(payload) > LARGEST_SIGNAL:
        raise ConfigError(
            f"its data takes {len(payload):,} bytes; the limit is {LARGEST_SIGNAL:,}. Keep it elsewhere and "
            "send its key"
        )
    return payload


def sent(signal: Signal, status: SignalStatus) -> SignalStatus:
    """The status of a signal that was accepted. Raises TooManySignals."""
    if status is SignalStatus.FULL:
        raise TooManySignals(
            f"signal {signal.name!r}: no flow waits for it, and {signal.most:,} such signals are stored"
        )
    return status
