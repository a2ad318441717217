"""Makes what errors and reasons say storable: text with halves of characters, which no encoding takes."""

from __future__ import annotations

from penstock.core.job import MAX_TRACEBACK, TERMINAL, AttemptError, Progress, State
from penstock.core.lifecycle import ASK_CANCELLED, Transition
from penstock.core.text import storable as _storable
from penstock.core.text import text_of

__all__ = ["asked_because", "reason_after", "storable", "storable_error", "storable_progress"]


def storable(text: str) -> str:
    """The text as every store can keep it, also where it should be one and is not."""
    return _storable(text) if type(text) is str else text_of(text, "(unreadable)", most=MAX_TRACEBACK)


def storable_error(error: AttemptError) -> AttemptError:
    """The same error; only who must pays for a new one."""
    words = (error.kind, error.message, error.traceback)
    if all(type(word) is str and word.isascii() for word in words):
        return error
    return AttemptError(error.attempt, error.at, *map(storable, words))


def storable_progress(progress: Progress) -> Progress:
    """The same progress, with a note that can be stored."""
    if progress.note.isascii():
        return progress
    return Progress(progress.done, progress.of, storable(progress.note))


def asked_because(reason: str) -> str | None:
    """What to keep of the reason with which a running job is asked to stop; None: nobody gave one."""
    return None if reason == ASK_CANCELLED else storable(reason)


def reason_after(to: Transition, asked: bool, because: str | None) -> str | None:
    """The reason of a settled job, which may have been `asked` to stop: what was said then stays until it
    has stopped, and is why."""
    if asked and (to.state not in TERMINAL or (because and to.state is State.CANCELLED)):
        return because
    return to.reason and storable(to.reason)
