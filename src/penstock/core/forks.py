"""Makes forks safe: locks, threads and queues that belong to one process are replaced in a fork's child.

A fork copies one thread and all memory. In the child, a lock that another thread held stays locked for ever,
queues still contain what the parent is about to deliver, and a module that another thread was importing stays
half imported. So this module has three tools: a `lock` is free again in the child; an object registered with
`reset_after_fork` replaces its threads, queues and locks there; and no fork happens while another thread is
`importing`.
"""

from __future__ import annotations

import contextlib
import logging  # noqa: F401 (registers first: see below)
import os
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


class Forked(Protocol):
    """An object with parts that belong to one process."""

    def reset_in_child(self) -> None:
        """In the child: replace those parts. The parent's threads do not exist there."""
        ...


class Paused(Protocol):
    """An object that must pause during a fork."""

    def before_fork(self, seconds: float) -> bool:
        """Pause. False if that was not possible within `seconds`; the fork then continues without it."""
        ...

    def after_fork(self) -> None:
        """In the parent, if `before_fork` returned True: continue."""
        ...


class Register(Generic[T]):
    """Weak references to objects. Not a WeakSet, which may change while another thread iterates over it."""

    def __init__(self) -> None:
        self._refs: dict[int, weakref.ref[T]] = {}

    def add(self, one: T) -> None:
        refs, key = self._refs, id(one)

        def forget(ref: weakref.ref[T]) -> None:
            if refs.get(key) is ref:
                del refs[key]

        refs[key] = weakref.ref(one, forget)

    def all(self) -> list[T]:
        return [one for ref in list(self._refs.values()) if (one := ref()) is not None]


def lock() -> threading.RLock:
    """A lock that is free in a fork's child, even if another thread of the parent held it.

    Re-entrant, because a signal handler or a `__del__` may run while its thread holds the lock.
    """
    made = threading.RLock()
    _locks.add(made)
    return made


def reset_after_fork(owner: Forked) -> None:
    """Call `owner.reset_in_child()` in the child of each fork, while the owner lives."""
    _forked.add(owner)


def pause_during_fork(owner: Paused) -> None:
    """Pause this object during each fork, while it lives."""
    _paused.add(owner)


@contextlib.contextmanager
def importing() -> Iterator[bool]:
    """Keep other threads from forking while modules are imported here.

    Python's lock of a half-imported module cannot be freed in a child, so an import there would wait for
    ever. Yields whether this thread is in the middle of such imports: it may see half-imported modules.
    """
    with _imports:
        _depth.append(True)
        try:
            yield len(_depth) > 1
        finally:
            _depth.pop()


# ── private ──────────────────────────────────────────────────────────────────────────────────────

#: Maximum total time for which a fork waits for objects to pause (s).
PATIENCE = 5.0


_locks: Register[Any] = Register()
_forked: Register[Forked] = Register()
_paused: Register[Paused] = Register()
#: Held while importing and while forking.
_imports = threading.RLock()
#: How often its holder is in `importing`.
_depth: list[bool] = []


class _Fork(threading.local):
    """The locks held by this thread's forks: several threads may fork at the same time, and so may a signal
    handler while its thread does."""

    def __init__(self) -> None:
        self.held: list[tuple[bool, list[Paused]]] = []


_fork = _Fork()


def _before() -> None:
    ends = time.monotonic() + PATIENCE
    held: list[Paused] = []
    _fork.held.append((_imports.acquire(timeout=PATIENCE), held))
    for owner in _paused.all():
        if owner.before_fork(max(0.0, ends - time.monotonic())):
            held.append(owner)  # noqa: PERF401 (each is recorded at once)


def _after_in_parent() -> None:
    imports, held = _fork.held.pop()
    for owner in held:
        owner.after_fork()
    if imports:
        _imports.release()


def _after_in_child() -> None:
    global _imports
    _imports = threading.RLock()
    _fork.held.clear()
    for one in _locks.all():
        one._at_fork_reinit()
    for owner in _forked.all():
        owner.reset_in_child()


# Handlers registered last run first, and logging takes its lock before a fork too. That must happen after
# ours, because modules being imported ask for loggers: so logging is imported above and registers first.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
