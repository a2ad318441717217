"""Makes what errors and reasons say storable: text with halves of characters, which no encoding takes."""

from __future__ import annotations

from penstock.job import AttemptError, Progress

__all__ = ["storable", "storable_error", "storable_progress"]


def storable(text: str) -> str:
    """The text, where it has halves of surrogate pairs (as file names that are not UTF-8 do) with these
    written as escapes: a strange message must not keep a job from being settled."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def storable_error(error: AttemptError) -> AttemptError:
    """The same error; only who must pays for a new one."""
    words = (error.kind, error.message, error.traceback)
    if all(map(str.isascii, words)):
        return error
    return AttemptError(error.attempt, error.at, *map(storable, words))


def storable_progress(progress: Progress) -> Progress:
    """The same progress, with a note that can be stored."""
    if progress.note.isascii():
        return progress
    return Progress(progress.done, progress.of, storable(progress.note))
