"""The standard streams of a command: open, able to print all characters, and closed without a traceback."""

from __future__ import annotations

import io
import os
import sys

__all__ = ["close_streams", "prepare_streams"]


def prepare_streams() -> None:
    """Make stdout and stderr accept all characters, and open closed streams on the null device."""
    _open_closed_ones()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _open_closed_ones() -> None:
    """Open closed standard streams, so that no other file or socket gets the number of a stream."""
    for stream in (0, 1, 2):
        try:
            os.fstat(stream)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(nowhere, True)


def close_streams() -> None:
    """Flush stdout and stderr. After an error, discard the rest, or Python would try again at exit."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
