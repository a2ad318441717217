"""The commands that change jobs: named by id, or all that match a filter."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from penstock.cli.audited_acts import AuditedAct, acting_user
from penstock.cli.completing import complete_queue
from penstock.cli.faults import CommandError, Exit
from penstock.cli.job_addresses import ambiguous
from penstock.cli.job_search import filter_options, read_search
from penstock.cli.session import Command, Session
from penstock.cli.show import ask, emit, note, say, status
from penstock.core.duration import milliseconds
from penstock.core.job import QUEUED, TERMINAL, State
from penstock.core.text import counted

if TYPE_CHECKING:
    from penstock.core.job import Ref
    from penstock.inspector import BulkAct, Change, Inspector
    from penstock.stores.contract import JobFilter

__all__ = ["add_acts", "bulk_line", "bulk_row", "bulk_steps"]

_AT_ONCE = 500
_UNFINISHED = tuple(state for state in State if state not in TERMINAL)


class _Act(NamedTuple):
    """A command: the states it is for if no --state is given, in words, and what it has done, in a word."""

    name: str
    says: str
    states: tuple[State, ...]
    which: str
    done: str


_ACTS = (
    _Act("retry", "Make jobs available again, with all attempts restored.", (State.DEAD,), "dead", "retried"),
    _Act("run-now", "Make scheduled and retryable jobs available now.",
         (State.SCHEDULED, State.RETRYABLE), "delayed", "made available"),
    _Act("reschedule", "Give queued jobs another due time.",
         tuple(sorted(QUEUED - {State.PARKED})), "queued", "rescheduled"),
    _Act("cancel", "Cancel queued jobs, and ask running ones to stop.",
         _UNFINISHED, "unfinished", "cancelled"),
    _Act("delete", "Delete jobs that are not running.",
         tuple(state for state in State if state is not State.RUNNING), "queued and ended", "deleted"),
    _Act("duplicate", "Enqueue a copy of each job under a new id. A copy has no unique key and no flow.",
         (), "selected", "duplicated"),
    _Act("discard", "Make queued or suspended jobs dead. Running ones are refused: cancel them.",
         tuple(sorted(QUEUED | {State.SUSPENDED})), "queued or suspended", "discarded"),
    _Act("move", "Move queued jobs to another queue. Their due times and attempts do not change.",
         tuple(sorted(QUEUED)), "queued", "moved"),
)  # fmt: skip


#: Acts that cannot be undone by another act on the same jobs.
_NEED_A_FILTER = ("cancel", "delete", "discard", "duplicate", "move")
_OPTIONS: dict[str, list[click.Parameter]] = {
    "reschedule": [
        click.Option(
            ["--delay"], metavar="DURATION", default="0s", help="Time until the jobs are due, e.g. 5m."
        )
    ],
    "discard": [
        click.Option(["--reason"], metavar="TEXT", default="", help="Reason that is kept with the jobs.")
    ],
    "move": [
        click.Option(
            ["--to"],
            metavar="QUEUE",
            required=True,
            shell_complete=complete_queue,
            help="New queue of the jobs.",
        )
    ],
}


def add_acts(group: click.Group) -> None:
    """Add the command of each act."""
    for act in _ACTS:
        _add(group, act)


def _add(group: click.Group, act: _Act) -> None:
    states = f"without --state: {act.which} jobs" if act.states else "--state or another filter is needed"

    @group.command(
        act.name,
        cls=Command,
        help=f"{act.says}\n\nName jobs by id, or select them by --all and filters ({states}).",
    )
    @click.argument("addresses", metavar="[ID]...", nargs=-1)
    @click.option("--all", "all_", is_flag=True, help="Select all jobs that match the filters.")
    @filter_options
    @click.option(
        "--limit",
        metavar="N",
        type=click.IntRange(min=1),
        help="Maximum number of jobs with --all.  [default: no limit]",
    )
    @click.option(
        "--pace",
        metavar="N",
        type=click.IntRange(min=1),
        help="Maximum number of jobs per second with --all.  [default: 500]",
    )
    @click.option(
        "--dry-run", is_flag=True, help="With --all: count the jobs that match, and change nothing."
    )
    @click.option("--detach", is_flag=True, help="With --all: leave the act to workers, and do not wait.")
    @click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation of --all.")
    def command(
        addresses: tuple[str, ...],
        all_: bool,
        limit: int | None,
        pace: int | None,
        dry_run: bool,
        detach: bool,
        yes: bool,
        delay: str = "0s",
        to: str = "",
        reason: str = "",
        **filters: Any,
    ) -> Exit:
        of_all = any(filters.values()) or limit or pace or dry_run or detach
        if not all_ and of_all:
            raise click.UsageError("filters, --limit, --pace, --dry-run and --detach need --all")
        if bool(addresses) == all_:
            problem = "ids and --all exclude each other" if all_ else "no jobs given"
            raise click.UsageError(f"{problem}: name jobs by id, or select them with --all and filters")
        arguments = {"delay": milliseconds(delay, what="--delay"), "to": to, "reason": reason}
        if not all_:
            return _some(act, addresses, arguments)
        if act.name in _NEED_A_FILTER and not any(filters.values()):
            raise click.UsageError(f"{act.name} --all needs a filter, e.g. --queue or --state")
        return _all(act, filters, arguments, limit=limit, pace=pace, dry_run=dry_run, detach=detach, yes=yes)

    command.params += _OPTIONS.get(act.name, [])


# ── by id ────────────────────────────────────────────────────────────────────────────────────────


def _some(act: _Act, addresses: Sequence[str], arguments: dict[str, Any]) -> Exit:
    session = Session.current()

    async def acting(inspector: Inspector) -> list[Change]:
        from penstock.inspector import Change, JobAct

        refs: list[Ref] = []
        changes: list[Change] = []
        for address in dict.fromkeys(addresses):
            found = await inspector.refs(address)
            if len(found) > 1:
                raise ambiguous(address, found)
            if not found:
                changes.append(Change("", address, "missing", "no such job"))
            refs += found
        for n in range(0, len(refs), _AT_ONCE):
            changes += await inspector.act(JobAct(act.name), refs[n : n + _AT_ONCE], **arguments)
        return changes

    facts = {name: value for name, value in arguments.items() if value}
    changes = session.run(acting, audited=AuditedAct(f"jobs.{act.name}", addresses, facts))
    if session.json:
        emit({"jobs": changes})
    else:
        for change in changes:
            where = f"{change.queue}/{change.id}" if change.queue else change.id
            say(f"{where}: {change.says}", err=change.outcome in ("refused", "missing"))
    outcomes = {change.outcome for change in changes}
    return Exit.FAILED if "refused" in outcomes else Exit.NOT_FOUND if "missing" in outcomes else Exit.OK


# ── by filter ────────────────────────────────────────────────────────────────────────────────────


def _all(
    act: _Act,
    filters: dict[str, Any],
    arguments: dict[str, Any],
    *,
    limit: int | None,
    pace: int | None,
    dry_run: bool,
    detach: bool,
    yes: bool,
) -> Exit:
    session = Session.current()
    filter = _filter(act, filters)
    if dry_run or not yes:
        count = session.run(lambda inspector: _count(inspector, filter, limit))
        if dry_run or not count:
            says = f"{counted(count, 'job')} {'matches' if count == 1 else 'match'}"
            emit({"jobs": count}) if session.json else say(says)
            return Exit.OK
        to = f" to {arguments['to']}" if arguments["to"] else ""
        ask(f"{act.name} {count:,} {_in_words(act, filters, count)}{to}?")

    async def acting(inspector: Inspector) -> BulkAct:
        from penstock.inspector import JobAct
        from penstock.inspector.bulk_acts import PACE

        started = await inspector.bulk.start(
            JobAct(act.name), filter, by=acting_user(), limit=limit, pace=pace or PACE, **arguments
        )
        return started if detach else await _run(inspector, started)

    bulk = session.run(acting)
    if session.json:
        emit(bulk_row(bulk))
    elif detach:
        say(f"started {bulk.id}")
        note(f"workers do it; see `penstock bulk show {bulk.id}`")
    else:
        asked = f", {bulk.asked:,} asked to stop" if bulk.asked else ""
        refused = f", {bulk.refused:,} refused" if bulk.refused else ""
        say(f"{bulk.done:,} {act.done}{asked}{refused}")
        if bulk.error or bulk.state.value == "aborted":
            note(bulk.error or "aborted: not all jobs were reached")
        elif bulk_row(bulk)["limited"]:
            note("limit reached: more jobs may match")
    return Exit.FAILED if bulk.refused or bulk.error or bulk.state.value == "aborted" else Exit.OK


def _filter(act: _Act, filters: dict[str, Any]) -> JobFilter:
    from msgspec.structs import replace

    filter = read_search(**filters, by="enqueued", reverse=False).filter
    return filter if filter.states else replace(filter, states=act.states)


async def _count(inspector: Inspector, filter: JobFilter, limit: int | None) -> int:
    found = 0
    async for found in inspector.bulk.dry_run(filter, limit=limit):
        if sys.stderr is not None and sys.stderr.isatty():
            status(f"counting: {counted(found, 'job')} so far")
    if found and sys.stderr is not None and sys.stderr.isatty():
        status("")
    return found


async def bulk_steps(inspector: Inspector, started: BulkAct) -> AsyncGenerator[BulkAct, None]:
    """Run a bulk act here until it has ended; yields its progress. Workers may take part in it."""
    from penstock.inspector.bulk_pace import PacedSteps

    steps, bulk = PacedSteps(inspector.bulk, started.id, f"{acting_user()} {started.id}"), started
    while bulk.state.value == "running":
        stepped, pause = await steps.next()
        await asyncio.sleep(pause)
        if stepped is None:  # a worker was quicker, or it has ended
            stepped = await inspector.bulk.get(started.id)
        if stepped is None:
            raise CommandError(f"the bulk act {started.id} is gone")
        bulk = stepped
        yield bulk


async def _run(inspector: Inspector, started: BulkAct) -> BulkAct:
    """Run a bulk act here, with its progress at a terminal, until it has ended. Ctrl-C aborts it."""
    bulk, shows = started, sys.stderr is not None and sys.stderr.isatty()
    try:
        async with aclosing(bulk_steps(inspector, started)) as steps:
            async for bulk in steps:
                if shows:
                    status(f"{bulk_line(bulk)}; Ctrl-C aborts")
    except asyncio.CancelledError:  # Ctrl-C: the event loop cancels this task
        return await inspector.bulk.abort(started.id, by=acting_user()) or started
    finally:
        if shows:
            status("")
    return bulk


def _in_words(act: _Act, filters: dict[str, Any], count: int) -> str:
    which = " or ".join(filters["states"]) or act.which
    of = f" of the task {filters['task']}" if filters["task"] else ""
    queues = filters["queues"]
    where = (
        f" in the {'queue' if len(queues) == 1 else 'queues'} {', '.join(queues)}"
        if queues
        else " in all queues"
    )
    more = [name for name in ("text", "headers", "flow", "worker", "since", "until") if filters[name]]
    matching = f" that match --{', --'.join(more)}" if more else ""
    return f"{which} {'job' if count == 1 else 'jobs'}{of}{where}{matching}"


def bulk_line(bulk: BulkAct) -> str:
    """A bulk act's progress in a line."""
    share = f"{min(1.0, bulk.seen / bulk.total):.0%}" if bulk.total else "-"
    return f"{bulk.act.value}: {share} of {counted(bulk.total, 'job')} searched, {bulk.changed:,} reached"


def bulk_row(bulk: BulkAct) -> dict[str, Any]:
    """A bulk act as JSON."""
    import msgspec

    from penstock.core.formats import iso

    shown: dict[str, Any] = msgspec.to_builtins(bulk)
    for name in ("after", "holder", "lease_until", "reserved"):
        del shown[name]
    shown |= {"created_at": iso(bulk.created_at), "ended_at": iso(bulk.ended_at)}
    shown["limited"] = bulk.limit is not None and bulk.changed >= bulk.limit and bulk.after is not None
    return shown
