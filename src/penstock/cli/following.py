"""`--follow`: print what is new, line by line, until Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from penstock.cli.faults import complain
from penstock.cli.session import Session
from penstock.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from penstock.stores.contract import Store

__all__ = ["follow"]

#: Seconds between two looks at the store.
_PAUSE = 0.5


def follow(looking: Callable[[Store], Callable[[], Awaitable[bool]]]) -> None:
    """Call the function that `looking(store)` returns, again and again, until it returns False, or Ctrl-C.

    Errors of its first call are raised. After that, a store that does not answer is reported once, and asked
    again.
    """
    session = Session.current()
    if session.watch is not None:
        raise click.UsageError(
            "--follow prints what is new, and --watch the whole list again: give one of them"
        )
    with suppress(KeyboardInterrupt):
        session.run_on_store(lambda store: _follow(looking(store), json=session.json))


async def _follow(look: Callable[[], Awaitable[bool]], *, json: bool) -> None:
    more, away = await look(), False
    while more:
        await _pause()
        try:
            more, away = await look(), False
        except StoreUnavailable as error:
            if not away:
                complain(error, json=json)
            away = True


async def _pause() -> None:
    await asyncio.sleep(_PAUSE)
