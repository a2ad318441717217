"""Exit codes of commands, and error messages on stderr."""

from __future__ import annotations

import enum
import re
import traceback
from contextlib import suppress
from textwrap import indent

import click

from penstock.cli.show import emit, note, say_lines
from penstock.core.errors import ArgumentError, ConfigError, JobNotFound, PenstockError, StoreUnavailable

#: The exit code of a listing that Ctrl-C stopped midway, as shells have it.
INTERRUPTED = 130


class Exit(enum.IntEnum):
    """Exit codes of all commands."""

    OK = 0
    FAILED = 1  # the command failed or was refused
    USAGE = 2  # an invalid option, name, setting or app
    NOT_FOUND = 3  # no such job, queue or task
    UNAVAILABLE = 4  # the store does not answer; trying again later may help


class CommandError(PenstockError):
    """An error that ends a command with a message and an exit code."""

    def __init__(self, says: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(says)
        self.code = code


def not_found(says: str) -> CommandError:
    """The fault of a job, queue or task that does not exist."""
    return CommandError(says, Exit.NOT_FOUND)


def code_of(error: BaseException) -> Exit:
    """The exit code of an error."""
    match error:
        case CommandError():
            return error.code
        case ConfigError() | ArgumentError() | click.UsageError() | UnicodeEncodeError():
            return Exit.USAGE
        case JobNotFound():
            return Exit.NOT_FOUND
        case StoreUnavailable():
            return Exit.UNAVAILABLE
    return Exit.FAILED


def complain(error: BaseException, *, json: bool = False, whole: bool = False) -> Exit:
    """Print an error on stderr, one line per problem, and return the exit code.

    With `json`, the error is also printed on stdout, as the one JSON document. With `whole`, or if the error
    is of no known type, the traceback is printed first.
    """
    known = isinstance(error, (PenstockError, click.ClickException, click.Abort, OSError, UnicodeEncodeError))
    if whole or not known:
        # indented, so that no line of a traceback can pass for a line of this command
        say_lines(indent("".join(traceback.format_exception(error)).rstrip(), "  "), err=True)
    code, lines = code_of(error), _in_words(error)
    for line in lines:
        note(f"penstock: error: {line:.{_LONGEST}}" if line != _ABORTED else f"penstock: {line}")
    if json:
        with suppress(OSError):  # stdout itself may have failed
            emit({"error": {"code": code, "message": "\n".join(lines)}})
    return code


_ABORTED = "aborted"
#: Maximum number of characters printed of one problem: a message may quote long input.
_LONGEST = 4_000


def _in_words(error: BaseException) -> list[str]:
    match error:
        case click.Abort():
            return [_ABORTED]
        case click.UsageError():
            return [_option_hint(error) or _usage(error)]
        case click.ClickException():
            message = error.format_message()
        case UnicodeEncodeError():
            return [f"{error.object!r:.200} is not text: an argument of the command must be UTF-8"]
        case OSError():
            message = f"{error.strerror or error}" + (f": {error.filename!r}" if error.filename else "")
        case _:
            message = str(error)
    return message.split("\n")[:_MOST] if message else [type(error).__name__]


def _usage(error: click.UsageError) -> str:
    hint = f"; see `{error.ctx.command_path} --help`" if error.ctx else ""
    return _CHOICES.sub(r"\1 ", error.format_message()).rstrip(".") + hint


def _option_hint(error: click.UsageError) -> str:
    """The message for an option that workers of another system have; "" for all other errors."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return ""
    if error.ctx.parent is not None and error.ctx.command.name != "worker":
        return ""
    from penstock.core.peer_words import peer_hint  # only for this message

    known = peer_hint("command option", error.option_name)
    return known and f"no such option {error.option_name!r}{known}"


#: click lists the choices of a missing argument on lines of their own.
_CHOICES = re.compile(r"([:,])\n\t")
_MOST = 100
