"""`--watch` shows a listing again at an interval, `--follow` prints what is new; both until Ctrl-C."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, redirect_stderr, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.faults import INTERRUPTED, Exit, complain
from penstock.cli.session import Command, Session
from penstock.cli.show import at_terminal, note, repaint
from penstock.core.errors import ConfigError, StoreUnavailable
from penstock.core.formats import milliseconds

if TYPE_CHECKING:
    from penstock.stores.contract import Store


_DEFAULT = "2s"
_SHORTEST = 0.1


class Listing(Command):
    """A command that lists something, with the option --watch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(watch_option())

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, or run it again and again."""
        show = super().invoke
        return watched(lambda: show(ctx))


def watch_option() -> click.Option:
    """--watch, which sets `watch` of the session."""

    def remember(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is None:
            return
        try:
            # a number alone is in seconds
            seconds = milliseconds(float(value) if _is_number(value) else value, what="--watch") / 1000
        except ConfigError as error:
            raise click.UsageError(str(error), ctx) from error
        ctx.find_root().ensure_object(Session).watch = max(seconds, _SHORTEST)

    return click.Option(
        ["--watch"],
        is_flag=False,
        flag_value=_DEFAULT,
        metavar="[SECONDS]",
        expose_value=False,
        callback=remember,
        help="Show the list again at this interval, until Ctrl-C. With --json: one line per time.  "
        "[default: 2s]",
    )


def watched(show: Callable[[], Any]) -> Any:
    """Call `show` once, or with --watch again and again, until Ctrl-C.

    What it prints replaces what it printed before; without a terminal it is appended. Later failures of the
    store are shown, and do not end it.
    """
    session = Session.current()
    if session.watch is None:
        return show()
    try:
        with session.same_store():
            _watch(show, session, session.watch)
    except KeyboardInterrupt:
        pass
    return Exit.OK


def _watch(show: Callable[[], Any], session: Session, seconds: float) -> None:
    first, code = True, None
    while code != INTERRUPTED:
        frame = _Frame(at_terminal=not session.json and at_terminal())
        with redirect_stdout(frame), nullcontext() if session.json else redirect_stderr(_Notes(frame)):
            if not session.json:
                note(_headline(seconds))
            try:
                code = show()
            except StoreUnavailable as error:
                if first:
                    raise
                complain(error, json=session.json)
        repaint(frame.getvalue(), in_place=frame.isatty(), first=first)
        first = False
        if code != INTERRUPTED:
            _pause(seconds)


def _pause(seconds: float) -> None:
    """Wait; Ctrl-C ends it at once."""
    threading.Event().wait(seconds)


def _headline(seconds: float) -> str:
    command = click.get_current_context().command_path
    return f"{command}, every {seconds:g} s, {time.strftime('%Y-%m-%d %H:%M:%S')}"


class _Frame(io.StringIO):
    """What a command prints at one time, with the colours and encoding of the real stdout."""

    def __init__(self, *, at_terminal: bool) -> None:
        super().__init__()
        self._at_terminal = at_terminal
        self._encoding = getattr(sys.stdout, "encoding", None) or "utf-8"

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return self._at_terminal


class _Notes(io.StringIO):
    """What a command prints on stderr, in the frame. It is no terminal: lines of progress are not shown."""

    def __init__(self, frame: _Frame) -> None:
        super().__init__()
        self._frame = frame

    def write(self, text: str) -> int:
        return self._frame.write(text)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


#: Seconds between two looks at the store.
_SECONDS = 0.5


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
        await _rest()
        try:
            more, away = await look(), False
        except StoreUnavailable as error:
            if not away:
                complain(error, json=json)
            away = True


async def _rest() -> None:
    await asyncio.sleep(_SECONDS)
