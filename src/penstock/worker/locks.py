"""Proof of life: who holds the lock on a worker's file is that worker; who can take it has proof of death.

The files lie in a directory of this host and this user, each named by a worker's random id. A file
that is not there proves nothing: its worker may live on another host or in another container. So
`is_dead` is True or "nobody knows", and without a usable directory nobody ever knows; then leases
run out by their time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import time
from collections.abc import Iterator, Set
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system: nobody can prove anything
    fcntl = None  # type: ignore[assignment]

from penstock.core.forks import begins_anew

__all__ = ["LivenessLock", "is_dead", "lock_directory", "proven_dead", "remove_dead", "sweep"]

_log = logging.getLogger("penstock.worker")
_ENDING = ".alive"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_DAY = 86_400.0


class LivenessLock:
    """Held from its making until `release`, or until the process is gone, however it goes.

    Neither processes that are started nor those that are forked hold it on. Where it cannot be had
    (a read-only file system, somebody else's directory) the log says so once, and `held` is False.
    """

    def __init__(self, worker_id: str, directory: Path | None = None) -> None:
        self.worker_id = worker_id
        self._directory = directory
        self._fd = -1
        try:
            self._fd = self._take()
        except OSError as error:
            _log.warning(
                "worker %s: no proof of life (%s); if it dies, its leases run out by time", worker_id, error
            )
        if self._fd >= 0:
            begins_anew(self)

    def begin_life(self) -> None:
        """In a fork's child: while it kept the file open, its dead parent would seem to live."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    @property
    def held(self) -> bool:
        return self._fd >= 0

    def release(self) -> None:
        """Take the file away: this worker has ended and left nothing behind. Safe to call twice."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        with _open_directory(self._directory, create=False) as where:
            if where is not None:
                _unlink(self.worker_id + _ENDING, where)
        os.close(fd)

    def __enter__(self) -> LivenessLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _take(self) -> int:
        if fcntl is None:
            raise OSError("this platform has no flock")
        if not _NAME.match(self.worker_id):
            raise OSError("its id cannot be a file's name")
        with _open_directory(self._directory, create=True) as where:
            assert where is not None
            # locked before it gets its name: nobody can find it and take the lock first
            name = f"{self.worker_id}.new"
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFE, 0o600, dir_fd=where)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.rename(name, self.worker_id + _ENDING, src_dir_fd=where, dst_dir_fd=where)
            except OSError:
                os.close(fd)
                _unlink(name, where)
                raise
            return fd


def is_dead(worker_id: str, directory: Path | None = None) -> bool:
    """Whether it is proven that this worker is dead. False: it lives, or nobody here knows.

    The answer stays the same until `remove_dead` or `sweep`, so that whoever is interrupted while it takes
    back the dead worker's jobs, and everybody else, can ask again.
    """
    if not _NAME.match(worker_id):
        return False
    with _open_directory(directory, create=False) as where:
        if where is None:
            return False
        with _locked(worker_id + _ENDING, where, shared=True) as taken:
            return taken


def proven_dead(known: Set[str] = frozenset(), directory: Path | None = None) -> set[str]:
    """All workers, of whatever store, that are proven dead and not removed: a look at this host alone.

    Those `known` to be dead are so still: a host that has seen many workers of other stores die has a
    file of each for a day, and to try a lock for each took 4 ms a second.
    """
    with _open_directory(directory, create=False) as where:
        if where is None:
            return set()
        dead = set()
        for name in os.listdir(where):
            if not name.endswith(_ENDING):
                continue
            if (worker := name.removesuffix(_ENDING)) in known:
                dead.add(worker)
            else:
                with _locked(name, where, shared=True) as taken:
                    if taken:
                        dead.add(worker)
        return dead


def remove_dead(worker_id: str, directory: Path | None = None) -> bool:
    """Remove a dead worker's file, once its jobs are taken back; False if it is not proven dead."""
    if not _NAME.match(worker_id):
        return False
    with _open_directory(directory, create=False) as where:
        return where is not None and _unlink_dead(worker_id + _ENDING, where)


def sweep(older_than: float = _DAY, directory: Path | None = None) -> int:
    """Remove files of workers that are dead and began more than `older_than` seconds ago; how many."""
    swept = 0
    with _open_directory(directory, create=False) as where:
        if where is None:
            return 0
        limit = time.time() - older_than
        for name in os.listdir(where):
            if not name.endswith((_ENDING, ".new")):
                continue
            try:
                old = os.stat(name, dir_fd=where, follow_symlinks=False).st_mtime < limit
            except FileNotFoundError:
                continue
            swept += old and _unlink_dead(name, where)
    return swept


def lock_directory() -> Path:
    """Where the files are: XDG_RUNTIME_DIR/penstock if there is one, else /tmp/penstock-<uid>."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and os.access(runtime, os.W_OK | os.X_OK):
        return Path(runtime, "penstock")
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return Path("/tmp", f"penstock-{user}")  # noqa: S108 (checked below: ours, and closed to others)


# ── private ──────────────────────────────────────────────────────────────────────────────────────

#: Never a symbolic link, never passed on to a program that is started.
_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


@contextlib.contextmanager
def _open_directory(directory: Path | None, *, create: bool) -> Iterator[int | None]:
    """The directory as an open file, so that nobody can put another in its place; None where there is none.

    It must be ours and closed to everybody else: anybody may make names in /tmp. With `create` an
    OSError says what is wrong, without it that is as good as no directory.
    """
    path = lock_directory() if directory is None else directory
    fd = -1
    try:
        if fcntl is None:
            raise OSError("this platform has no flock")
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _SAFE)
        status = os.fstat(fd)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise PermissionError(f"{path} belongs to somebody else, or is open to others")
    except OSError:
        if fd >= 0:
            os.close(fd)
        if create:
            raise
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _locked(name: str, where: int, *, shared: bool) -> Iterator[bool]:
    """Whether the file is there and its lock could be taken; held inside the block.

    Those who only look share the lock, so that two of them do not take each other for the worker.
    """
    assert fcntl is not None  # else there is no `where`
    try:
        fd = os.open(name, os.O_RDWR | _SAFE, dir_fd=where)
    except OSError:  # not there, or a link that somebody put there
        yield False
        return
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        mine, named = os.fstat(fd), os.stat(name, dir_fd=where, follow_symlinks=False)
        # it may have been removed, and another made under its name, between our open and our lock
        held = (mine.st_dev, mine.st_ino) == (named.st_dev, named.st_ino)
    except OSError:  # somebody has it; or it is gone
        held = False
    try:
        yield held
    finally:
        os.close(fd)


def _unlink_dead(name: str, where: int) -> bool:
    with _locked(name, where, shared=False) as taken:
        if taken:
            _unlink(name, where)
        return taken


def _unlink(name: str, where: int) -> None:
    try:
        os.unlink(name, dir_fd=where)
    except OSError:  # gone already, or the file system has become read-only: it is swept one day
        pass
