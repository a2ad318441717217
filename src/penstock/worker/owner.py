"""The worker of a child process that runs process tasks.

It need not be the child's parent: a child may be forked from a process that the worker has started.
"""

from __future__ import annotations

import os

__all__ = ["serves", "worker_pid"]

_known: tuple[int, int] | None = None  # a child of this process, forked by the user's code, has another pid


def serves(worker: int) -> None:
    """Note that this process runs process tasks of the worker with this pid."""
    global _known  # a process has one worker
    _known = os.getpid(), worker


def worker_pid() -> int:
    """The pid of the worker whose process tasks this process runs; in others that of its parent."""
    if _known is not None and _known[0] == os.getpid():
        return _known[1]
    return os.getppid()
