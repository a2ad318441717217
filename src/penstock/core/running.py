"""State of this process: the running attempt, the start folder, and guards that refuse stores in test runs.

The attempt is set around a task's function; `current_job()` and enqueues read it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import msgspec

#: The running attempt of this task, thread or process (`app.attempt.Attempt`).
running_attempt: ContextVar[Any] = ContextVar("penstock_attempt")


class Awaited(msgspec.Struct, frozen=True, gc=False):
    """The queues of the jobs whose results an attempt waits for while it holds its slot; none: of no job."""

    queues: tuple[str, ...]


@contextlib.contextmanager
def waits_for(queues: Iterable[str]) -> Iterator[None]:
    """Inside the block the attempt that runs here, if one does, waits for jobs of these queues."""
    attempt = running_attempt.get(None)
    if attempt is None:
        yield
        return
    awaited = tuple(queues)
    attempt.wait(awaited)
    try:
        yield
    finally:
        attempt.wait(awaited, over=True)


# ── the folder ───────────────────────────────────────────────────────────────────────────────────


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


_STARTED_IN = _working_directory()


def start_folder() -> str | None:
    """The working directory in which this process has started; None if it does not exist any more.

    Child processes of a worker start there, too: a task may have changed the directory since, and modules,
    settings and files of the app are relative to the first one.
    """
    return _STARTED_IN if _STARTED_IN is not None and os.path.isdir(_STARTED_IN) else None


# ── guards of stores ─────────────────────────────────────────────────────────────────────────────

#: Functions called with the URL before an app makes its store. If one raises, the app's use of the store
#: raises the error: test runs refuse stores that are not meant for tests.
store_guards: list[Callable[[str], None]] = []
