"""Liveness locks: a worker holds the lock on its file while it lives, so a free lock proves that it is dead.

The files are in a directory of this host and this user, each named by a worker's random id. A missing
file proves nothing: its worker may run on another host or in another container. So `is_dead` means
"proven dead" or "unknown". Without a usable directory no death is ever proven, and leases end by
their time.
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
except ImportError:  # not a POSIX system: no death can be proven
    fcntl = None  # type: ignore[assignment]

from penstock.core.forks import reset_after_fork

_log = logging.getLogger("penstock.worker")
_SUFFIX = ".alive"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_DAY = 86_400.0


class LivenessLock:
    """Held from its creation until `release` or the end of the process.

    Child processes do not hold it, whether started or forked. If the lock cannot be taken (a read-only file
    system, a directory of another user), that is logged once and `held` is False.
    """

    def __init__(self, worker_id: str, directory: Path | None = None) -> None:
        self.worker_id = worker_id
        self._directory = directory
        self._fd = -1
        try:
            self._fd = self._create_locked()
        except OSError as error:
            _log.warning(
                "worker %s: no liveness lock (%s); if the worker dies, its leases expire by time",
                worker_id,
                error,
            )
        if self._fd >= 0:
            reset_after_fork(self)

    def reset_in_child(self) -> None:
        """Close the file in a forked child; otherwise the parent would seem alive after its death."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    @property
    def held(self) -> bool:
        return self._fd >= 0

    def release(self) -> None:
        """Delete the file: this worker has ended and holds no job. Safe to call twice."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        with _open_directory(self._directory, create=False) as where:
            if where is not None:
                _unlink(self.worker_id + _SUFFIX, where)
        os.close(fd)

    def __enter__(self) -> LivenessLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _create_locked(self) -> int:
        if fcntl is None:
            raise OSError("this platform has no flock")
        if not _NAME.match(self.worker_id):
            raise OSError("the worker id is not a valid file name")
        with _open_directory(self._directory, create=True) as where:
            assert where is not None
            # locked before it gets its final name: no process can take the lock first
            name = f"{self.worker_id}.new"
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFE, 0o600, dir_fd=where)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.rename(name, self.worker_id + _SUFFIX, src_dir_fd=where, dst_dir_fd=where)
            except OSError:
                os.close(fd)
                _unlink(name, where)
                raise
            return fd


def is_dead(worker_id: str, directory: Path | None = None) -> bool:
    """Whether this worker is proven dead. False: it lives, or its state is unknown here.

    The answer stays the same until `remove_dead` or `sweep`: a process that is interrupted while it
    reclaims the dead worker's jobs, and every other process, can ask again.
    """
    if not _NAME.match(worker_id):
        return False
    with _open_directory(directory, create=False) as where:
        if where is None:
            return False
        with _locked(worker_id + _SUFFIX, where, shared=True) as taken:
            return taken


def proven_dead(known: Set[str] = frozenset(), directory: Path | None = None) -> set[str]:
    """The ids of all workers on this host, of any store, that are proven dead and not removed.

    Workers in `known` are returned without a new check: on a host where many workers of other stores have
    died, a file of each remains for a day, and trying each lock took 4 ms per second.
    """
    with _open_directory(directory, create=False) as where:
        if where is None:
            return set()
        dead = set()
        for name in os.listdir(where):
            if not name.endswith(_SUFFIX):
                continue
            if (worker := name.removesuffix(_SUFFIX)) in known:
                dead.add(worker)
            else:
                with _locked(name, where, shared=True) as taken:
                    if taken:
                        dead.add(worker)
        return dead


def remove_dead(worker_id: str, directory: Path | None = None) -> bool:
    """Remove a dead worker's file after its jobs were reclaimed. False if the worker is not proven dead."""
    if not _NAME.match(worker_id):
        return False
    with _open_directory(directory, create=False) as where:
        return where is not None and _unlink_dead(worker_id + _SUFFIX, where)


def sweep(older_than: float = _DAY, directory: Path | None = None) -> int:
    """Remove files of dead workers that started more than `older_than` seconds ago; returns how many."""
    swept = 0
    with _open_directory(directory, create=False) as where:
        if where is None:
            return 0
        limit = time.time() - older_than
        for name in os.listdir(where):
            if not name.endswith((_SUFFIX, ".new")):
                continue
            try:
                old = os.stat(name, dir_fd=where, follow_symlinks=False).st_mtime < limit
            except FileNotFoundError:
                continue
            swept += old and _unlink_dead(name, where)
    return swept


def lock_directory() -> Path:
    """The directory of the files: XDG_RUNTIME_DIR/penstock if that is set, else /tmp/penstock-<uid>."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and os.access(runtime, os.W_OK | os.X_OK):
        return Path(runtime, "penstock")
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return Path("/tmp", f"penstock-{user}")  # noqa: S108 (checked below: owned by this user, closed to others)


# ── private ──────────────────────────────────────────────────────────────────────────────────────

#: Flags: never follow a symbolic link, never pass the file on to a program that is started.
_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


@contextlib.contextmanager
def _open_directory(directory: Path | None, *, create: bool) -> Iterator[int | None]:
    """Open the directory, so that it cannot be replaced by another; None if it is not usable.

    The directory must be owned by this user and closed to all others, because anybody may create names in
    /tmp. With `create` an OSError names the problem; without, an unusable directory counts as missing.
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
            raise PermissionError(f"{path} belongs to another user, or is open to others")
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
    """Whether the file exists and its lock was taken. The lock is held inside the block.

    Checks use a shared lock, so that two checks at the same time do not take each other for the worker.
    """
    assert fcntl is not None  # without fcntl there is no `where`
    try:
        fd = os.open(name, os.O_RDWR | _SAFE, dir_fd=where)
    except OSError:  # missing, or a symbolic link
        yield False
        return
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        opened, current = os.fstat(fd), os.stat(name, dir_fd=where, follow_symlinks=False)
        # the file may have been replaced by another of the same name between open and lock
        held = (opened.st_dev, opened.st_ino) == (current.st_dev, current.st_ino)
    except OSError:  # the lock is held, or the file is gone
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
    except OSError:  # gone, or the file system has become read-only: a later sweep removes it
        pass
