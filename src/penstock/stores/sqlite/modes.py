"""File modes of a SQLite database and the files beside it: by default only its owner may read and write them.

The umask has no influence. An existing database keeps its mode. SQLite gives that mode to `-wal` and `-shm`;
this module gives it to our folder and its files. Only users who may write the database may open a lock file,
because a read-only descriptor is enough to hold a lock.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from penstock.core.errors import ConfigError

PRIVATE = 0o600

_MODE = re.compile(r"06[046][046]\Z")
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)


def read_mode(text: str) -> int:
    """Parse the mode of a new file, e.g. "0660"; raises ConfigError."""
    if not isinstance(text, str) or not _MODE.match(text):
        raise ConfigError(
            f"mode={text!r} is no mode of a SQLite file: write '0600' (the default: only its owner), '0660' "
            "(its group, too), or '06' and two of the digits 6, 4 and 0"
        )
    return int(text, 8)


def create(path: Path, mode: int) -> None:
    """Create an empty file with this mode, unless it exists; raises OSError."""
    if path.exists() or not hasattr(os, "mknod"):
        return
    try:
        # mknod, not open: closing the file would drop locks that another thread has on it
        os.mknod(path, stat.S_IFREG | mode)
    except FileExistsError:
        return
    path.chmod(mode)  # undo the umask


def fit(folder: Path, path: Path) -> None:
    """Give our folder the mode of the database, plus execute permission for classes that may read."""
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode) & 0o666
    _fit(folder, status, mode | (mode & 0o444) >> 2)


def open_beside(path: Path, like: Path | None, *, lock: bool) -> int:
    """Open a file in our folder, created if needed, with the mode of the database; raises OSError."""
    if like is None:
        return os.open(path, _FLAGS, PRIVATE)
    status = like.stat()
    mode = stat.S_IMODE(status.st_mode) & 0o666
    if lock:
        mode = _for_writers(mode)
    fd = os.open(path, _FLAGS, mode)
    try:
        _fit(fd, status, mode)
    except BaseException:  # boundary: after any error nobody else could close it
        os.close(fd)
        raise
    return fd


def open_to_others(path: Path, folder: Path, allowed: int) -> Iterator[str]:
    """Yield what other users may do to the database and the files beside it beyond the `allowed` mode."""
    classes = ((3, "its group"), (0, "every user of this machine"))
    for one in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm")), *_files_in(folder)):
        try:
            mode = one.stat().st_mode & ~allowed
        except OSError:
            continue
        for shift, who in classes:
            if may := _MAY[mode >> shift & 0o6]:
                yield f"{who} may {may} {one.name}"


# ── private ──────────────────────────────────────────────────────────────────────────────────────


_MAY = {0: "", 2: "write", 4: "read", 6: "read and write"}


def _for_writers(mode: int) -> int:
    """Return the mode without the permissions of classes (owner, group, others) that may not write."""
    return mode & sum(bits for bits in (0o600, 0o060, 0o006) if mode & bits & 0o222)


def _fit(one: Path | int, like: os.stat_result, mode: int) -> None:
    """Set this mode, and the owner and group of the database as far as permitted, if we own the file."""
    if not hasattr(os, "geteuid"):
        return
    now = os.stat(one)
    root = os.geteuid() == 0
    if now.st_uid != os.geteuid() and not root:
        return
    try:
        if (now.st_uid, now.st_gid) != (like.st_uid, like.st_gid):
            os.chown(one, like.st_uid if root else -1, like.st_gid)
    except OSError:  # this process is not in that group
        pass
    if stat.S_IMODE(now.st_mode) != mode:
        os.chmod(one, mode)


def _files_in(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
