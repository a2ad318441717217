"""Which process this is: the worker, a child that runs its process tasks, or a fork that a task has made.

A child need not be the worker's own: it may be forked from a process that the worker has started.

A task that calls `os.fork` has two processes in the middle of the worker's code, with the same sockets. The
child must not go on: it would report the end of the parent's job, or run the parent's event loop. So it ends
where the task's function ends there.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import NoReturn

from penstock.core.running import running_attempt

# ── the worker of a child ────────────────────────────────────────────────────────────────────────

_known: tuple[int, int] | None = None  # a child of this process, forked by the user's code, has another pid


def note_worker(worker: int) -> None:
    """Note that this process runs process tasks of the worker with this pid."""
    global _known  # a process has one worker
    _known = os.getpid(), worker


def worker_pid() -> int:
    """The pid of the worker whose process tasks this process runs; in others that of its parent."""
    if _known is not None and _known[0] == os.getpid():
        return _known[1]
    return os.getppid()


# ── the fork of a task ───────────────────────────────────────────────────────────────────────────


class _Stray:
    """`here`: whether this process was forked by a task, and so must not run the worker's code."""

    __slots__ = ("here",)

    def __init__(self) -> None:
        self.here = False


#: Read after each function: an attribute costs less than a system call for the pid.
stray = _Stray()


def reset_stray() -> None:
    """A worker, or the host of process tasks, begins here: its forks are its own from now on."""
    stray.here = False


def end_fork(why: str = "") -> NoReturn:
    """End this process as a program ends whose last function has returned, or raises the current error."""
    error, code = sys.exception(), 0
    if isinstance(error, StopIteration):  # of a coroutine that has returned
        error = None
    try:
        if why:
            sys.stderr.write(f"penstock: {why}\n")
            code = 1
        elif isinstance(error, SystemExit):
            code = _code_of(error)
        elif error is not None:
            traceback.print_exception(error)
            code = 1
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(code)


def _code_of(error: SystemExit) -> int:
    """The exit code that Python would end with; a text is printed."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    sys.stderr.write(f"{error.code}\n")
    return 1


def _in_child() -> None:
    stray.here = running_attempt.get(None) is not None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
