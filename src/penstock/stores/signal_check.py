"""Checks the data of a signal against the type that the waiting flow takes, before the signal is sent.

A flow that waits `of=` a type stores its JSON schema beside the wait. Where several jobs wait for the signal,
any of them may receive it, so the data must fit all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.schema import misfit
from penstock.core.errors import ArgumentError
from penstock.core.text import shown
from penstock.stores.contract import Signal, SignalWaiter, Store

#: How many waiting jobs are looked up.
_MOST_WAITERS = 100


async def check_signal(store: Store, signal: Signal) -> None:
    """Raise ArgumentError if a job waits for this signal, and its data does not fit."""
    _check(signal, await store.signal_waiters(signal.name, signal.key, limit=_MOST_WAITERS))


def check_signal_sync(store: Store, signal: Signal) -> None:
    """As `check_signal`, in the caller's thread."""
    _check(signal, store.sync.signal_waiters(signal.name, signal.key, limit=_MOST_WAITERS))


def _check(signal: Signal, waiters: Sequence[SignalWaiter]) -> None:
    for waiter in waiters:
        if not waiter.of or signal.flow not in (None, waiter.ref.id):
            continue
        why = misfit(waiter.of, signal.data)
        if why is not None:
            raise ArgumentError(
                f"signal {shown(signal.name)}: its data does not fit what job {waiter.ref.id} waits for: "
                f"{why}; nothing was sent"
            )
