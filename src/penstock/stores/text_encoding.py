"""Make the text of errors, reasons and progress storable: replace surrogates, which UTF-8 cannot encode."""

from __future__ import annotations

from penstock.core.job import MAX_TRACEBACK, TERMINAL, AttemptError, Progress, State
from penstock.core.lifecycle import ASK_CANCELLED, Transition
from penstock.core.text import storable as _storable
from penstock.core.text import text_of


def storable(text: str) -> str:
    """Return the text in a form that every store can keep. A value that is not a str is converted to one."""
    return _storable(text) if type(text) is str else text_of(text, "(unreadable)", most=MAX_TRACEBACK)


def storable_error(error: AttemptError) -> AttemptError:
    """Return the error with storable text: the same object if its text is already storable."""
    words = (error.kind, error.message, error.traceback, error.worker)
    if all(type(word) is str and word.isascii() for word in words):
        return error
    kind, message, traceback, worker = map(storable, words)
    return AttemptError(error.attempt, error.at, kind, message, traceback, worker, error.fetched_at)


def storable_progress(progress: Progress) -> Progress:
    """Return the progress with a note that can be stored."""
    if progress.note.isascii():
        return progress
    return Progress(progress.done, progress.of, storable(progress.note))


def asked_because(reason: str) -> str | None:
    """Return the reason to store with a request to stop a running job; None for the default reason."""
    return None if reason == ASK_CANCELLED else storable(reason)


def reason_after(to: Transition, asked: bool, because: str | None) -> str | None:
    """Return the reason to store with a settled job.

    If the job was `asked` to stop, the reason of that request (`because`) stays until the job has ended, and
    is its final reason if it is cancelled.
    """
    if asked and (to.state not in TERMINAL or (because is not None and to.state is State.CANCELLED)):
        return because
    return to.reason and storable(to.reason)
