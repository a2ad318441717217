"""Checks of this machine: Python, the event loop, the settings file, and the folder of a SQLite store."""

from __future__ import annotations

import os
import platform
import shutil
import stat
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from penstock.config import Loaded

#: Bytes: two write-ahead logs of their usual size.
_NO_ROOM = 32 * 2**20
#: What `penstock config` shows of a secret.
_MASK = "***"
_ON_OTHER_MACHINES = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p")


class DoctorFinding(msgspec.Struct, frozen=True):
    """One finding: the checked item, its level (ok, warning or bad), why, and the way out.

    `says` is both in one line.
    """

    what: str
    how: str
    says: str
    why: str
    way_out: str = ""

    @classmethod
    def of(cls, what: str, how: str, why: str, way_out: str = "") -> DoctorFinding:
        """A finding from its parts."""
        return cls(what, how, f"{why}; {way_out}" if way_out else why, why, way_out)


def python() -> DoctorFinding:
    """The interpreter and the platform."""
    return DoctorFinding.of("Python", "ok", f"{platform.python_version()} on {platform.platform()}")


def event_loop() -> DoctorFinding:
    """Whether the fast event loop is installed."""
    if find_spec("uvloop") is None:
        return DoctorFinding.of("event loop", "warning", "asyncio", "install uvloop for a faster event loop")
    return DoctorFinding.of("event loop", "ok", "uvloop")


def open_settings(loaded: Loaded) -> Iterator[DoctorFinding]:
    """Report a settings file with secrets that other users may read."""
    secrets: dict[str, list[str]] = {}
    for setting in loaded.settings:
        if _MASK in setting.value and not setting.source.startswith(("-", "PENSTOCK_")):
            secrets.setdefault(setting.source, []).append(setting.name)
    for path, names in secrets.items():
        try:
            mode = stat.S_IMODE(Path(path).stat().st_mode)
        except OSError:  # the source is code, not a file
            continue
        who = "every user of this machine" if mode & 0o004 else "its group" if mode & 0o040 else ""
        if who:
            why = f"{who} may read {path}, which has secrets ({', '.join(names)})"
            yield DoctorFinding.of("settings file", "warning", why, f"chmod 600 {path}")
        else:
            yield DoctorFinding.of("settings file", "ok", f"only its owner may read the secrets in {path}")


def writable(path: Path) -> DoctorFinding:
    """Whether this user can write the file of a SQLite store, and whether its place is safe."""
    path = path.absolute()
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        why = f"{path} cannot be written by {_user()}"
        return DoctorFinding.of("file", "bad", why, "run as its owner, or give mode=0660 in the URL")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        why = f"{path.parent} cannot be written by {_user()}: SQLite needs files beside it"
        return DoctorFinding.of("file", "bad", why, "let this user write in the folder, or use another one")
    kind = _file_system(path.parent)
    if kind in _ON_OTHER_MACHINES:
        why = f"{path} is on {kind}: WAL needs memory shared on one machine"
        return DoctorFinding.of("file", "bad", why, "use a local disk")
    if kind in ("tmpfs", "ramfs"):
        why = f"{path} is on {kind}: jobs do not survive a reboot"
        return DoctorFinding.of("file", "warning", why, "use a disk")
    return DoctorFinding.of("file", "ok", f"{path} can be written" + (f" ({kind})" if kind else ""))


def free_space(path: Path) -> DoctorFinding:
    """Whether the disk of a SQLite store has room for more jobs."""
    disk = shutil.disk_usage(path.absolute().parent)
    says = f"{disk.free / 1e6:,.0f} MB free on the disk of {path.absolute()}"
    if disk.free < _NO_ROOM:
        why = f"{says}: new jobs are refused soon, and jobs cannot be deleted either"
        return DoctorFinding.of("disk", "bad", why, "free some space, or enlarge the disk")
    return DoctorFinding.of("disk", "ok", says)


def durability(url: str) -> DoctorFinding:
    """What a SQLite store survives."""
    if "durability=normal" in url:
        why = "normal: a power cut may lose the last acknowledged jobs"
        return DoctorFinding.of("durability", "warning", why, "leave durability=normal out of the URL")
    return DoctorFinding.of("durability", "ok", "full: an acknowledged job survives a power cut")


# ── private ──────────────────────────────────────────────────────────────────────────────────────


def _user() -> str:
    return f"user {os.getuid()}" if hasattr(os, "getuid") else "this user"


def _file_system(directory: Path) -> str:
    """Type of the file system of a directory; empty if unknown."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        target = directory.resolve()
    except OSError:
        return ""
    best, found = -1, ""
    for line in mounts:
        point, kind = line.split()[1:3]
        where = Path(point.replace("\\040", " "))
        if (target == where or where in target.parents) and len(where.parts) >= best:
            best, found = len(where.parts), kind
    return found
