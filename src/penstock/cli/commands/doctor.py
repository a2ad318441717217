"""`penstock doctor`: check the settings, the store's configuration and its health."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from penstock.cli.faults import Exit
from penstock.cli.session import Command, Session
from penstock.cli.show import counted, emit, labelled
from penstock.config import mask_url
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from penstock.inspector import ParkedView
    from penstock.stores import contract

__all__ = ["DoctorFinding", "command"]


class DoctorFinding(msgspec.Struct, frozen=True):
    """One finding: the checked item, its level (ok, warning or bad), and an explanation."""

    what: str
    how: str
    says: str


@click.command("doctor", cls=Command, short_help="Check the store's configuration and health.")
def command() -> Exit:
    """Check the settings, and the store's configuration and health. Exit code 1 if a finding is bad."""
    session = Session.current()
    findings = list(_findings(session))
    if session.json:
        emit({"findings": findings})
    else:
        for finding in findings:
            color = {"ok": "green", "warning": "yellow", "bad": "red"}[finding.how]
            labelled(finding.how.ljust(7), f"{finding.what}: {finding.says}", fg=color)
    return Exit.FAILED if any(finding.how == "bad" for finding in findings) else Exit.OK


def _findings(session: Session) -> Iterator[DoctorFinding]:
    yield DoctorFinding("Python", "ok", f"{platform.python_version()} on {platform.platform()}")
    try:
        session.load()
    except PenstockError as error:
        yield DoctorFinding("settings", "bad", "; ".join(str(error).splitlines()))
        yield _event_loop()
        return  # without valid settings the store is unknown
    yield DoctorFinding("settings", "ok", "all settings are valid")
    yield _event_loop()
    yield from _store(session)


def _event_loop() -> DoctorFinding:
    from importlib.util import find_spec

    if find_spec("uvloop") is None:
        return DoctorFinding("event loop", "warning", "asyncio; install uvloop for a faster event loop")
    return DoctorFinding("event loop", "ok", "uvloop")


def _store(session: Session) -> Iterator[DoctorFinding]:
    try:
        with session.store(create=True) as store:
            shown = mask_url(store.url)
            path: Path | None = getattr(store, "path", None)
            yield from map(_shown, asyncio.run(store.checkup()))
            if path is not None:
                yield _writable(path)
                yield _durability(session.url())
                if not path.exists():
                    yield DoctorFinding(
                        "store", "ok", f"{shown} does not exist yet; the first enqueue creates it"
                    )
                    return
            queues = session.run(lambda i: i.queues())
            jobs = sum(n for queue in queues for n in queue.counts.values())
            yield DoctorFinding(
                "store", "ok", f"{shown} answers: {counted(len(queues), 'queue')}, {counted(jobs, 'job')}"
            )
            yield from map(_parked_job, session.run(lambda i: i.parked()))
    except PenstockError as error:
        yield DoctorFinding("store", "bad", str(error))


def _shown(found: contract.Finding) -> DoctorFinding:
    """Convert a finding of the store into a finding of this command."""
    how = {"fine": "ok", "warning": "warning", "error": "bad"}[found.level]
    return DoctorFinding(found.what, how, f"{found.why}; {found.way_out}" if found.way_out else found.why)


def _parked_job(found: ParkedView) -> DoctorFinding:
    """Finding about parked jobs of one task in one queue."""
    what = f"{counted(found.jobs, 'job')} of {found.task!r} in {found.queue!r}"
    if found.known_to:
        return DoctorFinding(
            "parked jobs", "ok", f"{what}; the task is known to {', '.join(found.known_to[:3])}"
        )
    return DoctorFinding(
        "parked jobs", "warning", f"{what}: start a worker that knows the task, or cancel them"
    )


def _writable(path: Path) -> DoctorFinding:
    path = path.absolute()
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        return DoctorFinding("file", "bad", f"{path} cannot be written by {_user()}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return DoctorFinding(
            "file", "bad", f"{path.parent} cannot be written by {_user()}: SQLite needs files beside it"
        )
    kind = _file_system(path.parent)
    if kind in ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p"):
        return DoctorFinding(
            "file", "bad", f"{path} is on {kind}: WAL needs memory shared on one machine; use a local disk"
        )
    if kind in ("tmpfs", "ramfs"):
        return DoctorFinding("file", "warning", f"{path} is on {kind}: jobs do not survive a reboot")
    return DoctorFinding("file", "ok", f"{path} can be written" + (f" ({kind})" if kind else ""))


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


def _durability(url: str) -> DoctorFinding:
    if "durability=normal" in url:
        return DoctorFinding(
            "durability", "warning", "normal: a power cut may lose the last acknowledged jobs"
        )
    return DoctorFinding("durability", "ok", "full: an acknowledged job survives a power cut")
