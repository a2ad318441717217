"""`penstock doctor`: check the settings, the store, who else can read it, and the fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.faults import Exit
from penstock.cli.local_checks import (
    DoctorFinding,
    durability,
    event_loop,
    free_space,
    open_settings,
    python,
    writable,
)
from penstock.cli.session import Command, Session
from penstock.cli.show import emit, labelled
from penstock.config import mask_url
from penstock.core.errors import PenstockError
from penstock.core.text import counted

if TYPE_CHECKING:
    from penstock.stores import contract
    from penstock.stores.contract import Store

_COLOURS = {"ok": "green", "warning": "yellow", "bad": "red"}
_LEVELS = {"fine": "ok", "warning": "warning", "error": "bad"}


@click.command("doctor", cls=Command, short_help="Check the store's configuration and health.")
def command() -> Exit:
    """Check the settings, the store's configuration and health, who else can read it, and the fleet.

    The checks of the fleet: clocks and versions of workers, queues without a worker, parked jobs of unknown
    tasks, leases of workers that are gone, members of batches and flows that do not exist.

    Nothing is changed. Exit code 1 if a finding is bad.
    """
    session = Session.current()
    findings = list(_findings(session))
    if session.json:
        emit({"findings": findings})
    else:
        for finding in findings:
            labelled(finding.how.ljust(7), f"{finding.what}: {finding.says}", fg=_COLOURS[finding.how])
    return Exit.FAILED if any(finding.how == "bad" for finding in findings) else Exit.OK


def _findings(session: Session) -> Iterator[DoctorFinding]:
    yield python()
    try:
        loaded = session.load()
    except PenstockError as error:
        why = "; ".join(str(error).splitlines())
        yield DoctorFinding.of("settings", "bad", why)
        yield event_loop()
        return  # without valid settings the store is unknown
    yield DoctorFinding.of("settings", "ok", "all settings are valid")
    yield from open_settings(loaded)
    yield event_loop()
    yield from _store(session)


def _store(session: Session) -> Iterator[DoctorFinding]:
    try:
        with session.store(create=True) as store:
            shown = mask_url(store.url)
            path: Path | None = getattr(store, "path", None)
            yield from map(_shown, asyncio.run(store.checkup()))
            if path is not None:
                yield writable(path)
                yield free_space(path)
                yield durability(session.url())
                if not path.exists():
                    why = f"{shown} does not exist yet: this file is new, and the first enqueue creates it"
                    yield DoctorFinding.of("store", "ok", why)
                    return
            yield from asyncio.run(_fleet(store, shown))
    except PenstockError as error:
        yield DoctorFinding.of("store", "bad", str(error))


async def _fleet(store: Store, shown: str) -> list[DoctorFinding]:
    from penstock.inspector import Inspector

    inspector = Inspector(store)
    queues = await inspector.queues()
    jobs = sum(n for queue in queues for n in queue.counts.values())
    new = (
        "" if queues or getattr(store, "path", None) is None else "; this file is new: it has had no job yet"
    )
    says = f"{shown} answers: {counted(len(queues), 'queue')}, {counted(jobs, 'job')}{new}"
    return [DoctorFinding.of("store", "ok", says), *map(_shown, await inspector.checkup())]


def _shown(found: contract.Finding) -> DoctorFinding:
    """Convert a finding of the store into a finding of this command."""
    return DoctorFinding.of(found.what, _LEVELS[found.level], found.why, found.way_out)
