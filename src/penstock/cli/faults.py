"""How a command ends: an exit code that scripts can use, and one clear line for what went wrong."""

from __future__ import annotations

import enum
import traceback
from contextlib import suppress
from textwrap import indent

import click

from penstock.cli.show import emit, note, say_lines
from penstock.core.errors import ArgumentError, ConfigError, JobNotFound, PenstockError, StoreUnavailable

__all__ = ["Exit", "Fault", "code_of", "complain", "not_found"]


class Exit(enum.IntEnum):
    """What the command tells the shell."""

    OK = 0
    FAILED = 1  # it was tried and failed, or was refused
    USAGE = 2  # an option, a name, a setting or an app that makes no sense
    NOT_FOUND = 3  # no such job, queue or task
    UNAVAILABLE = 4  # the store does not answer now: trying again may help


class Fault(PenstockError):
    """Something that ends a command with a line and this exit code."""

    def __init__(self, says: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(says)
        self.code = code


def not_found(says: str) -> Fault:
    """The fault of a name that leads nowhere."""
    return Fault(says, Exit.NOT_FOUND)


def code_of(error: BaseException) -> Exit:
    """The exit code that this error means."""
    match error:
        case Fault():
            return error.code
        case ConfigError() | ArgumentError() | click.UsageError() | UnicodeEncodeError():
            return Exit.USAGE
        case JobNotFound():
            return Exit.NOT_FOUND
        case StoreUnavailable():
            return Exit.UNAVAILABLE
    return Exit.FAILED


def complain(error: BaseException, *, json: bool = False, whole: bool = False) -> Exit:
    """Say on stderr what went wrong, a line for each problem; the exit code.

    With `json` stdout has it too, as the one document that it owes; with `whole`, or if nobody foresaw such
    an error, the traceback comes before it.
    """
    known = isinstance(error, (PenstockError, click.ClickException, click.Abort, OSError, UnicodeEncodeError))
    if whole or not known:
        # all of it stands to the right: a message of several lines forges none of ours
        say_lines(indent("".join(traceback.format_exception(error)).rstrip(), "  "), err=True)
    code, lines = code_of(error), _in_words(error)
    for line in lines:
        note(f"penstock: error: {line:.{_LONGEST}}" if line != _ABORTED else f"penstock: {line}")
    if json:
        with suppress(OSError):  # it may be this that failed
            emit({"error": {"code": code, "message": "\n".join(lines)}})
    return code


_ABORTED = "aborted"
#: Of one problem, so much is said: a message may quote what somebody gave.
_LONGEST = 4_000


def _in_words(error: BaseException) -> list[str]:
    match error:
        case click.Abort():
            return [_ABORTED]
        case click.UsageError():
            hint = f"; see `{error.ctx.command_path} --help`" if error.ctx else ""
            return [error.format_message().rstrip(".") + hint]
        case click.ClickException():
            said = error.format_message()
        case UnicodeEncodeError():
            return [f"{error.object!r:.200} is not text: an argument of the command must be UTF-8"]
        case OSError():
            said = f"{error.strerror or error}" + (f": {error.filename!r}" if error.filename else "")
        case _:
            said = str(error)
    return said.split("\n")[:_MOST] if said else [type(error).__name__]


_MOST = 100
