"""Who may read and write a SQLite file and what lies beside it: its user alone, unless it is said.

That does not depend on the umask. A database that is there keeps its mode. SQLite gives that mode to `-wal`
and `-shm`; here it is given to our folder and the files in it. Only those who may write the database may open
a lock file at all: a lock can be held with a descriptor that only reads.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from penstock.core.errors import ConfigError

__all__ = ["PRIVATE", "create", "fit", "open_beside", "open_to_others", "read_mode"]

PRIVATE = 0o600

_MODE = re.compile(r"06[046][046]\Z")
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)


def read_mode(text: str) -> int:
    """The mode of a new file, as in "0660"; raises ConfigError."""
    if not isinstance(text, str) or not _MODE.match(text):
        raise ConfigError(
            f"mode={text!r} is no mode of a SQLite file: write '0600' (the default: its user alone), "
            "'0660' (its group too), or others of the digits 6, 4 and 0 after '06'"
        )
    return int(text, 8)


def create(path: Path, mode: int) -> None:
    """Make an empty file of this mode, unless it is there; raises OSError."""
    if path.exists() or not hasattr(os, "mknod"):
        return
    try:
        # not opened: to close it would drop the locks that another thread has on it meanwhile
        os.mknod(path, stat.S_IFREG | mode)
    except FileExistsError:
        return
    path.chmod(mode)  # what the umask took


def fit(folder: Path, path: Path) -> None:
    """Give a folder of ours the mode of the database, with the right to enter it for those who may read."""
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode) & 0o666
    _fit(folder, status, mode | (mode & 0o444) >> 2)


def open_beside(path: Path, like: Path | None, *, lock: bool) -> int:
    """Open a file in our folder, made if it is not there, with the mode of the database; raises OSError."""
    if like is None:
        return os.open(path, _FLAGS, PRIVATE)
    status = like.stat()
    mode = stat.S_IMODE(status.st_mode) & 0o666
    if lock:
        mode = _for_writers(mode)
    fd = os.open(path, _FLAGS, mode)
    _fit(fd, status, mode)
    return fd


def open_to_others(path: Path, folder: Path, allowed: int) -> Iterator[str]:
    """What more than this mode says others may do to the database and what lies beside it."""
    classes = ((3, "its group"), (0, "every user of this machine"))
    for one in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm")), *_inside(folder)):
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
    """Without the classes of users that may not write."""
    return mode & sum(bits for bits in (0o600, 0o060, 0o006) if mode & bits & 0o222)


def _fit(one: Path | int, like: os.stat_result, mode: int) -> None:
    """If it is ours: this mode, and the owner and group of the database as far as we may give it away."""
    if not hasattr(os, "geteuid"):
        return
    now = os.stat(one)
    root = os.geteuid() == 0
    if now.st_uid != os.geteuid() and not root:
        return
    try:
        if (now.st_uid, now.st_gid) != (like.st_uid, like.st_gid):
            os.chown(one, like.st_uid if root else -1, like.st_gid)
    except OSError:  # not a group of ours
        pass
    if stat.S_IMODE(now.st_mode) != mode:
        os.chmod(one, mode)


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
