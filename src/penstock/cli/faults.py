"""How a command ends: an exit code that scripts can use, and one clear line for what went wrong."""

from __future__ import annotations

import enum
import sys
import traceback

import click

from penstock.errors import ArgumentError, ConfigError, JobNotFound, PenstockError, StoreUnavailable

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


def code_of(error: PenstockError) -> Exit:
    """The exit code that this error means."""
    if isinstance(error, Fault):
        return error.code
    if isinstance(error, (ConfigError, ArgumentError)):
        return Exit.USAGE
    if isinstance(error, JobNotFound):
        return Exit.NOT_FOUND
    if isinstance(error, StoreUnavailable):
        return Exit.UNAVAILABLE
    return Exit.FAILED


def complain(error: BaseException, *, whole: bool = False) -> None:
    """Say on stderr what went wrong, a line for each problem; with `whole`, the traceback before it."""
    if whole:
        traceback.print_exception(error, file=sys.stderr)
    said = error.format_message() if isinstance(error, click.ClickException) else str(error)
    for line in said.splitlines() or [type(error).__name__]:
        click.echo(f"penstock: error: {line}", err=True)
